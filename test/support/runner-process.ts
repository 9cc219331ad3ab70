import type { Database } from '../../src/postgres/database.ts'
import type { SyncRetry } from '../../src/sync/index.ts'
import type { WorkerSettings } from '../../src/worker/index.ts'
import type { Processes } from './processes.ts'
import { told, type WorkerProcess } from './worker-process.ts'

/** What test/fixtures/runner.mjs understands. */
export interface RunnerConfig {
  readonly databaseUrl: string
  /** Where it fetches from: test/support/matrix-source.ts. */
  readonly sourceUrl: string
  /** Events that are written out. */
  readonly tell?: readonly string[]
  readonly concurrency?: number
  readonly jobs?: Partial<WorkerSettings>
  readonly chunks?: Partial<WorkerSettings>
  readonly lookEveryMs?: number
  /** It kills itself when so many chunks of its plan have been written. */
  readonly dieAfterPlanning?: number
  /** It kills itself at the start of every plan and every chunk. Otherwise only chunks with `poison` kill it. */
  readonly crashes?: boolean
  readonly retry?: Partial<SyncRetry>
  /** It goes on although it was told to stop. */
  readonly deaf?: boolean
  /** Passed on to startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

export function startRunner({ spawnNode }: Processes, config: RunnerConfig): WorkerProcess {
  return told(spawnNode('test/fixtures/runner.mjs', [JSON.stringify(config)]))
}

/** Where the runner processes sync to. */
export async function createTarget(db: Database): Promise<void> {
  await db.query({
    text: `create table public.target (
      matrix text not null, n int not null, value int not null, token bigint not null, runner text not null)`,
  })
}

/** What is there of one chunk. */
export interface Effect {
  readonly n: number
  readonly values: readonly number[]
  /** Those who have written it: more than one is a mistake. */
  readonly tokens: readonly string[]
  readonly runners: readonly string[]
}

export async function effectsOf(db: Database, matrix: string): Promise<Effect[]> {
  const { rows } = await db.query<Effect>({
    text: `select n, array_agg(value order by value) as values, array_agg(distinct token) as tokens,
        array_agg(distinct runner) as runners
      from public.target where matrix = $1 group by n order by n`,
    values: [matrix],
  })
  return rows
}
