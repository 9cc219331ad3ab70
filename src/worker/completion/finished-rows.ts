import type { RowInFlight } from '../rows-in-flight.ts'
import type { WorkerSettings } from '../settings.ts'
import { done, type Outcome } from './outcome.ts'

/** Rows that one statement settles. */
export interface FinishedBatch<Row> {
  readonly outcome: string
  readonly rows: readonly RowInFlight<Row>[]
  /** Absent when no row of the batch has any. */
  readonly args: readonly Outcome['args'][] | undefined
}

/** The arguments of most rows. */
const NO_ARGS = done().args

interface Finished<Row> {
  readonly row: RowInFlight<Row>
  readonly args: Outcome['args']
}

/** Finished rows waiting to be settled, by their outcome. */
export class FinishedRows<Row extends object> {
  readonly #byOutcome = new Map<string, Finished<Row>[]>()
  #size = 0
  #waitsSince = Number.POSITIVE_INFINITY

  get size(): number {
    return this.#size
  }

  /** When the current wait for others began; a pipeline that is sent starts it anew for all that remain. */
  get waitsSince(): number {
    return this.#waitsSince
  }

  /** There are as many rows as fit into a pipeline, or they have waited for others as long as they may. */
  isDue(now: number, { batch, settleDelayMs }: Pick<WorkerSettings, 'batch' | 'settleDelayMs'>): boolean {
    return this.#size >= batch || now - this.#waitsSince >= settleDelayMs
  }

  add(row: RowInFlight<Row>, { name, args }: Outcome, now: number): void {
    const alike = this.#byOutcome.get(name)
    if (alike === undefined) this.#byOutcome.set(name, [{ row, args }])
    else alike.push({ row, args })
    this.#size += 1
    this.#waitsSince = Math.min(this.#waitsSince, now)
  }

  /** Up to the limit, those of the outcome that has waited for longest first. */
  take(limit: number, now: number): FinishedBatch<Row>[] {
    const batches: FinishedBatch<Row>[] = []
    let free = limit
    for (const [outcome, waiting] of this.#byOutcome) {
      if (free === 0) break
      this.#byOutcome.delete(outcome)
      const taken = waiting.splice(0, free)
      if (waiting.length > 0) this.#byOutcome.set(outcome, waiting)
      free -= taken.length
      const hasArgs = taken.some(({ args }) => args !== NO_ARGS && Object.keys(args).length > 0)
      const args = hasArgs ? taken.map((each) => each.args) : undefined
      batches.push({ outcome, rows: taken.map(({ row }) => row), args })
    }
    this.#size -= limit - free
    this.#waitsSince = this.#size === 0 ? Number.POSITIVE_INFINITY : now
    return batches
  }

  /** The pipeline did not reach the database, or found rows locked. */
  putBack({ outcome, rows, args }: FinishedBatch<Row>, now: number): void {
    for (const [i, row] of rows.entries()) this.add(row, { name: outcome, args: args?.[i] ?? NO_ARGS }, now)
  }
}

/** The batch with those of its rows that fit. */
export function filterBatch<Row>(
  batch: FinishedBatch<Row>,
  fits: (row: RowInFlight<Row>) => boolean,
): FinishedBatch<Row> {
  const chosen = batch.rows.map(fits)
  const isChosen = (_: unknown, i: number): boolean => chosen[i] === true
  return { ...batch, rows: batch.rows.filter(isChosen), args: batch.args?.filter(isChosen) }
}
