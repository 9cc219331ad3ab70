/** The commands of `leasehold sync` for jobs: what they read from flags, and what they print. */
import type { Command } from 'commander'
import { isRowId, isUuid } from '../../operations/request-checks.ts'
import { cancel, type CancelResult, resumeCancel } from '../../sync/admin/cancel.ts'
import { type ChunkPage, type ChunkSummary, listChunks } from '../../sync/admin/chunks.ts'
import { explainChunk, explainJob } from '../../sync/admin/explain.ts'
import { type JobFilter, type ListedJob, listJobs } from '../../sync/admin/jobs.ts'
import { type JobProgress, progress } from '../../sync/admin/progress.ts'
import { replay, type ReplayResult, resumeReplay } from '../../sync/admin/replay.ts'
import { createSync } from '../../sync/index.ts'
import { SYNC_STATES } from '../../sync/transitions.ts'
import { readNames, runBulkCommand } from '../bulk-change.ts'
import type { Run } from '../command.ts'
import { withSync } from '../database.ts'
import { runExplain } from '../explain.ts'
import {
  addPeriodFlags,
  durationFlag,
  invalidArgument,
  isSet,
  limitFlag,
  pastFlag,
  readPeriod,
  textFlag,
} from '../flags.ts'
import { runListCommand } from '../list.ts'
import {
  columns,
  counted,
  duration,
  type Fact,
  factLines,
  grouped,
  momentFact,
  printable,
  printableJson,
  relative,
} from '../output.ts'
import { chunkName, jobDetails, jobJson, percent, shortProgress } from './progress-text.ts'

export const STATES = SYNC_STATES.join(', ').toLowerCase()

/** The job that a command names. */
export function jobArgument(args: readonly string[]): string {
  const [jobId = ''] = args
  if (!isRowId(jobId) && !isUuid(jobId))
    throw invalidArgument('<job>', jobId, 'give the number of a job; `leasehold sync list` has them.')
  return jobId
}

/** `leasehold sync enqueue <definition> <matrix>` */
export async function enqueueCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [definition = '', matrixId = ''] = args
  if (definition.trim() === '')
    throw invalidArgument('<definition>', definition, 'give the name of a definition.')
  if (matrixId.trim() === '') throw invalidArgument('<matrix>', matrixId, 'say what is to be synced.')
  const priority = priorityFlag(flags)
  const freshForMs = durationFlag(flags, 'freshFor')
  const job = {
    matrixId,
    force: isSet(flags, 'force'),
    parallel: isSet(flags, 'parallel'),
    ...(priority === undefined ? {} : { priority }),
    ...(freshForMs === undefined ? {} : { freshForMs }),
    ...paramsFlag(flags),
  }
  const enqueued = await withSync(run, async (db, schema) =>
    createSync({ schema }).enqueue(db, definition, job),
  )
  const { jobId, created } = enqueued
  const what = `${printable(definition)}, ${printable(matrixId)}`
  if (isSet(flags, 'json')) print(`${printableJson(enqueued)}\n`)
  else if (created)
    print(`Written: job ${jobId}, ${what}. \`leasehold sync status ${jobId} --watch\` follows it.\n`)
  else print(`Nothing written: job ${jobId} of ${what} is open already; --parallel adds another one.\n`)
  return 0
}

function priorityFlag(flags: Run['flags']): number | undefined {
  const given = textFlag(flags, 'priority')
  if (given === undefined || /^-?\d{1,9}$/.test(given)) return given === undefined ? undefined : Number(given)
  throw invalidArgument('priority', given, 'give a whole number; higher ones come first.')
}

function paramsFlag(flags: Run['flags']): { readonly params?: unknown } {
  const given = textFlag(flags, 'params')
  if (given === undefined) return {}
  try {
    return { params: JSON.parse(given) as unknown }
  } catch {
    throw invalidArgument('params', given, `give JSON, for example '{"year": 2024}'.`)
  }
}

/** The flags by which list, replay and cancel choose jobs. */
export function addFilterFlags(command: Command, states: string): Command {
  command
    .option('--definition <name>', 'only jobs of this definition')
    .option('--matrix <id>', 'only jobs of this matrix')
    .option('--state <names>', `only jobs in these states, separated by commas: ${states}`)
  return addPeriodFlags(command, 'jobs enqueued').option(
    '--error <text>',
    'only jobs whose error contains this text',
  )
}

/** For list and replay: open jobs have no time of failure. */
export function addFailedSinceFlag(command: Command): Command {
  return command.option('--since <time>', 'only jobs that failed at this time or later')
}

function readFilter(flags: Run['flags'], now: Date): JobFilter {
  const definition = textFlag(flags, 'definition')
  const matrixId = textFlag(flags, 'matrix')
  const states = readNames(flags, 'state', SYNC_STATES)
  const failedSince = pastFlag(flags, 'since', now)
  const error = textFlag(flags, 'error')
  return {
    definition,
    matrixId,
    states,
    ...readPeriod(flags, now),
    failedSince,
    error,
  }
}

/** `leasehold sync list` */
export async function listCommand(run: Run): Promise<number> {
  return runListCommand(run, {
    what: 'jobs',
    before: 'the number of a job',
    readFilter,
    list: listJobs,
    withTables: withSync,
    none: 'There are no sync jobs.',
    headings: ['ID', 'STATE', 'SYNC', 'MATRIX', 'PRIORITY', 'CHUNKS', 'ENQUEUED', 'DETAILS'],
    line: columnsOf,
  })
}

function columnsOf(job: ListedJob, now: Date, width: number | undefined): string[] {
  const { id, state, definition, matrixId, priority, chunks, createdAt, completedAt } = job
  const completed = completedAt === null ? [] : [`completed ${relative(completedAt, now)}`]
  const more = jobDetails(job)
  return [
    id,
    state,
    definition,
    matrixId,
    String(priority),
    shortProgress(chunks, width),
    relative(createdAt, now),
    [...completed, ...(more === '' ? [] : [more])].join(', '),
  ]
}

/** `leasehold sync show <job>` */
export async function showCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const jobId = jobArgument(args)
  const states = readNames(flags, 'state', SYNC_STATES)
  const limit = limitFlag(flags)
  const after = textFlag(flags, 'after')
  const { job, page } = await withSync(run, async (db, schema) => ({
    job: await progress(db, jobId, { schema }),
    page: await listChunks(db, jobId, { schema, states, limit, after }),
  }))
  if (isSet(flags, 'json')) {
    // The page lists the chunks, so the two short lists are left out.
    print(
      `${printableJson({ job: jobJson({ ...job, working: [], failures: [] }), chunks: page.chunks, next: page.next })}\n`,
    )
    return 0
  }
  const now = new Date()
  print(`${described(job, now)}\n\n${chunksText(page, now, terminal.width)}\n`)
  return 0
}

/** `leasehold sync explain <job> [chunk]` */
export async function explainCommand(run: Run): Promise<number> {
  const jobId = jobArgument(run.args)
  const [, chunk] = run.args
  return runExplain(run, withSync, async (db, options) =>
    chunk === undefined ? explainJob(db, jobId, options) : explainChunk(db, jobId, chunk, options),
  )
}

function described(job: JobProgress, now: Date): string {
  const at = (moment: Date | null): string | undefined => momentFact(moment, now)
  const { chunks, freshForMs, lockedBy, attempts } = job
  const open = job.phase !== 'completed' && job.phase !== 'failed'
  const facts: readonly Fact[] = [
    ['Job', job.id],
    ['Sync', job.definition],
    ['Matrix', job.matrixId],
    ['State', `${job.state}, ${job.phase}`],
    ['Reason', job.errorMessage ?? undefined],
    ['Params', printableJson(job.params, 0)],
    ['Priority', String(job.priority)],
    ['Resyncs', resynced(job.force, freshForMs)],
    ['Parallel', job.parallel ? 'it may run at the same time as other jobs of its matrix' : undefined],
    [
      'Chunks',
      `${grouped(chunks.done + chunks.skipped)} of ${grouped(chunks.total)} done, ${percent(chunks)}`,
    ],
    ['Rows', grouped(job.rows)],
    ['Plan failed', attempts === 0 ? undefined : counted(attempts, 'time')],
    ['Enqueued', at(job.createdAt)],
    ['Planned', at(job.plannedAt)],
    ['Next check', open ? at(job.nextCheckAt) : undefined],
    ['Leased until', lockedBy === null ? undefined : `${at(job.lockedUntil)} by ${lockedBy}`],
    ['Completed', at(job.completedAt)],
    ['Failed', at(job.failedAt)],
    ['Token', String(job.token)],
  ]
  return factLines(facts)
}

function resynced(force: boolean, freshForMs: number | null): string {
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
    chunkDetails(chunk, now),
  ])
  const table = columns([['CHUNK', 'STATE', 'QUERY', 'FAILED', 'ROWS', 'DETAILS'], ...lines], width)
  return next === null ? table : `${table}\nThere are more: --after ${printable(next)} shows the next ones.`
}

/** What matters most about a chunk in its state. */
function chunkDetails(chunk: ChunkSummary, now: Date): string {
  const { skipped, needed, attempts, nextAttemptAt, completedAt, failedAt, errorMessage, lockedBy } = chunk
  const due = nextAttemptAt > now ? `due ${relative(nextAttemptAt, now)}` : undefined
  const parts: Readonly<Record<(typeof SYNC_STATES)[number], readonly (string | null | undefined)[]>> = {
    AVAILABLE: [needed ? due : 'dropped', attempts > 0 ? errorMessage : null],
    RUNNING: [`by ${lockedBy}`],
    EXPIRED: [`was held by ${lockedBy}`],
    COMPLETED: [
      `${skipped ? 'skipped, synced' : 'synced'} ${completedAt === null ? '' : relative(completedAt, now)}`,
    ],
    FAILED: [failedAt === null ? null : `given up ${relative(failedAt, now)}`, errorMessage],
  }
  return parts[chunk.state].filter(Boolean).join(': ')
}

const ROW = ['job', 'jobs'] as const

/** `leasehold sync replay` */
export async function replayCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'sync replay',
    verb: 'replay',
    row: ROW,
    choices:
      '--definition, --matrix, --state, --from, --to, --since or --error. `--state failed` means all failed jobs.',
    hasEventIds: false,
    readFilter,
    change: replay,
    resume: resumeReplay,
    withTables: withSync,
    remarks: replayRemarks,
  })
}

/** `leasehold sync cancel` */
export async function cancelCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'sync cancel',
    verb: 'cancel',
    row: ROW,
    choices:
      '--definition, --matrix, --state, --from, --to or --error. `--definition <name>` means all open jobs of a definition.',
    hasEventIds: false,
    readFilter,
    change: cancel,
    resume: resumeCancel,
    withTables: withSync,
    remarks: cancelRemarks,
  })
}

function replayRemarks({ counts, dryRun }: ReplayResult): string[] {
  const { failedChunks, droppedChunks, unplanned, conflicting } = counts
  const chunks = [
    ...(failedChunks > 0 ? [counted(failedChunks, 'failed chunk')] : []),
    ...(droppedChunks > 0 ? [counted(droppedChunks, 'dropped chunk')] : []),
  ]
  const will = dryRun ? 'would' : 'will'
  return [
    ...(chunks.length > 0 ? [`${chunks.join(' and ')} ${will} be synced.`] : []),
    ...(unplanned > 0 ? [`${counted(unplanned, ...ROW)} ${will} be planned from the beginning.`] : []),
    ...(conflicting > 0
      ? [
          `${counted(conflicting, 'more matches', 'more match')}, but another job of the same matrix is open or is replayed.`,
        ]
      : []),
  ]
}

function cancelRemarks({ counts: { droppedChunks, inFlight }, dryRun }: CancelResult): string[] {
  if (droppedChunks === 0) return []
  const finishing =
    inFlight === 0 ? '' : `, of which ${counted(inFlight, 'is', 'are')} in flight and will be finished`
  return [`${counted(droppedChunks, 'chunk')} ${dryRun ? 'would be dropped' : 'dropped'}${finishing}.`]
}
