/** `leasehold sync status`: how far jobs are, once or until they end. */
import { setTimeout as delay } from 'node:timers/promises'
import { messageOf } from '../../errors.ts'
import { listWorkers } from '../../worker/index.ts'
import { SYNC } from '../../sync/runner.ts'
import { type JobProgress, progress, progressOfAll, type ProgressOfAll } from '../../sync/admin/progress.ts'
import { type Run, UsageError } from '../command.ts'
import { withSync } from '../database.ts'
import { invalidArgument, isSet, textFlag } from '../flags.ts'
import { printableJson } from '../output.ts'
import { type Database, isUnavailable } from '../../postgres/index.ts'
import { listenForStop, stopReason } from '../process.ts'
import { durationFlag, jobArgument } from './jobs.ts'
import { fitted, jobJson, jobsText, jobText, type TextOptions } from './progress-text.ts'

/** What one query finds. */
export type SyncStatus = { readonly runners: number } & (
  | { readonly job: JobProgress }
  | { readonly all: ProgressOfAll }
)

const DAY_MS = 86_400_000

/** What is redrawn has to fit onto a screen of 24 lines. */
const REDRAWN = { jobs: 12, most: 5 }

/** `leasehold sync status [job]`; watching one job ends with it, and the exit code is 1 when it has failed. */
export async function statusCommand(run: Run): Promise<number> {
  const { flags, args, print, terminal } = run
  const jobId = args.length === 0 ? undefined : jobArgument(args)
  const watches = isSet(flags, 'watch')
  const everyMs = durationFlag(flags, 'every')
  if (everyMs === 0 || (everyMs ?? 0) > DAY_MS) {
    throw invalidArgument('every', textFlag(flags, 'every') ?? '', 'say how long, up to a day: 1s, or 500ms.')
  }
  if (everyMs !== undefined && !watches) throw new UsageError('--every goes with --watch.')
  const { width } = terminal
  const json = isSet(flags, 'json')
  const redraws = watches && width !== undefined && !json
  const format = (found: SyncStatus): string => {
    if (json) return printableJson(asJson(found), watches ? 0 : undefined)
    if (!redraws) return asText(found, new Date(), { width })
    return fitted(asText(found, new Date(), { width, most: REDRAWN.most }), width)
  }
  return withSync(run, async (db, schema) => {
    const limit = redraws ? REDRAWN.jobs : undefined
    const read = async (): Promise<SyncStatus> => readStatus(db, schema, jobId, limit)
    if (watches) return watch(run, { read, format, everyMs, redraws, end: json ? '\n' : '\n\n' })
    print(`${format(await read())}\n`)
    return 0
  })
}

async function readStatus(
  db: Database,
  schema: string,
  jobId: string | undefined,
  limit: number | undefined,
): Promise<SyncStatus> {
  const workers = await listWorkers(db, schema)
  const runners = workers.filter(({ state, roles }) => state === 'alive' && roles.includes(SYNC)).length
  return jobId === undefined
    ? { runners, all: await progressOfAll(db, { schema, limit }) }
    : { runners, job: await progress(db, jobId, { schema }) }
}

export function asText(found: SyncStatus, now: Date, options: TextOptions = {}): string {
  const jobs = 'job' in found ? [found.job] : found.all.jobs
  const open = jobs.some(({ phase }) => phase !== 'completed' && phase !== 'failed')
  const warning = open && found.runners === 0 ? NO_RUNNER : ''
  if ('job' in found) return `${jobText(found.job, now, options)}${warning}`
  if (jobs.length === 0) return 'No job is open, and none has failed within a day.'
  return `${jobsText(found.all, options.width)}${warning}`
}

const NO_RUNNER = '\n\nNo runner is alive, so nothing is synced. Start one with `leasehold work`.'

/** What is unknown is null, so that every name is always there. */
function asJson(found: SyncStatus): unknown {
  const { runners } = found
  if ('job' in found) return { ...jobJson(found.job), runners }
  return { jobs: found.all.jobs.map(jobJson), more: found.all.more, runners }
}

interface Watched {
  readonly read: () => Promise<SyncStatus>
  readonly format: (found: SyncStatus) => string
  /** Default: every second at a terminal, every ten elsewhere. */
  readonly everyMs: number | undefined
  /** Whether what was shown before is replaced. Otherwise the new text follows, after `end`. */
  readonly redraws: boolean
  readonly end: string
}

const TERMINAL_INTERVAL_MS = 1_000
const OTHER_INTERVAL_MS = 10_000

async function watch(run: Run, { read, format, everyMs, redraws, end }: Watched): Promise<number> {
  const { log, print } = run
  const pauseMs = everyMs ?? (redraws ? TERMINAL_INTERVAL_MS : OTHER_INTERVAL_MS)
  const ending = listenForStop(log)
  const write = redraws ? redrawing(print) : (text: string): void => print(`${text}${end}`)
  try {
    while (!ending.signal.aborted) {
      const found = await answered(read, run)
      if (found !== undefined) {
        write(format(found))
        const code = codeAtEnd(found)
        if (code !== undefined) return code
      }
      await delay(pauseMs, undefined, { signal: ending.signal }).catch(() => undefined)
    }
    const reason = await stopReason(ending)
    if ('error' in reason) throw reason.error
    return 0
  } finally {
    ending.close()
  }
}

/** Undefined while the database does not answer: watching continues until it does. */
async function answered(read: () => Promise<SyncStatus>, { log }: Run): Promise<SyncStatus | undefined> {
  try {
    return await read()
  } catch (error) {
    if (!isUnavailable(error)) throw error
    log.warn({ reason: messageOf(error) }, 'the database does not answer')
    return undefined
  }
}

function codeAtEnd(found: SyncStatus): number | undefined {
  if (!('job' in found)) return undefined
  const codes: Readonly<Partial<Record<typeof found.job.phase, number>>> = { completed: 0, failed: 1 }
  return codes[found.job.phase]
}

/** Replaces what was printed before: the cursor moves back to its first line, and everything from there on is cleared. */
export function redrawing(print: (text: string) => void): (text: string) => void {
  let lines = 0
  return (text) => {
    print(`${lines === 0 ? '' : `\u001b[${lines}A\u001b[0J`}${text}\n`)
    lines = text.split('\n').length
  }
}
