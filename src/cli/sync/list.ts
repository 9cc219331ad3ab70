import { isRowId } from '../../operator/request-checks.ts'
import { type JobFilter, type ListedJob, listJobs } from '../../sync/operator/browse.ts'
import { isSet, textFlag, wholeFlag, wrong } from '../flag-values.ts'
import type { Run } from '../run.ts'
import { columns, printableJson, relative } from '../text-columns.ts'
import { statesFlag } from './flags.ts'
import { note, shortly } from './progress-text.ts'
import { withSync } from './with-sync.ts'

const LARGEST_PAGE = 1_000

/** `leasehold sync list` */
export async function listCommand(run: Run): Promise<number> {
  const { print, flags, terminal } = run
  const filter: JobFilter = {
    definition: textFlag(flags, 'definition'),
    matrixId: textFlag(flags, 'matrix'),
    states: statesFlag(flags),
  }
  const limit = wholeFlag(flags, 'limit', LARGEST_PAGE)
  const before = textFlag(flags, 'before')
  if (before !== undefined && !isRowId(before)) throw wrong('before', before, 'give the number of a job.')
  const { jobs, next } = await withSync(run, async (db, schema) =>
    listJobs(db, filter, { schema, limit, before }),
  )
  if (isSet(flags, 'json')) {
    print(`${printableJson({ jobs, next })}\n`)
    return 0
  }
  if (jobs.length === 0) {
    const all = before === undefined && Object.values(filter).every((value) => value === undefined)
    print(all ? 'There are no sync jobs.\n' : 'No such jobs.\n')
    return 0
  }
  const now = new Date()
  const lines = jobs.map((job) => line(job, now, terminal.width))
  const headings = ['ID', 'STATE', 'SYNC', 'MATRIX', 'PRIORITY', 'CHUNKS', 'ASKED FOR', 'NOTE']
  print(`${columns([headings, ...lines], terminal.width)}\n`)
  if (next !== null) print(`There are more: --before ${next} shows the next ones.\n`)
  return 0
}

function line(job: ListedJob, now: Date, width: number | undefined): string[] {
  const { id, state, definition, matrixId, priority, chunks, createdAt, completedAt } = job
  const completed = completedAt === null ? [] : [`completed ${relative(completedAt, now)}`]
  const said = note(job)
  return [
    id,
    state,
    definition,
    matrixId,
    String(priority),
    shortly(chunks, width),
    relative(createdAt, now),
    [...completed, ...(said === '' ? [] : [said])].join(', '),
  ]
}
