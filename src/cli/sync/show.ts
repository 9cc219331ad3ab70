import { type ChunkPage, type ChunkSummary, listChunks } from '../../sync/admin/chunks.ts'
import { type JobProgress, progress } from '../../sync/admin/progress.ts'
import { SYNC_STATES } from '../../sync/transitions.ts'
import type { Run } from '../command.ts'
import { withSync } from '../database.ts'
import { isSet, limitFlag, textFlag } from '../flags.ts'
import { columns, counted, duration, grouped, printable, printableJson, relative } from '../output.ts'
import { jobArgument, statesFlag } from './flags.ts'
import { chunkName, percent } from './progress-text.ts'
import { jobJson } from './status.ts'

/** `leasehold sync show <job>` */
export async function showCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const jobId = jobArgument(args)
  const states = statesFlag(flags)
  const limit = limitFlag(flags)
  const after = textFlag(flags, 'after')
  const { job, page } = await withSync(run, async (db, schema) => ({
    job: await progress(db, jobId, { schema }),
    page: await listChunks(db, jobId, { schema, states, limit, after }),
  }))
  if (isSet(flags, 'json')) {
    // The page has all that these two have.
    print(
      `${printableJson({ job: jobJson({ ...job, working: [], failures: [] }), chunks: page.chunks, next: page.next })}\n`,
    )
    return 0
  }
  const now = new Date()
  print(`${facts(job, now)}\n\n${chunksText(page, now, terminal.width)}\n`)
  return 0
}

function facts(job: JobProgress, now: Date): string {
  const at = (moment: Date | null): string | undefined =>
    moment === null ? undefined : `${moment.toISOString()} (${relative(moment, now)})`
  const { chunks, freshForMs, lockedBy, attempts } = job
  const open = job.phase !== 'completed' && job.phase !== 'failed'
  const lines: readonly (readonly [string, string | undefined])[] = [
    ['Job', job.id],
    ['Sync', job.definition],
    ['Matrix', job.matrixId],
    ['State', `${job.state}, ${job.phase}`],
    ['Reason', job.errorMessage ?? undefined],
    ['Params', printableJson(job.params, 0)],
    ['Priority', String(job.priority)],
    ['Syncs again', again(job.force, freshForMs)],
    ['Parallel', job.parallel ? 'beside other jobs of its matrix' : undefined],
    [
      'Chunks',
      `${grouped(chunks.done + chunks.skipped)} of ${grouped(chunks.total)} done, ${percent(chunks)}`,
    ],
    ['Rows', grouped(job.rows)],
    ['Plan failed', attempts === 0 ? undefined : counted(attempts, 'time')],
    ['Asked for', at(job.createdAt)],
    ['Planned', at(job.plannedAt)],
    ['Next look', open ? at(job.nextLookAt) : undefined],
    ['Leased until', lockedBy === null ? undefined : `${at(job.lockedUntil)} by ${lockedBy}`],
    ['Completed', at(job.completedAt)],
    ['Failed', at(job.failedAt)],
    ['Token', String(job.token)],
  ]
  return lines
    .flatMap(([name, text]) => (text === undefined ? [] : [`${name.padEnd(13)} ${printable(text)}`]))
    .join('\n')
}

function again(force: boolean, freshForMs: number | null): string {
  if (force) return 'every chunk'
  return freshForMs === null ? 'no chunk' : `chunks synced longer ago than ${duration(freshForMs)}`
}

function chunksText({ chunks, next }: ChunkPage, now: Date, width: number | undefined): string {
  if (chunks.length === 0) return 'No such chunks.'
  const lines = chunks.map((chunk) => [
    chunk.hash.slice(0, 12),
    chunk.state,
    chunkName(chunk),
    String(chunk.attempts),
    chunk.rowCount === null ? '-' : grouped(chunk.rowCount),
    note(chunk, now),
  ])
  const table = columns([['CHUNK', 'STATE', 'QUERY', 'FAILED', 'ROWS', 'NOTE'], ...lines], width)
  return next === null ? table : `${table}\nThere are more: --after ${printable(next)} shows the next ones.`
}

/** The one thing that matters about it in its state. */
function note(chunk: ChunkSummary, now: Date): string {
  const { skipped, wanted, attempts, nextAttemptAt, completedAt, failedAt, errorMessage, lockedBy } = chunk
  const due = nextAttemptAt > now ? `due ${relative(nextAttemptAt, now)}` : undefined
  const notes: Readonly<Record<(typeof SYNC_STATES)[number], readonly (string | null | undefined)[]>> = {
    AVAILABLE: [wanted ? due : 'dropped', attempts > 0 ? errorMessage : null],
    RUNNING: [`by ${lockedBy}`],
    EXPIRED: [`was held by ${lockedBy}`],
    COMPLETED: [
      `${skipped ? 'skipped, synced' : 'synced'} ${completedAt === null ? '' : relative(completedAt, now)}`,
    ],
    FAILED: [failedAt === null ? null : `given up ${relative(failedAt, now)}`, errorMessage],
  }
  return notes[chunk.state].filter(Boolean).join(': ')
}
