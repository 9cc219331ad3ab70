/** How quickly a job goes on, from what was synced in the recent past. */

/** What was synced for a job within so many milliseconds. */
export interface RecentWindow {
  readonly ms: number
  readonly chunks: number
  readonly rows: number
  /** How long ago the first of them was done. */
  readonly firstAgoMs: number | null
}

export interface RecentSyncs {
  readonly ageMs: number
  /** Null: not all of its chunks are known. */
  readonly plannedAgoMs: number | null
  /** From the shortest to the longest. */
  readonly windows: readonly RecentWindow[]
}

export interface Pace {
  readonly rowsPerSecond: number
  readonly chunksPerMinute: number
}

/** A minute, a quarter of an hour, a day: chunks take from milliseconds to hours. */
export const WINDOWS_MS = [60_000, 900_000, 86_400_000] as const

/** So many chunks say how long one takes; with fewer, a longer time is looked at. */
const ENOUGH = 10
/** Before this nobody knows. */
const SHORTEST_MS = 1_000

/** Undefined when nothing was synced yet, or only just now. */
export function paceOf({ windows, ageMs, plannedAgoMs }: RecentSyncs): Pace | undefined {
  const window = windows.find(({ chunks }) => chunks >= ENOUGH) ?? windows.at(-1)
  if (window === undefined || window.chunks === 0) return undefined
  const { ms, chunks, rows, firstAgoMs } = window
  // A job waits its turn before it is planned. Where chunks were done before the plan was complete, it says nothing.
  const workedMs = plannedAgoMs !== null && plannedAgoMs >= (firstAgoMs ?? 0) ? plannedAgoMs : ageMs
  const elapsedMs = Math.min(ms, workedMs)
  if (elapsedMs < SHORTEST_MS) return undefined
  return { rowsPerSecond: (rows / elapsedMs) * 1_000, chunksPerMinute: (chunks / elapsedMs) * 60_000 }
}

/** How long so many chunks take at this pace. */
export function timeLeft(pace: Pace | undefined, open: number): number | undefined {
  return pace === undefined ? undefined : (open / pace.chunksPerMinute) * 60_000
}
