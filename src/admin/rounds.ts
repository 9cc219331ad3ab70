/** A round of upkeep: a little at a time, with a rest after each batch, until nothing is left or it is told to stop. */
import { setTimeout as delay } from 'node:timers/promises'
import { BEFORE_FIRST } from './buckets.ts'
import { invalid } from './request-checks.ts'
import type { Queryable } from '../postgres/queryable.ts'

export interface Gentleness {
  /** The most rows one statement looks at, and removes. Default 1,000. */
  readonly batch?: number | undefined
  /** How long to rest after a batch of which something was removed. Default 20. */
  readonly pauseMs?: number | undefined
}

export interface Round {
  readonly schema: string
  readonly batch: number
  readonly pauseMs: number
  readonly signal: AbortSignal | undefined
}

/** Calls it until it has nothing left to do; it says how much it did. */
export async function inBatches(
  round: Round,
  act: () => Promise<{ readonly done: number; readonly more: boolean }>,
): Promise<number> {
  let sum = 0
  while (round.signal?.aborted !== true) {
    const { done, more } = await act()
    sum += done
    if (!more) break
    await rest(round)
  }
  return sum
}

export interface Removal {
  readonly removed: number
  /** Null: there was nothing left to look at. */
  readonly lookedTo: string | null
  /** Whether any of them was written long enough ago. */
  readonly old: boolean
}

/**
 * Removes along the ids of a bucket, from the oldest on. The statement takes the bucket, the id behind which it looks,
 * how long rows are kept in milliseconds, and how many it looks at.
 */
export async function removeAlongIds(
  db: Queryable,
  round: Round,
  text: string,
  bucket: number,
  keepMs: number,
): Promise<number> {
  let place = BEFORE_FIRST
  return inBatches(round, async () => {
    const { rows } = await db.query<Removal>({ text, values: [bucket, place, keepMs, round.batch] })
    const { removed = 0, lookedTo = null, old = false } = rows[0] ?? {}
    place = lookedTo ?? place
    return { done: removed, more: lookedTo !== null && old }
  })
}

async function rest({ pauseMs, signal }: Round): Promise<void> {
  if (pauseMs === 0) return
  // Being told to stop ends the rest; the loop sees the signal itself.
  await delay(pauseMs, undefined, signal === undefined ? {} : { signal }).catch(() => undefined)
}

const LARGEST_BATCH = 10_000

export function checkGentleness({
  batch = 1_000,
  pauseMs = 20,
}: Gentleness): Pick<Round, 'batch' | 'pauseMs'> {
  if (!isDuration(pauseMs)) throw invalid('pauseMs', pauseMs, 'Give a number of milliseconds, 0 or more.')
  if (!Number.isInteger(batch) || batch < 1 || batch > LARGEST_BATCH) {
    throw invalid('batch', batch, `Give a whole number from 1 to ${LARGEST_BATCH}.`)
  }
  return { batch, pauseMs }
}

/** How long something is kept; null is for ever. */
export function checkKept(kept: Readonly<Record<string, number | null>>): void {
  for (const [name, value] of Object.entries(kept)) {
    if (value === null || isDuration(value)) continue
    throw invalid(name, value, 'Give a number of milliseconds, 0 or more, or null to keep them for ever.')
  }
}

function isDuration(ms: number): boolean {
  return ms >= 0 && Number.isFinite(ms)
}
