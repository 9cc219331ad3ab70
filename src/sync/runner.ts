import { LeaseholdError } from '../errors.ts'
import { fixedGroups } from '../worker/claiming/groups.ts'
import type { WorkerSettings } from '../worker/settings.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { type SyncDefinition, syncRetry } from './definition.ts'
import { type SyncRetention, syncUpkeep } from './admin/upkeep.ts'
import { Run } from './run.ts'
import { chunkTable, type ChunkRow, jobTable, type JobRow } from './table.ts'

export interface RunnerOptions {
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** Of those who plan jobs and see to their end. */
  readonly jobs?: Partial<WorkerSettings>
  /** Of those who do chunks. */
  readonly chunks?: Partial<WorkerSettings>
  /** How often a job is looked at while its chunks are being done. Default 1000. */
  readonly lookEveryMs?: number
  /** How long ended jobs are kept; `false`: for ever. Default 30 days. */
  readonly retention?: SyncRetention | false
}

/** The names under which the two workers of a runner are started, woken and set; `--only sync` means both. */
export const SYNC = 'sync'
export const SYNC_JOBS = 'sync-jobs'

/** SYNC-10 */
const JOB_SETTINGS = { leaseMs: 300_000, heartbeatMs: 60_000, prefetch: 0, claimLoops: 1 } as const
const CHUNK_SETTINGS = { leaseMs: 120_000, heartbeatMs: 30_000, prefetch: 0, claimLoops: 1 } as const

const DEFAULT_CONCURRENCY = 4
/** Jobs of one definition that a runner plans at once. */
const JOBS_AT_ONCE = 4
const UPKEEP_EVERY_MS = 600_000
const LONGEST_LOOK_MS = 3_600_000

/** The two workers that do what is defined: one plans jobs and sees to their end, the other does chunks. */
export function runner(
  definitions: ReadonlyMap<string, SyncDefinition>,
  options: RunnerOptions = {},
): [WorkDeclaration<JobRow>, WorkDeclaration<ChunkRow>] {
  if (definitions.size === 0) {
    throw new LeaseholdError('SETTING_INVALID', 'There is nothing to run: no sync is defined.', {
      remedy: "Call sync.define('name', { plan, syncChunk }) before sync.runner().",
    })
  }
  const { schema, jobs, chunks, lookEveryMs = 1_000, retention = {} } = options
  if (!(lookEveryMs > 0 && lookEveryMs <= LONGEST_LOOK_MS)) {
    throw new LeaseholdError('SETTING_INVALID', `lookEveryMs of the runner is ${String(lookEveryMs)}.`, {
      remedy: `Give a number of milliseconds above 0, at most ${LONGEST_LOOK_MS}.`,
    })
  }
  const policies = new Map([...definitions].map(([name, { retry }]) => [name, syncRetry(retry)]))
  const longestWaitMs = (chunks?.leaseMs ?? CHUNK_SETTINGS.leaseMs) / 2
  const run = new Run(definitions, { schema: schema ?? 'leasehold', policies, lookEveryMs, longestWaitMs })
  const rooms = new Map(
    [...definitions].map(([name, { concurrency }]) => [name, concurrency ?? DEFAULT_CONCURRENCY]),
  )
  const groupOf = ({ definition }: { readonly definition: string }): string => definition
  return [
    {
      name: SYNC_JOBS,
      role: SYNC,
      table: jobTable({ schema }),
      wake: true,
      handle: async (context) => run.job(context),
      groups: fixedGroups({
        rooms: new Map([...definitions.keys()].map((name) => [name, JOBS_AT_ONCE])),
        groupOf,
      }),
      settings: { ...JOB_SETTINGS, concurrency: JOBS_AT_ONCE * definitions.size, ...jobs },
      ...(retention === false
        ? {}
        : {
            maintenance: {
              everyMs: UPKEEP_EVERY_MS,
              run: async (db, stop) => syncUpkeep(db, { ...retention, schema }, stop),
            },
          }),
      open: async ({ db }) => run.open(db),
    },
    {
      name: SYNC,
      table: chunkTable({ schema }),
      wake: true,
      handle: async (context) => run.chunk(context),
      groups: fixedGroups({ rooms, groupOf }),
      settings: { ...CHUNK_SETTINGS, concurrency: sum(rooms.values()), ...chunks },
      open: async ({ db }) => run.open(db),
    },
  ]
}

function sum(numbers: Iterable<number>): number {
  return [...numbers].reduce((total, number) => total + number, 0)
}
