/**
 * What is bounded for an endpoint is bounded for all dispatchers together: each takes its share. Whole numbers that do
 * not divide go to some of them, to others for each endpoint, so that one dispatcher does not get all the remainders.
 */
export interface Share {
  /** How many dispatchers there are. */
  readonly of: number
  /** Which one this is, from 0. */
  readonly rank: number
}

export const ALONE: Share = { of: 1, rank: 0 }

export function shareOf(worker: string, dispatchers: readonly string[]): Share {
  const all = dispatchers.includes(worker) ? dispatchers : [...dispatchers, worker].toSorted()
  return { of: all.length, rank: all.indexOf(worker) }
}

/** Its part of a whole number; all parts together are that number. */
export function part(whole: number, endpoint: string, { of, rank }: Share): number {
  const turn = (rank + hash(endpoint)) % of
  return Math.floor(whole / of) + (turn < whole % of ? 1 : 0)
}

function hash(text: string): number {
  let sum = 0
  for (let i = 0; i < text.length; i += 1) sum = (sum * 31 + text.charCodeAt(i)) >>> 0
  return sum
}
