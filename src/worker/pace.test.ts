import { expect, it } from 'vitest'
import { Pace } from './pace.ts'

const POLL = { ms: 1_000, woken: false }
const EMPTY = { more: false, drained: true }

function claim(pace: Pace, now: number, found = EMPTY, poll = POLL): void {
  pace.began(0)
  pace.found(found, now, poll)
  pace.ended()
}

it('while there are more rows it claims without a pause, and side by side', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0, { more: true, drained: false })
  pace.began(0)
  expect(pace.mayClaim(0)).toBe(true)
})

it('without a backlog it sends one claim at a time', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0, { more: false, drained: false })
  expect(pace.mayClaim(0)).toBe(true)
  pace.began(0)
  expect(pace.mayClaim(0)).toBe(false)
})

it.each([
  [0, 1_000],
  [1, 1_500],
])(
  'the next claim of an empty table is due after the poll interval, jittered upwards (chance %d)',
  (chance, after) => {
    const pace = new Pace(() => chance)
    claim(pace, 0)
    expect(pace.mayClaim(after - 1)).toBe(false)
    expect(pace.nextAt(1)).toBe(after)
    expect(pace.mayClaim(after)).toBe(true)
  },
)

it('where wake-ups arrive it polls five times as seldom', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0, EMPTY, { ms: 1_000, woken: true })
  expect(pace.nextAt(1)).toBe(5_000)
})

it('after a wake-up it claims at once, and twice more soon after: another transaction may commit a moment later', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0)
  pace.wake()
  expect(pace.mayClaim(1)).toBe(true)
  const after: number[] = []
  for (let now = 1, i = 0; i < 3; i += 1) {
    claim(pace, now)
    after.push(pace.nextAt(now) - now)
    now = pace.nextAt(now)
  }
  expect(after).toEqual([25, 100, 1_000])
})

it('a database that cannot be reached is left alone for longer each time, up to a limit, and not at all once it answers', () => {
  const pace = new Pace(() => 0.999)
  let now = 0
  const waits = Array.from({ length: 12 }, () => {
    const wait = pace.failed(now, true)
    expect(pace.isBackingOff(now + wait - 1)).toBe(true)
    expect(pace.mayClaim(now + wait - 1)).toBe(false)
    expect(pace.nextAt(now)).toBe(now + wait)
    now += wait
    expect(pace.isBackingOff(now)).toBe(false)
    return wait
  })
  expect(waits[0]).toBeLessThanOrEqual(200)
  expect(waits.toSorted((a, b) => a - b)).toEqual(waits)
  expect(Math.max(...waits)).toBeLessThanOrEqual(5_000)
  expect(pace.reached()).toBe(true)
  expect(pace.reached()).toBe(false)
  expect(pace.failed(now, true)).toBe(waits[0])
})

it('a row that is known to become due is claimed then, and not at the next poll', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0)
  pace.expect(405)
  pace.expect(310)
  pace.expect(301)
  expect(pace.nextAt(1)).toBe(320)
  expect(pace.mayClaim(319)).toBe(false)
  expect(pace.mayClaim(320)).toBe(true)
  pace.began(320)
  pace.found(EMPTY, 320, POLL)
  pace.ended()
  expect(pace.nextAt(321)).toBe(420)
})

it('what is expected does not cut a rest short', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0)
  pace.expect(100)
  pace.rest(2_000)
  expect(pace.nextAt(1)).toBe(2_000)
  expect(pace.mayClaim(1_999)).toBe(false)
})

it('a claim tells whether a row has become due that was expected', () => {
  const pace = new Pace(() => 0)
  pace.expect(100)
  expect(pace.began(99)).toBe(false)
  pace.ended()
  expect(pace.began(100)).toBe(true)
  pace.ended()
  expect(pace.began(101)).toBe(false)
})

it('RULE-020-012: it is failing from a failure to the next success, and the next claim is due when the wait is over, whatever made the failed one due', () => {
  const pace = new Pace(() => 0)
  claim(pace, 0)
  pace.expect(100)
  pace.began(100)
  const waitMs = pace.failed(100, false)
  pace.ended()
  expect(pace.isFailing).toBe(true)
  expect(pace.mayClaim(100 + waitMs)).toBe(true)
  pace.reached()
  expect(pace.isFailing).toBe(false)
})
