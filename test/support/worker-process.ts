import type { WorkerSettings } from '../../src/worker/index.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { SyncRetry } from '../../src/sync/index.ts'
import type { DispatcherOptions } from '../../src/webhooks/dispatcher/dispatcher.ts'
import type { Processes, TestProcess } from './processes.ts'
import { WORK_TABLE } from './work-table.ts'
import { SECRET_KEY } from './webhook-endpoints.ts'

/** The configuration of test/fixtures/worker.mjs. */
export interface WorkerConfig {
  readonly databaseUrl: string
  /** The types of the events that it prints. */
  readonly tell?: readonly string[]
  readonly settings?: Partial<WorkerSettings>
  /** Options for startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
  /** It writes every run of the handler into public.runs. */
  readonly record?: boolean
  readonly heedsSignal?: boolean
  /** How long a handler of the kind `block` blocks the event loop. */
  readonly blockMs?: number
  /** Instead: it blocks until this file exists. */
  readonly blockUntil?: string
  readonly shortMs?: number
  readonly wake?: boolean
  /** It prints a line `progress` after this many settled rows. */
  readonly progressEvery?: number
}

export interface WorkerProcess extends TestProcess {
  /** Returns the first matching line of this type, printed already or later. */
  heard(type: string, fits?: (line: Line) => boolean): Promise<Line>
  /** All lines of this type so far. */
  all(type: string): Line[]
}

export interface Line {
  readonly type: string
  readonly [field: string]: unknown
}

export function startWorker({ spawnNode }: Processes, config: WorkerConfig): WorkerProcess {
  return told(spawnNode('test/fixtures/worker.mjs', [JSON.stringify({ table: WORK_TABLE, ...config })]))
}

/** Reads the events that a process prints as JSON, one per line. */
export function told(started: TestProcess): WorkerProcess {
  return {
    ...started,
    heard: async (type, fits = () => true) => {
      const line = await started.line((text) => {
        const parsed = parse(text)
        return parsed?.type === type && fits(parsed)
      })
      return parse(line) ?? { type }
    },
    all: (type) =>
      started
        .output()
        .stdout.split('\n')
        // What follows the last line break is a line of which the rest has not arrived.
        .slice(0, -1)
        .flatMap((text) => parse(text) ?? [])
        .filter((line) => line.type === type),
  }
}

function parse(text: string): Line | undefined {
  // The fixtures print only such lines.
  return text.startsWith('{') ? (JSON.parse(text) as Line) : undefined
}

/** The configuration of test/fixtures/relay.mjs. */
export interface RelayConfig {
  readonly databaseUrl: string
  /** The database of the table to which it publishes. Default: that of the outbox. */
  readonly sinkUrl?: string
  /** How long the publisher takes for a batch. */
  readonly publishMs?: number
  /** When it kills itself: after a claim, before or in the middle of publishing, or after the acknowledgement. */
  readonly dieAt?: 'claimed' | 'publishing' | 'part' | 'acknowledged'
  /** It kills itself when it is about to publish an event with this `n`. */
  readonly poison?: number
  readonly retry?: Readonly<Record<string, number>>
  readonly execArgv?: readonly string[]
  /** The types of the events that it prints. */
  readonly tell?: readonly string[]
  readonly maxBatch?: number
  readonly settings?: Partial<WorkerSettings>
  /** Options for startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

export function startRelay(
  { spawnNode }: Processes,
  { execArgv = [], ...config }: RelayConfig,
): WorkerProcess {
  return told(spawnNode('test/fixtures/relay.mjs', [JSON.stringify(config)], { execArgv }))
}

/** The configuration of test/fixtures/producer.mjs. */
export interface ProducerConfig {
  readonly databaseUrl: string
  /** Its ordering keys begin with this. */
  readonly name: string
  readonly keys: number
}

/** An event that a producer process wrote. */
export interface Written {
  readonly key: string
  readonly n: number
}

export function startProducer({ spawnNode }: Processes, config: ProducerConfig): WorkerProcess {
  return told(spawnNode('test/fixtures/producer.mjs', [JSON.stringify(config)]))
}

/** The events whose COMMIT was confirmed, as far as the process has printed them. */
export function acknowledged(producer: WorkerProcess): Written[] {
  return producer.all('acknowledged').flatMap((line) => line['events'] as Written[])
}

/** Resolves when the process has printed this many more of them. */
export async function moreAcknowledged(producer: WorkerProcess, count: number): Promise<void> {
  const wanted = acknowledged(producer).length + count
  await producer.heard('acknowledged', ({ total }) => Number(total) >= wanted)
}

/** Creates the table to which the relay processes publish. */
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

/** All published events, in the order of arrival. */
export async function arrivals(db: Database): Promise<Arrival[]> {
  return (await db.query<Arrival>({ text: 'select * from public.sink order by seq' })).rows
}

/** Events after which a row may be finished. `fencedOff` is one of them, because the answer to a settlement may be lost. */
export const FINISHING = ['settled', 'reaped', 'fencedOff'] as const

/** Resolves when no event is PENDING or CLAIMED any more. The relays must print the events in `FINISHING`. */
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

/** The configuration of test/fixtures/runner.mjs. */
export interface RunnerConfig {
  readonly databaseUrl: string
  /** The URL of the source: test/support/matrix-source.ts. */
  readonly sourceUrl: string
  /** The types of the events that it prints. */
  readonly tell?: readonly string[]
  readonly concurrency?: number
  readonly jobs?: Partial<WorkerSettings>
  readonly chunks?: Partial<WorkerSettings>
  readonly checkEveryMs?: number
  /** It kills itself when this many chunks of its plan have been written. */
  readonly dieAfterPlanning?: number
  /** It kills itself at the start of every plan and every chunk. Otherwise only chunks with `poison` kill it. */
  readonly crashes?: boolean
  readonly retry?: Partial<SyncRetry>
  /** It ignores the signal to stop. */
  readonly deaf?: boolean
  /** Options for startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

export function startRunner({ spawnNode }: Processes, config: RunnerConfig): WorkerProcess {
  return told(spawnNode('test/fixtures/runner.mjs', [JSON.stringify(config)]))
}

/** Creates the table into which the runner processes write. */
export async function createTarget(db: Database): Promise<void> {
  await db.query({
    text: `create table public.target (
      matrix text not null, n int not null, value int not null, token bigint not null, runner text not null)`,
  })
}

/** What was written for one chunk. */
export interface Effect {
  readonly n: number
  readonly values: readonly number[]
  /** The tokens under which it was written. More than one is a defect. */
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

/** The configuration of test/fixtures/dispatcher.mjs. */
export interface DispatcherConfig {
  readonly databaseUrl: string
  /** The types of the events that it prints. */
  readonly tell?: readonly string[]
  readonly settings?: Partial<WorkerSettings>
  readonly dispatcher?: Pick<DispatcherOptions, 'schedule' | 'circuitBreaker' | 'limits'>
  /** Options for startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

export function startDispatcherProcess({ spawnNode }: Processes, config: DispatcherConfig): WorkerProcess {
  const order = { secretKey: SECRET_KEY, ...config }
  return told(spawnNode('test/fixtures/dispatcher.mjs', [JSON.stringify(order)]))
}
