/** `leasehold sync status`: how far jobs are, once or until they end. */
import { listWorkers } from '../../worker/index.ts'
import { SYNC } from '../../sync/runner.ts'
import { type JobProgress, progress, progressOfAll, type ProgressOfAll } from '../../sync/admin/progress.ts'
import type { Run } from '../command.ts'
import { withSync } from '../database.ts'
import { isSet } from '../flags.ts'
import { printableJson } from '../output.ts'
import type { Database } from '../../postgres/index.ts'
import { watch, watchFlags } from '../watch.ts'
import { jobArgument } from './jobs.ts'
import { fitted, jobJson, jobsText, jobText, type TextOptions } from './progress-text.ts'

/** What one query finds. */
export type SyncStatus = { readonly runners: number } & (
  | { readonly job: JobProgress }
  | { readonly all: ProgressOfAll }
)

/** What is redrawn has to fit onto a screen of 24 lines. */
const REDRAWN = { jobs: 12, most: 5 }

/** `leasehold sync status [job]`; watching one job ends with it, and the exit code is 1 when it has failed. */
export async function statusCommand(run: Run): Promise<number> {
  const { flags, args, print, terminal } = run
  const jobId = args.length === 0 ? undefined : jobArgument(args)
  const { watches, everyMs } = watchFlags(flags)
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
    if (watches)
      return watch(run, {
        read,
        format,
        everyMs,
        redraws: redraws ? 'lines' : false,
        end: json ? '\n' : '\n\n',
        codeAtEnd,
      })
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

function codeAtEnd(found: SyncStatus): number | undefined {
  if (!('job' in found)) return undefined
  const codes: Readonly<Partial<Record<typeof found.job.phase, number>>> = { completed: 0, failed: 1 }
  return codes[found.job.phase]
}
