/**
 * The last hour in points, for charts. The server reads the registry every five seconds while it runs: each process
 * reports there what it has done since it started, and the differences are what was done in between. Nothing is stored:
 * a server that starts anew starts with an empty history.
 */
import { tableName, type LeaseTable } from '../../lease/table.ts'
import type { Database } from '../../postgres/database.ts'
import {
  counterDifference,
  type Counters,
  latencyQuantile,
  listWorkers,
  sumCounters,
  type TableCounters,
  type WorkerRow,
} from '../../worker/index.ts'
import { isDatabaseAway } from '../../worker/events.ts'
import { actingAs } from './acting.ts'
import { ownTables, readTables } from './leases.ts'
import { ConnectionLimiter } from './limits.ts'
import { readBacklogs, workersByTable } from './overview.ts'

/** Columns of numbers, one for each time, as charts take them. Null: nothing is known of that time. */
export interface HistoryPoints {
  /** How far the points are apart while the database answers. */
  readonly everyMs: number
  readonly times: readonly Date[]
  readonly tables: readonly TableHistory[]
}

const COLUMNS = [
  'donePerSecond',
  'retriedPerSecond',
  'deadPerSecond',
  'fencedOff',
  'recovered',
  'latencyP50Ms',
  'latencyP99Ms',
  'pending',
  'oldestPendingMs',
] as const

type Point = Readonly<Record<(typeof COLUMNS)[number], number | null>>

export type TableHistory = {
  /** As `schema.table`. */
  readonly table: string
  /** The names of the workers that process it. */
  readonly workers: readonly string[]
} & Readonly<Record<(typeof COLUMNS)[number], readonly (number | null)[]>>

export interface HistoryOptions {
  readonly db: Database
  readonly schema: string
  /** Lease tables of the user. */
  readonly tables: readonly LeaseTable[]
  readonly prefix: () => Promise<string>
  readonly statementTimeoutMs: number
  readonly onError: (error: unknown) => void
  /** Is called with each new point. */
  readonly onPoint: (point: HistoryPoints) => void
}

/** As often as a process reports itself. */
const SAMPLE_EVERY_MS = 5_000

/** Counting what waits takes longer than reading the registry: up to 0.1 s where there are millions of rows. */
const READ_BACKLOG_EVERY_MS = 30_000

const KEEP_MS = 3_600_000

interface Backlog {
  readonly pending: number | null
  readonly oldestPendingMs: number | null
}

type Rates = Readonly<Record<'done' | 'retried' | 'dead', number>>

/** What a process has reported. */
interface Report {
  readonly startedAt: number
  readonly counters: Counters
  /** By table, in the time before this report. */
  readonly rates: ReadonlyMap<string, Rates>
  /** Whether these are still those of the report before. */
  readonly isRepeated: boolean
}

interface Sample {
  readonly at: Date
  readonly points: ReadonlyMap<string, Point>
}

export class History {
  readonly #options: HistoryOptions
  readonly #samples: Sample[] = []
  #reports: ReadonlyMap<string, Report> | undefined
  #workers: ReadonlyMap<string, readonly string[]> = new Map()
  #backlogs: ReadonlyMap<string, Backlog> = new Map()
  #backlogsReadAt = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined
  readonly #connections: ConnectionLimiter
  #sampling: Promise<void> | undefined
  #isFailing = false
  #isStopped = false

  constructor(options: HistoryOptions) {
    this.#options = options
    // Requests need the others of the pool.
    this.#connections = new ConnectionLimiter({ atOnce: 1, waitMs: options.statementTimeoutMs })
  }

  /** Reads the registry from now on. Resolves when that was done once; further calls change nothing. */
  async start(): Promise<void> {
    if (this.#isStopped || this.#timer !== undefined) return
    this.#timer = setInterval(() => void this.sample(), SAMPLE_EVERY_MS).unref()
    await this.sample()
  }

  async stop(): Promise<void> {
    this.#isStopped = true
    clearInterval(this.#timer)
    await this.#sampling
  }

  /** The points after this time, or all of them. */
  points(after?: Date): HistoryPoints {
    return this.#columnsOf(after === undefined ? this.#samples : this.#samples.filter(({ at }) => at > after))
  }

  /** Adds a point. One that cannot be read is missing: a gap, and no error. */
  async sample(): Promise<void> {
    this.#sampling ??= this.#sample().finally(() => {
      this.#sampling = undefined
    })
    await this.#sampling
  }

  async #sample(): Promise<void> {
    const { schema, prefix, statementTimeoutMs, onError } = this.#options
    const db = this.#connections.limit(this.#options.db, 'history')
    try {
      const acting = {
        role: 'reader',
        tenant: null,
        principal: 'history',
        statementTimeoutMs,
        readOnly: true,
      } as const
      const reader = actingAs(db, acting, await prefix())
      const workers = await listWorkers(reader, schema)
      const now = Date.now()
      if (now - this.#backlogsReadAt >= READ_BACKLOG_EVERY_MS) {
        this.#backlogsReadAt = now
        // What waited half a minute ago is unknown rather than unchanged.
        this.#backlogs = new Map()
        this.#backlogs = await this.#readBacklogs(reader)
      }
      this.add(workers, new Date(now))
      this.#isFailing = false
    } catch (error) {
      // Once, and not every five seconds.
      if (!isDatabaseAway(error) && !this.#isFailing && !this.#isStopped) onError(error)
      this.#isFailing = true
    } finally {
      await db.close()
    }
  }

  async #readBacklogs(db: Database): Promise<ReadonlyMap<string, Backlog>> {
    const { schema, tables } = this.#options
    const { outbox, webhooks, sync } = await readBacklogs(db, { schema })
    const [events, deliveries, jobs, chunks] = ownTables(schema).map((table) => tableName(table))
    const own: readonly (readonly [string | undefined, Backlog])[] = [
      [events, { pending: outbox.pending.count, oldestPendingMs: outbox.oldestPendingMs }],
      [deliveries, { pending: webhooks.pending.count, oldestPendingMs: webhooks.oldestPendingMs }],
      [jobs, { pending: sync.open.count, oldestPendingMs: null }],
      [chunks, { pending: sync.chunksWaiting.count, oldestPendingMs: null }],
    ]
    const others = (await readTables(db, schema, tables)).map(
      ({ table, pending, oldestPendingMs }) => [table, { pending, oldestPendingMs }] as const,
    )
    return new Map(
      [...own, ...others].flatMap(([table, each]) => (table === undefined ? [] : [[table, each]])),
    )
  }

  /** Adds the point that the registry shows at this time. The first time there is nothing to compare with, and no point. */
  add(workers: readonly WorkerRow[], at: Date): void {
    const before = this.#reports
    const reports = new Map<string, Report>()
    const differences = new Map<string, TableCounters[]>()
    for (const worker of workers) {
      const { report, done } = compare(worker, before?.get(worker.id), before === undefined)
      reports.set(worker.id, report)
      for (const [table, difference] of done)
        differences.set(table, [...(differences.get(table) ?? []), difference])
    }
    this.#reports = reports
    this.#workers = workersByTable(workers)
    if (before === undefined) return
    const tables = new Set([
      ...this.#workers.keys(),
      ...this.#backlogs.keys(),
      ...workers.flatMap(({ counters }) => Object.keys(counters.tables)),
    ])
    const points = [...tables].map((table) => {
      const rates = [...reports.values()].flatMap((report) => report.rates.get(table) ?? [])
      const point = pointOf(rates, sumCounters(differences.get(table) ?? []), this.#backlogs.get(table))
      return [table, point] as const
    })
    const sample = { at, points: new Map(points) }
    this.#samples.push(sample)
    while ((this.#samples[0]?.at.getTime() ?? Infinity) <= at.getTime() - KEEP_MS) this.#samples.shift()
    this.#options.onPoint(this.#columnsOf([sample]))
  }

  #columnsOf(samples: readonly Sample[]): HistoryPoints {
    const tables = [...new Set(samples.flatMap(({ points }) => [...points.keys()]))].toSorted()
    return {
      everyMs: SAMPLE_EVERY_MS,
      times: samples.map(({ at }) => at),
      tables: tables.map((table) => {
        const column = (name: (typeof COLUMNS)[number]): (number | null)[] =>
          samples.map(({ points }) => points.get(table)?.[name] ?? null)
        return {
          table,
          workers: this.#workers.get(table) ?? [],
          donePerSecond: column('donePerSecond'),
          retriedPerSecond: column('retriedPerSecond'),
          deadPerSecond: column('deadPerSecond'),
          fencedOff: column('fencedOff'),
          recovered: column('recovered'),
          latencyP50Ms: column('latencyP50Ms'),
          latencyP99Ms: column('latencyP99Ms'),
          pending: column('pending'),
          oldestPendingMs: column('oldestPendingMs'),
        }
      }),
    }
  }
}

/**
 * What a process has done since its last report. Two reports of a process are as far apart as two samples, but not in step
 * with them: a sample may find no new one, and the next one two at once. Rates are therefore those of the time between the
 * reports themselves, and last for one sample more.
 */
function compare(
  { state, startedAt, counters }: WorkerRow,
  known: Report | undefined,
  isFirstSample: boolean,
): { readonly report: Report; readonly done: readonly (readonly [string, TableCounters])[] } {
  const started = startedAt.getTime()
  const isSameStart = known?.startedAt === started && known.counters.uptimeMs <= counters.uptimeMs
  const none = new Map<string, Rates>()
  // What was done before the first sample belongs to no point; a process that started since then counted from 0.
  const before = isSameStart ? known.counters : isFirstSample ? counters : undefined
  const elapsedMs = counters.uptimeMs - (before?.uptimeMs ?? 0)
  if (elapsedMs <= 0) {
    const lasts = state === 'alive' && isSameStart && !known.isRepeated
    return {
      report: { startedAt: started, counters, rates: lasts ? known.rates : none, isRepeated: true },
      done: [],
    }
  }
  const done = Object.entries(counters.tables).map(
    ([table, now]) => [table, counterDifference(now, before?.tables[table])] as const,
  )
  const rates = done.map(([table, each]) => {
    const perSecond = (rows: number): number => (rows * 1_000) / elapsedMs
    return [
      table,
      { done: perSecond(each.done), retried: perSecond(each.retried), dead: perSecond(each.dead) },
    ] as const
  })
  return { report: { startedAt: started, counters, rates: new Map(rates), isRepeated: false }, done }
}

function pointOf(rates: readonly Rates[], done: TableCounters, backlog: Backlog | undefined): Point {
  const sum = (which: keyof Rates): number => rounded(rates.reduce((total, each) => total + each[which], 0))
  const quantile = (part: number): number | null => {
    const ms = latencyQuantile(done.latency, part)
    return ms === undefined ? null : rounded(ms)
  }
  return {
    donePerSecond: sum('done'),
    retriedPerSecond: sum('retried'),
    deadPerSecond: sum('dead'),
    fencedOff: done.fencedOff,
    recovered: done.recovered,
    latencyP50Ms: quantile(0.5),
    latencyP99Ms: quantile(0.99),
    pending: backlog?.pending ?? null,
    oldestPendingMs: backlog?.oldestPendingMs ?? null,
  }
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}
