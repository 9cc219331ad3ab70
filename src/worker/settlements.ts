import type { Lease } from '../lease/lease.ts'
import type { LeaseTable } from '../lease/table.ts'
import type { Handling } from './handling.ts'
import { done, type Outcome } from './outcome.ts'
import type { WorkerSettings } from './settings.ts'

export interface SettlementBatch<Row> {
  readonly outcome: string
  readonly rows: readonly Handling<Row>[]
  /** Absent when no row of the batch has any. */
  readonly args: readonly Outcome['args'][] | undefined
}

interface Waiting<Row> {
  readonly rows: Handling<Row>[]
  /** Beside the rows, once one of them has any. */
  args: Outcome['args'][] | undefined
}

/** Those of most rows. */
const NONE = done().args

/** Finished rows waiting to be settled, by outcome: rows of one outcome share a statement. */
export class Settlements<Row> {
  readonly #byOutcome = new Map<string, Waiting<Row>>()
  #size = 0
  #oldestAt = Number.POSITIVE_INFINITY

  get size(): number {
    return this.#size
  }

  /** How many of them one statement could settle, if it took as many as it liked. */
  get largest(): number {
    let largest = 0
    for (const { rows } of this.#byOutcome.values()) largest = Math.max(largest, rows.length)
    return largest
  }

  /** Since when the one that has waited longest is waiting. */
  get oldestAt(): number {
    return this.#oldestAt
  }

  /** They are enough for a statement, or have waited for company as long as they may. */
  isDue(now: number, { batch, settleDelayMs }: Pick<WorkerSettings, 'batch' | 'settleDelayMs'>): boolean {
    return this.#size >= batch || now - this.#oldestAt >= settleDelayMs
  }

  add(row: Handling<Row>, { outcome, args }: Outcome, now: number): void {
    const waiting = this.#waitingFor(outcome)
    if (waiting.args === undefined && args !== NONE) waiting.args = waiting.rows.map(() => NONE)
    waiting.rows.push(row)
    waiting.args?.push(args)
    this.#size += 1
    this.#oldestAt = Math.min(this.#oldestAt, now)
  }

  #waitingFor(outcome: string): Waiting<Row> {
    const known = this.#byOutcome.get(outcome)
    if (known !== undefined) return known
    const waiting: Waiting<Row> = { rows: [], args: undefined }
    this.#byOutcome.set(outcome, waiting)
    return waiting
  }

  /** The largest group, up to the limit. Those that wait behind it are not made to wait longer: they count as new. */
  take(limit: number, now: number): SettlementBatch<Row> | undefined {
    const [largest] = [...this.#byOutcome].toSorted(([, a], [, b]) => b.rows.length - a.rows.length)
    if (largest === undefined) return undefined
    const [outcome, waiting] = largest
    const rows = waiting.rows.splice(0, limit)
    const args = waiting.args?.splice(0, limit)
    if (waiting.rows.length === 0) this.#byOutcome.delete(outcome)
    this.#size -= rows.length
    this.#oldestAt = this.#size === 0 ? Number.POSITIVE_INFINITY : now
    const hasArgs = args?.some((one) => Object.keys(one).length > 0) === true
    return { outcome, rows, args: hasArgs ? args : undefined }
  }

  /** The statement did not reach the database. */
  putBack(batch: SettlementBatch<Row>, now: number): void {
    batch.rows.forEach((row, i) =>
      this.add(row, { outcome: batch.outcome, args: batch.args?.[i] ?? {} }, now),
    )
  }
}

/** The batch as a lease store takes it. */
export function settlementOf({ outcome, rows, args }: SettlementBatch<unknown>): {
  readonly outcome: string
  readonly leases: readonly Lease[]
  readonly args?: readonly Outcome['args'][]
} {
  return { outcome, leases: rows.map(({ lease }) => lease), ...(args === undefined ? {} : { args }) }
}

/** Who waits behind the rows of a batch is claimed in the statement that settles them; a claim spares half for others. */
export function followersOf<Row extends object>(
  batch: SettlementBatch<Row> | undefined,
  { ordering, lanes }: LeaseTable,
): number {
  const key = ordering?.key
  if (batch === undefined || key === undefined || lanes !== undefined) return 0
  return 2 * batch.rows.filter(({ row }) => typeof Reflect.get(row, key) === 'string').length
}
