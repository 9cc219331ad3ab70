import { listWorkers } from '../../worker/index.ts'
import { SYNC } from '../../sync/runner.ts'
import { type JobProgress, progress, progressOfAll, type ProgressOfAll } from '../../sync/admin/progress.ts'
import type { Database } from '../../postgres/index.ts'
import { type Run, UsageError } from '../command.ts'
import { withSync } from '../database.ts'
import { invalidArgument, isSet, textFlag } from '../flags.ts'
import { printableJson } from '../output.ts'
import { durationFlag, jobArgument } from './flags.ts'
import { fitted, jobsText, jobText, type TextOptions } from './progress-text.ts'
import { watch } from './watch.ts'

/** What one look finds. */
export type SyncLook = { readonly runners: number } & (
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
  const shown = (found: SyncLook): string => {
    if (json) return printableJson(asJson(found), watches ? 0 : undefined)
    if (!redraws) return asText(found, new Date(), { width })
    return fitted(asText(found, new Date(), { width, most: REDRAWN.most }), width)
  }
  return withSync(run, async (db, schema) => {
    const limit = redraws ? REDRAWN.jobs : undefined
    const look = async (): Promise<SyncLook> => lookAt(db, schema, jobId, limit)
    if (watches) return watch(run, { look, shown, everyMs, redraws, end: json ? '\n' : '\n\n' })
    print(`${shown(await look())}\n`)
    return 0
  })
}

async function lookAt(
  db: Database,
  schema: string,
  jobId: string | undefined,
  limit: number | undefined,
): Promise<SyncLook> {
  const workers = await listWorkers(db, schema)
  const runners = workers.filter(({ state, roles }) => state === 'alive' && roles.includes(SYNC)).length
  return jobId === undefined
    ? { runners, all: await progressOfAll(db, { schema, limit }) }
    : { runners, job: await progress(db, jobId, { schema }) }
}

export function asText(found: SyncLook, now: Date, options: TextOptions = {}): string {
  const jobs = 'job' in found ? [found.job] : found.all.jobs
  const open = jobs.some(({ phase }) => phase !== 'completed' && phase !== 'failed')
  const warning = open && found.runners === 0 ? NOBODY : ''
  if ('job' in found) return `${jobText(found.job, now, options)}${warning}`
  if (jobs.length === 0) return 'No job is open, and none has failed within a day.'
  return `${jobsText(found.all, options.width)}${warning}`
}

const NOBODY = '\n\nNobody works on it: no runner is alive. Start one with `leasehold work`.'

/** What is unknown is null, so that every name is always there. */
function asJson(found: SyncLook): unknown {
  const { runners } = found
  if ('job' in found) return { ...jobJson(found.job), runners }
  return { jobs: found.all.jobs.map(jobJson), more: found.all.more, runners }
}

export function jobJson(job: JobProgress): object {
  const { rowsPerSecond = null, chunksPerMinute = null, timeLeftMs = null } = job
  return { ...job, rowsPerSecond, chunksPerMinute, timeLeftMs }
}
