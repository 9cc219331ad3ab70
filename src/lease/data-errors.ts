/**
 * One bad row stops nobody. A statement of many rows that fails with a data error is repeated in halves down to the row
 * that causes it; that row is reported, and left alone with a growing delay.
 */
import { type Clock, systemClock } from '../clock.ts'
import { isServerError } from '../postgres/failures.ts'

/** Data exceptions, integrity constraint violations, and what a trigger raises. */
const DATA_ERRORS = /^(?:22|23|P0)/

export function isDataError(error: unknown): boolean {
  return isServerError(error) && error.code !== undefined && DATA_ERRORS.test(error.code)
}

/** Another claim took a row of the same ordering key at the same moment; repeated, the claim sees it. */
export function isUniqueViolation(error: unknown): boolean {
  return isServerError(error) && error.code === '23505'
}

/** Two pipelines waited for each other's rows; one of them was rolled back. */
export function isDeadlock(error: unknown): boolean {
  return isServerError(error) && error.code === '40P01'
}

/** Runs the statement for all items or, where a data error stops it, for as many as possible. */
export async function inHalves<Item, Result>(
  items: readonly Item[],
  run: (items: readonly Item[]) => Promise<Result>,
  onCulprit: (item: Item, error: unknown) => void,
): Promise<Result[]> {
  try {
    return [await run(items)]
  } catch (error) {
    if (!isDataError(error)) throw error
    const [only] = items
    if (items.length <= 1) {
      if (only !== undefined) onCulprit(only, error)
      return []
    }
    const half = Math.ceil(items.length / 2)
    return [
      ...(await inHalves(items.slice(0, half), run, onCulprit)),
      ...(await inHalves(items.slice(half), run, onCulprit)),
    ]
  }
}

/** The verb that a row stopped. */
export type StoppedVerb = 'claim' | 'renew' | 'settle' | 'release' | 'reap'

export interface DataErrorReport {
  readonly verb: StoppedVerb
  readonly id: string
  readonly error: unknown
  /** How long the row is left alone; absent where that is for the caller to decide. */
  readonly retryInMs?: number
}

const FIRST_DELAY_MS = 1_000
const LONGEST_DELAY_MS = 300_000

/** Rows that are left alone for a while, because a statement that touched them failed. */
export class ExcludedRows {
  readonly #clock: Clock
  readonly #rows = new Map<string, { readonly until: number; readonly delayMs: number }>()

  constructor(clock: Clock = systemClock) {
    this.#clock = clock
  }

  /** Leaves the row alone, twice as long as the last time. Returns for how long. */
  add(id: string): number {
    const delayMs = Math.min(LONGEST_DELAY_MS, (this.#rows.get(id)?.delayMs ?? FIRST_DELAY_MS / 2) * 2)
    this.#rows.set(id, { until: this.#clock.monotonicNow() + delayMs, delayMs })
    return delayMs
  }

  /** The rows to leave alone now. A row whose delay is over is tried; one whose delay has long been over is forgotten. */
  current(): string[] {
    if (this.#rows.size === 0) return []
    const now = this.#clock.monotonicNow()
    // Remembered for longer than any interval of a reaper, so that the delay grows.
    for (const [id, { until }] of this.#rows) if (now > until + 2 * LONGEST_DELAY_MS) this.#rows.delete(id)
    return [...this.#rows].flatMap(([id, { until }]) => (now < until ? [id] : []))
  }
}
