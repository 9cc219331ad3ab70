import { type JobFilter, type ListedJob, listJobs } from '../../sync/admin/browse.ts'
import type { Run } from '../command.ts'
import { withSync } from '../database.ts'
import { beforeFlag, limitFlag, textFlag } from '../flags.ts'
import { printList, relative } from '../output.ts'
import { statesFlag } from './flags.ts'
import { note, shortly } from './progress-text.ts'

/** `leasehold sync list` */
export async function listCommand(run: Run): Promise<number> {
  const { flags, terminal } = run
  const filter: JobFilter = {
    definition: textFlag(flags, 'definition'),
    matrixId: textFlag(flags, 'matrix'),
    states: statesFlag(flags),
  }
  const limit = limitFlag(flags)
  const before = beforeFlag(flags, 'the number of a job')
  const { jobs, next } = await withSync(run, async (db, schema) =>
    listJobs(db, filter, { schema, limit, before }),
  )
  const now = new Date()
  return printList(run, {
    what: 'jobs',
    items: jobs,
    next,
    nextFlag: '--before',
    chosenBy: { ...filter, before },
    none: 'There are no sync jobs.',
    headings: ['ID', 'STATE', 'SYNC', 'MATRIX', 'PRIORITY', 'CHUNKS', 'ASKED FOR', 'NOTE'],
    line: (job) => line(job, now, terminal.width),
  })
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
