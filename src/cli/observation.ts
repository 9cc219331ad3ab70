import { tableName } from '../lease/index.ts'
import {
  createMetrics,
  databaseGauge,
  gauge,
  loadOpenTelemetry,
  logEvents,
  observeWithOpenTelemetry,
  pendingAge,
  type GaugeSource,
  type Logger,
  type Metrics,
} from '../observe/index.ts'
import type { Database, Queryable } from '../postgres/index.ts'
import { Events, listWorkers, type WorkDeclaration } from '../worker/index.ts'

export interface ObservationOptions {
  readonly db: Database
  readonly schema: string
  readonly declared: readonly WorkDeclaration[]
  readonly version: string
  readonly log: Logger
  readonly inFlight: () => number
}

export interface Observation {
  readonly events: Events
  readonly metrics: Metrics
}

/** Shorter than a scrape waits, so that a question the database does not answer is given up on both sides. */
const QUERY_TIMEOUT_MS = 2_000

/** The log, the metrics and OpenTelemetry, if it is installed, on one stream of events. They end with the process. */
export async function observeProcess(options: ObservationOptions): Promise<Observation> {
  const { version, log } = options
  const events = new Events()
  const gauges = gaugesOf(options)
  logEvents(events, log)
  const metrics = createMetrics(events, { gauges })
  const api = await loadOpenTelemetry()
  if (api !== undefined) observeWithOpenTelemetry(events, api, { version, gauges })
  return { events, metrics }
}

function gaugesOf({ db, schema, declared, inFlight }: ObservationOptions): GaugeSource[] {
  const ask = async <Value>(question: (tx: Queryable) => Promise<Value>): Promise<Value> =>
    db.transaction(question, { queryTimeoutMs: QUERY_TIMEOUT_MS })
  const tables = new Map(declared.map(({ table }) => [tableName(table), pendingAge(table)]))
  return [
    gauge('inFlight', () => [{ labels: {}, value: inFlight() }]),
    databaseGauge('workers', async () => {
      const workers = await ask(async (tx) => listWorkers(tx, schema))
      return ['alive', 'missing', 'dead'].map((state) => ({
        labels: { state },
        value: workers.filter((worker) => worker.state === state).length,
      }))
    }),
    ...[...tables].map(([table, age]) =>
      databaseGauge('oldestPendingAge', async () => {
        const value = await ask(age)
        return value === undefined ? [] : [{ labels: { table }, value }]
      }),
    ),
  ]
}
