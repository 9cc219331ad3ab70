import type { WorkerSettings } from '../../src/worker/index.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { Processes } from './processes.ts'
import { told, type WorkerProcess } from './worker-process.ts'

/** What test/fixtures/relay.mjs understands. */
export interface RelayConfig {
  readonly databaseUrl: string
  /** Where it kills itself: after a claim, before or half way through publishing, or after the acknowledgement. */
  readonly dieAt?: 'claimed' | 'publishing' | 'part' | 'acknowledged'
  /** It kills itself as soon as it is to publish an event with this `n`. */
  readonly poison?: number
  readonly retry?: Readonly<Record<string, number>>
  readonly execArgv?: readonly string[]
  /** Events that are written out. */
  readonly tell?: readonly string[]
  readonly maxBatch?: number
  readonly settings?: Partial<WorkerSettings>
  /** Passed on to startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

export function startRelay(
  { spawnNode }: Processes,
  { execArgv = [], ...config }: RelayConfig,
): WorkerProcess {
  return told(spawnNode('test/fixtures/relay.mjs', [JSON.stringify(config)], { execArgv }))
}

/** Where the relay processes publish to. */
export async function createSink(db: Database): Promise<void> {
  await db.query({
    text: `create table public.sink (
      seq bigint generated always as identity primary key,
      event_id uuid not null, key text, n int not null, token bigint not null, relay text not null)`,
  })
}

export interface Arrival {
  readonly seq: string
  readonly event_id: string
  readonly key: string | null
  readonly n: number
  readonly token: string
  readonly relay: string
}

/** Everything that arrived, in the order of arrival. */
export async function arrivals(db: Database): Promise<Arrival[]> {
  return (await db.query<Arrival>({ text: 'select * from public.sink order by seq' })).rows
}

/** Events after which a row may be finished; `fencedOff` also where the answer to a settlement was lost. */
export const FINISHING = ['settled', 'reaped', 'fencedOff'] as const

/** Resolves when no event is PENDING or CLAIMED any more. The relay has to tell of what finishes rows. */
export async function allFinished(db: Database, ...relays: readonly WorkerProcess[]): Promise<void> {
  const told = (): number =>
    relays.reduce((sum, relay) => sum + FINISHING.reduce((n, type) => n + relay.all(type).length, 0), 0)
  for (;;) {
    const before = told()
    const { rows } = await db.query<{ unfinished: boolean }>({
      text: "select exists (select from leasehold.outbox where status in ('PENDING', 'CLAIMED')) as unfinished",
    })
    if (rows[0]?.unfinished === false) return
    const more = FINISHING.flatMap((type) =>
      relays.map(async (relay) => relay.heard(type, () => told() > before)),
    )
    await Promise.race(more)
  }
}
