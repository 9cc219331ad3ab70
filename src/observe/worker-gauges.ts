import { heldUpKeyCounts, pendingAge, pendingRows } from '../lease/backlog.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { oldestSnapshotAge } from '../postgres/snapshots.ts'
import type { Runtime } from '../worker/process.ts'
import { listWorkers } from '../worker/registry/registry.ts'
import { tablesWithoutReaper } from './health.ts'
import { databaseGauge, databaseGauges, gauge, type GaugeSource } from './metrics.ts'

export interface WorkerGaugesOptions {
  /** Where the gauges are read from. */
  readonly db: Database
  readonly schema?: string | undefined
  /** The tables whose pending rows, ordering keys and reapers are measured. */
  readonly tables: readonly LeaseTable[]
  /** Those that run in this process now, such as `() => [runtime]`, for their rows in flight. */
  readonly runtimes: () => readonly Pick<Runtime, 'id' | 'inFlight'>[]
}

/** As long as a scrape waits, so that a query that the database does not answer ends on both sides. */
const QUERY_TIMEOUT_MS = 2_000

/** The gauges that events cannot tell: rows in flight, worker processes and reapers, pending rows, keys that are held up. */
export function workerGauges(options: WorkerGaugesOptions): GaugeSource[] {
  const names = namesOf<WorkerGaugesOptions>({ db: true, schema: true, tables: true, runtimes: true })
  refuseUnknownOptions('workerGauges', options, names)
  const { db, schema = 'leasehold', tables, runtimes } = options
  const query: RunQuery = async (read) => db.transaction(read, { queryTimeoutMs: QUERY_TIMEOUT_MS })
  const byName = new Map(tables.map((table) => [tableName(table), table]))
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
    databaseGauge('reaperAlive', async () => {
      const unreaped = await tablesWithoutReaper(db, schema, [...byName.keys()])
      return [...byName.keys()].map((table) => ({
        labels: { table },
        value: unreaped.includes(table) ? 0 : 1,
      }))
    }),
    databaseGauge('oldestSnapshotAge', async () => {
      const value = await query(oldestSnapshotAge)
      return value === undefined ? [] : [{ labels: {}, value }]
    }),
    ...[...byName].flatMap(([name, table]) => backlogGauges(name, table, query)),
  ]
}

const NO_KEYS = { blocked: 0, parked: 0 }

type RunQuery = <Value>(read: (tx: Queryable) => Promise<Value>) => Promise<Value>

/** What waits in one table. It is read in one transaction: few connections serve all scrapes. */
function backlogGauges(name: string, table: LeaseTable, query: RunQuery): GaugeSource[] {
  const pendingAgeOf = pendingAge(table)
  const pendingRowsOf = pendingRows(table)
  const heldUpOf = table.ordering === undefined ? undefined : heldUpKeyCounts(table)
  const labels = { table: name }
  const read = async (tx: Queryable) => ({
    age: await pendingAgeOf(tx),
    rows: await pendingRowsOf(tx),
    heldUp: await heldUpOf?.(tx),
  })
  const gauges = databaseGauges(async () => query(read), {
    pendingRows: ({ rows }) => [{ labels, value: rows }],
    oldestPendingAge: ({ age }) => (age === undefined ? [] : [{ labels, value: age }]),
    heldUpKeys: ({ heldUp = NO_KEYS }) => [
      { labels: { ...labels, state: 'blocked' }, value: heldUp.blocked },
      { labels: { ...labels, state: 'parked' }, value: heldUp.parked },
    ],
  })
  return gauges.filter(({ metric }) => metric !== 'heldUpKeys' || table.ordering !== undefined)
}
