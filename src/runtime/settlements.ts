import { type Handling } from './handling.ts'
import { type Outcome } from './outcome.ts'

export interface SettlementBatch<Row> {
  readonly outcome: string
  readonly rows: readonly Handling<Row>[]
  /** Absent when no row of the batch has any. */
  readonly args: readonly Outcome['args'][] | undefined
}

interface Waiting<Row> {
  readonly row: Handling<Row>
  readonly args: Outcome['args']
}

/** Finished rows waiting to be settled, by outcome: rows of one outcome share a statement. */
export class Settlements<Row> {
  readonly #byOutcome = new Map<string, Waiting<Row>[]>()
  #size = 0
  #oldestAt = Number.POSITIVE_INFINITY

  get size(): number {
    return this.#size
  }

  /** How many of them one statement could settle, if it took as many as it liked. */
  get largest(): number {
    let largest = 0
    for (const waiting of this.#byOutcome.values()) largest = Math.max(largest, waiting.length)
    return largest
  }

  /** Since when the one that has waited longest is waiting. */
  get oldestAt(): number {
    return this.#oldestAt
  }

  add(row: Handling<Row>, { outcome, args }: Outcome, now: number): void {
    const waiting = this.#byOutcome.get(outcome)
    if (waiting === undefined) this.#byOutcome.set(outcome, [{ row, args }])
    else waiting.push({ row, args })
    this.#size += 1
    this.#oldestAt = Math.min(this.#oldestAt, now)
  }

  /** The largest group, up to the limit. Those that wait behind it are not made to wait longer: they count as new. */
  take(limit: number, now: number): SettlementBatch<Row> | undefined {
    const [largest] = [...this.#byOutcome].toSorted(([, a], [, b]) => b.length - a.length)
    if (largest === undefined) return undefined
    const [outcome, waiting] = largest
    const taken = waiting.splice(0, limit)
    if (waiting.length === 0) this.#byOutcome.delete(outcome)
    this.#size -= taken.length
    this.#oldestAt = this.#size === 0 ? Number.POSITIVE_INFINITY : now
    const hasArgs = taken.some(({ args }) => Object.keys(args).length > 0)
    return {
      outcome,
      rows: taken.map(({ row }) => row),
      args: hasArgs ? taken.map(({ args }) => args) : undefined,
    }
  }

  /** The statement did not reach the database. */
  putBack(batch: SettlementBatch<Row>, now: number): void {
    batch.rows.forEach((row, i) =>
      this.add(row, { outcome: batch.outcome, args: batch.args?.[i] ?? {} }, now),
    )
  }
}
