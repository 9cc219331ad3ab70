import { expect, it } from 'vitest'
import { ClaimTiming } from './claim-timing.ts'

const POLL = { ms: 1_000, woken: false }
const EMPTY = { found: 0, more: false, drained: true }

function claim(timing: ClaimTiming, now: number, found = EMPTY, poll = POLL): void {
  timing.claimSent(0)
  timing.scanned(found, now, poll)
  timing.claimReturned()
}

it.each([0, 50])('while there are more rows, claims follow without a pause (found: %d)', (found) => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0, { found, more: true, drained: false })
  expect(timing.mayClaim(0)).toBe(true)
})

it.each([
  [1, 2],
  [4, 8],
  [5, 10],
  [50, 10],
])(
  'a claim that found %d rows and no more is followed by one after %d ms, and that one by a poll',
  (found, after) => {
    const timing = new ClaimTiming(() => 0)
    claim(timing, 100, { found, more: false, drained: true })
    expect([timing.mayClaim(99 + after), timing.mayClaim(100 + after)]).toEqual([false, true])
    claim(timing, 110)
    expect(timing.nextAt(111)).toBe(1_110)
  },
)

it('a wake-up does not shorten the pause after a claim that found few rows, and ends the wait for a poll', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 100, { found: 5, more: false, drained: true })
  timing.wake(101)
  expect([timing.mayClaim(109), timing.mayClaim(110)]).toEqual([false, true])
  claim(timing, 110)
  timing.wake(111)
  expect(timing.mayClaim(111)).toBe(true)
})

it('says when a second claim would find other rows than the one that is on its way', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 100, { found: 5, more: true, drained: false })
  timing.claimSent(101)
  timing.claimSent(101)
  timing.claimReturned()
  expect([timing.isClaiming, timing.sawMore]).toEqual([true, true])
  timing.claimReturned()
  timing.scanned({ found: 5, more: false, drained: true }, 102, POLL)
  expect([timing.isClaiming, timing.sawMore]).toEqual([false, false])
})

it('knows whether a claim is on its way', () => {
  const timing = new ClaimTiming(() => 0)
  timing.claimSent(0)
  expect(timing.isClaiming).toBe(true)
  timing.claimReturned()
  expect(timing.isClaiming).toBe(false)
})

it.each([
  [0, 1_000],
  [1, 1_500],
])(
  'the next claim of an empty table is due after the poll interval, jittered upwards (random %d)',
  (chance, after) => {
    const timing = new ClaimTiming(() => chance)
    claim(timing, 0)
    expect(timing.mayClaim(after - 1)).toBe(false)
    expect(timing.nextAt(1)).toBe(after)
    expect(timing.mayClaim(after)).toBe(true)
  },
)

it('a worker that receives wake-ups polls a fifth as often', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0, EMPTY, { ms: 1_000, woken: true })
  expect(timing.nextAt(1)).toBe(5_000)
})

it('after a wake-up a claim is due at once, and two more soon after: another transaction may commit a moment later', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0)
  timing.wake(0)
  expect(timing.mayClaim(1)).toBe(true)
  const after: number[] = []
  for (let now = 1, i = 0; i < 3; i += 1) {
    claim(timing, now)
    after.push(timing.nextAt(now) - now)
    now = timing.nextAt(now)
  }
  expect(after).toEqual([25, 100, 1_000])
})

it('of many workers that a wake-up reaches about three claim at once, and the others once each within 25 ms for each of them', () => {
  const workers = 16
  const timings = Array.from({ length: 8_000 }, () => new ClaimTiming(Math.random))
  for (const timing of timings) claim(timing, 0)
  const atOnce = timings.filter((timing) => timing.wake(0, workers))
  expect((atOnce.length / timings.length) * workers).toBeCloseTo(3, 0)
  const later = timings.filter((timing) => !atOnce.includes(timing))
  const due = later.map((timing) => timing.nextAt(0))
  // Rounded up to the next 20 ms.
  expect(Math.min(...due)).toBeLessThanOrEqual(20)
  expect(Math.max(...due)).toBeGreaterThan(380)
  expect(Math.max(...due)).toBeLessThanOrEqual(420)
  for (const timing of later) expect(timing.claimSent(420)).toBe(true)
})

it.each([
  [10, [25, 100, 1_000]],
  [11, [1_000]],
])('of %d workers, one that claims at once claims after %j ms once more', (workers, expected) => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0)
  expect(timing.wake(0, workers)).toBe(true)
  const after: number[] = []
  for (let now = 1; after.at(-1) !== 1_000; now = timing.nextAt(now)) {
    claim(timing, now)
    after.push(timing.nextAt(now) - now)
  }
  expect(after).toEqual(expected)
})

it('further wake-ups do not put off the claim that follows one, and do not add another', () => {
  const timing = new ClaimTiming(() => 0.5)
  claim(timing, 0)
  expect(timing.wake(0, 16)).toBe(false)
  expect(timing.wake(100, 16)).toBe(false)
  expect(timing.wake(190, 16)).toBe(false)
  expect(timing.nextAt(190)).toBe(200)
  claim(timing, 200)
  timing.claimSent(200)
  timing.claimReturned()
  expect(timing.nextAt(200)).toBeGreaterThan(1_000)
})

it('the backoff for a database that cannot be reached grows up to a limit, and ends when it answers', () => {
  const timing = new ClaimTiming(() => 0.999)
  let now = 0
  const waits = Array.from({ length: 12 }, () => {
    const wait = timing.failed(now, true)
    expect(timing.isBackingOff(now + wait - 1)).toBe(true)
    expect(timing.mayClaim(now + wait - 1)).toBe(false)
    expect(timing.nextAt(now)).toBe(now + wait)
    now += wait
    expect(timing.isBackingOff(now)).toBe(false)
    return wait
  })
  expect(waits[0]).toBeLessThanOrEqual(200)
  expect(waits.toSorted((a, b) => a - b)).toEqual(waits)
  expect(Math.max(...waits)).toBeLessThanOrEqual(5_000)
  expect(timing.succeeded()).toBe(true)
  expect(timing.succeeded()).toBe(false)
  expect(timing.failed(now, true)).toBe(waits[0])
})

it('a row that is known to become due is claimed then, and not at the next poll', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0)
  timing.expect(405)
  timing.expect(310)
  timing.expect(301)
  expect(timing.nextAt(1)).toBe(320)
  expect(timing.mayClaim(319)).toBe(false)
  expect(timing.mayClaim(320)).toBe(true)
  timing.claimSent(320)
  timing.scanned(EMPTY, 320, POLL)
  timing.claimReturned()
  expect(timing.nextAt(321)).toBe(420)
})

it('an expected row does not shorten a rest', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0)
  timing.expect(100)
  timing.rest(2_000)
  expect(timing.nextAt(1)).toBe(2_000)
  expect(timing.mayClaim(1_999)).toBe(false)
})

it('a claim knows whether an expected row has become due', () => {
  const timing = new ClaimTiming(() => 0)
  timing.expect(100)
  expect(timing.claimSent(99)).toBe(false)
  timing.claimReturned()
  expect(timing.claimSent(100)).toBe(true)
  timing.claimReturned()
  expect(timing.claimSent(101)).toBe(false)
})

it('RULE-020-012: claiming counts as failing until the next success, and a claim is due when the backoff is over, whatever made the failed one due', () => {
  const timing = new ClaimTiming(() => 0)
  claim(timing, 0)
  timing.expect(100)
  timing.claimSent(100)
  const waitMs = timing.failed(100, false)
  timing.claimReturned()
  expect(timing.isFailing).toBe(true)
  expect(timing.mayClaim(100 + waitMs)).toBe(true)
  timing.succeeded()
  expect(timing.isFailing).toBe(false)
})

it('a rest until the next poll ends earlier if a row is expected to become due', () => {
  const timing = new ClaimTiming(() => 0)
  timing.expect(200)
  timing.restUntilPoll(100, 1_000)
  expect([timing.mayClaim(199), timing.mayClaim(200)]).toEqual([false, true])
  timing.claimSent(200)
  timing.claimReturned()
  timing.restUntilPoll(200, 1_000)
  expect([timing.mayClaim(1_199), timing.mayClaim(1_200)]).toEqual([false, true])
})
