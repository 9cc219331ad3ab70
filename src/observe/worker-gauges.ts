import { pendingAge } from '../lease/backlog.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { Runtime } from '../worker/process.ts'
import { listWorkers } from '../worker/registry/registry.ts'
import { databaseGauge, gauge, type GaugeSource } from './metrics.ts'

export interface WorkerGaugesOptions {
  /** Where the gauges are read from. */
  readonly db: Database
  readonly schema?: string | undefined
  /** The tables whose oldest pending row is measured. */
  readonly tables: readonly LeaseTable[]
  /** Those that run in this process now, such as `() => [runtime]`, for their rows in flight. */
  readonly runtimes: () => readonly Pick<Runtime, 'id' | 'inFlight'>[]
}

/** As long as a scrape waits, so that a query that the database does not answer ends on both sides. */
const QUERY_TIMEOUT_MS = 2_000

/** The gauges that events cannot tell: rows in flight, worker processes by state, and the age of the oldest pending rows. */
export function workerGauges(options: WorkerGaugesOptions): GaugeSource[] {
  const names = namesOf<WorkerGaugesOptions>({ db: true, schema: true, tables: true, runtimes: true })
  refuseUnknownOptions('workerGauges', options, names)
  const { db, schema = 'leasehold', tables, runtimes } = options
  const query = async <Value>(read: (tx: Queryable) => Promise<Value>): Promise<Value> =>
    db.transaction(read, { queryTimeoutMs: QUERY_TIMEOUT_MS })
  const ages = new Map(tables.map((table) => [tableName(table), pendingAge(table)]))
  return [
    gauge('inFlightRows', () =>
      runtimes().map(({ id: worker, inFlight: value }) => ({ labels: { worker }, value })),
    ),
    databaseGauge('workerProcesses', async () => {
      const processes = await query(async (tx) => listWorkers(tx, schema))
      return ['alive', 'missing', 'dead'].map((state) => ({
        labels: { state },
        value: processes.filter((each) => each.state === state).length,
      }))
    }),
    ...[...ages].map(([table, age]) =>
      databaseGauge('oldestPendingAge', async () => {
        const value = await query(age)
        return value === undefined ? [] : [{ labels: { table }, value }]
      }),
    ),
  ]
}
