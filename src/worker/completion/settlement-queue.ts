import type { Lease } from '../../lease/lease.ts'
import type { Way } from '../../lease/statements.ts'
import type { LeaseTable } from '../../lease/table.ts'
import type { RowInFlight } from '../rows-in-flight.ts'
import type { WorkerSettings } from '../settings.ts'
import { done, type Outcome } from './outcome.ts'

/** Rows that one statement settles: of one outcome and one bucket, and all with or all without an ordering key. */
export interface SettlementBatch<Row> {
  readonly outcome: string
  /** By which way the next claim finds rows, if it shares the statement. By key: the next rows of these keys can be claimed. */
  readonly way: Way
  readonly bucket: number | undefined
  readonly rows: readonly RowInFlight<Row>[]
  /** Absent when no row of the batch has any. */
  readonly args: readonly Outcome['args'][] | undefined
}

interface WaitingBatch<Row> {
  readonly outcome: string
  readonly way: Way
  readonly bucket: number | undefined
  readonly since: number
  readonly rows: RowInFlight<Row>[]
  /** One for each row, once one of them has any. */
  args: Outcome['args'][] | undefined
}

/** The arguments of most rows. */
const NO_ARGS = done().args

/** The largest batch goes first, unless a smaller one has waited for this long. */
const MAX_WAIT_MS = 100

/** Finished rows waiting to be settled. */
export class SettlementQueue<Row extends object> {
  readonly #orderingKey: string | undefined
  readonly #batches = new Map<string, WaitingBatch<Row>>()
  #size = 0
  #waitsSince = Number.POSITIVE_INFINITY

  constructor({ ordering }: Pick<LeaseTable, 'ordering'>) {
    this.#orderingKey = ordering?.key
  }

  get size(): number {
    return this.#size
  }

  /** How many rows the next statement could settle, without a limit. */
  nextSize(now: number): number {
    return this.#next(now)?.rows.length ?? 0
  }

  /** When the current wait for others began; a statement that is sent starts it anew for all that remain. */
  get waitsSince(): number {
    return this.#waitsSince
  }

  /**
   * There are as many rows as fit into a statement, or they have waited for others as long as they may. A statement
   * settles one outcome, so of several outcomes the first may not fill it: most rows have the same.
   */
  isDue(now: number, { batch, settleDelayMs }: Pick<WorkerSettings, 'batch' | 'settleDelayMs'>): boolean {
    return this.#size >= batch || now - this.#waitsSince >= settleDelayMs
  }

  add(row: RowInFlight<Row>, { name, args }: Outcome, now: number): void {
    const waiting = this.#batchFor(row, name, now)
    if (waiting.args === undefined && args !== NO_ARGS) waiting.args = waiting.rows.map(() => NO_ARGS)
    waiting.rows.push(row)
    waiting.args?.push(args)
    this.#size += 1
    this.#waitsSince = Math.min(this.#waitsSince, now)
  }

  #batchFor({ row, lease }: RowInFlight<Row>, outcome: string, now: number): WaitingBatch<Row> {
    const key: unknown = this.#orderingKey === undefined ? null : Reflect.get(row, this.#orderingKey)
    const way: Way = key === null || key === undefined ? 'order' : 'key'
    const name = nameOf(way, outcome, lease.bucket)
    const known = this.#batches.get(name)
    if (known !== undefined) return known
    const { bucket } = lease
    const waiting: WaitingBatch<Row> = { outcome, way, bucket, since: now, rows: [], args: undefined }
    this.#batches.set(name, waiting)
    return waiting
  }

  #next(now: number): WaitingBatch<Row> | undefined {
    let next: WaitingBatch<Row> | undefined
    for (const each of this.#batches.values()) {
      // Batches are in the order in which they began.
      if (now - each.since >= MAX_WAIT_MS) return each
      if (next === undefined || each.rows.length > next.rows.length) next = each
    }
    return next
  }

  /** The next batch, up to the limit. The rest of it starts its wait for others anew. */
  take(limit: number, now: number): SettlementBatch<Row> | undefined {
    const waiting = this.#next(now)
    if (waiting === undefined) return undefined
    const { outcome, way, bucket } = waiting
    const name = nameOf(way, outcome, bucket)
    const rows = waiting.rows.splice(0, limit)
    const args = waiting.args?.splice(0, limit)
    this.#batches.delete(name)
    if (waiting.rows.length > 0) this.#batches.set(name, { ...waiting, since: now })
    this.#size -= rows.length
    this.#waitsSince = this.#size === 0 ? Number.POSITIVE_INFINITY : now
    const hasArgs = args?.some((one) => Object.keys(one).length > 0) === true
    return { outcome, way, bucket, rows, args: hasArgs ? args : undefined }
  }

  /** The statement did not reach the database, or found rows locked. */
  putBack(batch: SettlementBatch<Row>, now: number): void {
    batch.rows.forEach((row, i) =>
      this.add(row, { name: batch.outcome, args: batch.args?.[i] ?? NO_ARGS }, now),
    )
  }
}

function nameOf(way: Way, outcome: string, bucket: number | undefined): string {
  return `${way} ${outcome} ${bucket}`
}

/** The batch as a lease store takes it. */
export function settlementOf({ rows, args }: SettlementBatch<unknown>): {
  readonly leases: readonly Lease[]
  readonly args?: readonly Outcome['args'][]
} {
  return { leases: rows.map(({ lease }) => lease), ...(args === undefined ? {} : { args }) }
}

/** The batch with those of its rows that fit. */
export function filterBatch<Row>(
  batch: SettlementBatch<Row>,
  fits: (row: RowInFlight<Row>) => boolean,
): SettlementBatch<Row> {
  const chosen = batch.rows.map(fits)
  const isChosen = (_: unknown, i: number): boolean => chosen[i] === true
  return { ...batch, rows: batch.rows.filter(isChosen), args: batch.args?.filter(isChosen) }
}
