import { expect, it } from 'vitest'
import { type RecentSyncs, WINDOWS_MS } from './chunk-counts.ts'
import { paceOf, timeLeft } from './progress.ts'

/** Chunks and rows within a minute, a quarter of an hour and a day. */
function recent(
  counts: readonly (readonly [number, number])[],
  more: Partial<RecentSyncs> & { readonly firstAgoMs?: number } = {},
): RecentSyncs {
  const { firstAgoMs = 0, ...rest } = more
  const windows = WINDOWS_MS.map((ms, i) => ({
    ms,
    chunks: counts[i]?.[0] ?? 0,
    rows: counts[i]?.[1] ?? 0,
    firstAgoMs,
  }))
  return { ageMs: 86_400_000, plannedAgoMs: 86_400_000, windows, ...rest }
}

it('the last minute counts where enough was done in it', () => {
  const busy = recent([
    [120, 6_000],
    [9_000, 1],
    [90_000, 1],
  ])
  expect(paceOf(busy)).toEqual({ chunksPerMinute: 120, rowsPerSecond: 100 })
})

it('the pace of slow chunks is taken over a longer window', () => {
  const slow = recent([
    [2, 20],
    [15, 900],
    [90, 1],
  ])
  expect(paceOf(slow)).toEqual({ chunksPerMinute: 1, rowsPerSecond: 1 })
  const slower = recent([
    [0, 0],
    [1, 10],
    [6, 8_640],
  ])
  expect(paceOf(slower)?.chunksPerMinute).toBeCloseTo(6 / 1_440)
})

it('a young job is as old as its plan, not as the time it waited to be planned', () => {
  const counts = [
    [20, 200],
    [20, 200],
    [20, 200],
  ] as const
  const planned = recent(counts, { ageMs: 3_600_000, plannedAgoMs: 10_000, firstAgoMs: 9_000 })
  expect(paceOf(planned)).toEqual({ chunksPerMinute: 120, rowsPerSecond: 20 })
  // Its plan was a stream: chunks were done before it was complete.
  const streamed = recent(counts, { ageMs: 20_000, plannedAgoMs: 1_000, firstAgoMs: 15_000 })
  expect(paceOf(streamed)).toEqual({ chunksPerMinute: 60, rowsPerSecond: 10 })
})

it('the pace is unknown while nothing was done, or only just now', () => {
  expect(paceOf(recent([]))).toBeUndefined()
  expect(
    paceOf(
      recent(
        [
          [5, 5],
          [5, 5],
          [5, 5],
        ],
        { ageMs: 900, plannedAgoMs: 900 },
      ),
    ),
  ).toBeUndefined()
})

it('the remaining time is that of the open chunks at this pace', () => {
  expect(timeLeft({ chunksPerMinute: 30, rowsPerSecond: 0 }, 15)).toBe(30_000)
  expect(timeLeft(undefined, 15)).toBeUndefined()
})
