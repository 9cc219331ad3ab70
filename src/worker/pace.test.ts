import { expect, it } from 'vitest'
import { Pace } from './pace.ts'

const POLL = { ms: 1_000, woken: false }
const EMPTY = { full: false, drained: true }

function look(pace: Pace, now: number, found = EMPTY, poll = POLL): void {
  pace.began(0)
  pace.found(found, now, poll)
  pace.ended()
}

it('while claims come back full it looks on without a pause, and side by side', () => {
  const pace = new Pace(() => 0)
  look(pace, 0, { full: true, drained: false })
  pace.began(0)
  expect(pace.mayLook(0)).toBe(true)
})

it('without a backlog one look at a time is enough', () => {
  const pace = new Pace(() => 0)
  look(pace, 0, { full: false, drained: false })
  expect(pace.mayLook(0)).toBe(true)
  pace.began(0)
  expect(pace.mayLook(0)).toBe(false)
})

it.each([
  [0, 1_000],
  [1, 1_500],
])(
  'an empty table is looked at again after the poll interval, jittered upwards (chance %d)',
  (chance, after) => {
    const pace = new Pace(() => chance)
    look(pace, 0)
    expect(pace.mayLook(after - 1)).toBe(false)
    expect(pace.nextAt(1)).toBe(after)
    expect(pace.mayLook(after)).toBe(true)
  },
)

it('where wake-ups arrive it polls five times as seldom', () => {
  const pace = new Pace(() => 0)
  look(pace, 0, EMPTY, { ms: 1_000, woken: true })
  expect(pace.nextAt(1)).toBe(5_000)
})

it('after a wake-up it looks at once, and twice more soon after: a neighbour may commit a moment later', () => {
  const pace = new Pace(() => 0)
  look(pace, 0)
  pace.wake()
  expect(pace.mayLook(1)).toBe(true)
  const after: number[] = []
  for (let now = 1, i = 0; i < 3; i += 1) {
    look(pace, now)
    after.push(pace.nextAt(now) - now)
    now = pace.nextAt(now)
  }
  expect(after).toEqual([25, 100, 1_000])
})

it('a database that is away is left alone for longer each time, up to a limit, and tried again at once when it is back', () => {
  const pace = new Pace(() => 0.999)
  let now = 0
  const waits = Array.from({ length: 12 }, () => {
    const wait = pace.failed(now, true)
    expect(pace.isAway(now + wait - 1)).toBe(true)
    expect(pace.mayLook(now + wait - 1)).toBe(false)
    expect(pace.nextAt(now)).toBe(now + wait)
    now += wait
    expect(pace.isAway(now)).toBe(false)
    return wait
  })
  expect(waits[0]).toBeLessThanOrEqual(200)
  expect(waits.toSorted((a, b) => a - b)).toEqual(waits)
  expect(Math.max(...waits)).toBeLessThanOrEqual(5_000)
  expect(pace.reached()).toBe(true)
  expect(pace.reached()).toBe(false)
  expect(pace.failed(now, true)).toBe(waits[0])
})

it('a row that is known to become due is looked for then, and not at the next poll', () => {
  const pace = new Pace(() => 0)
  look(pace, 0)
  pace.expect(405)
  pace.expect(310)
  pace.expect(301)
  expect(pace.nextAt(1)).toBe(320)
  expect(pace.mayLook(319)).toBe(false)
  expect(pace.mayLook(320)).toBe(true)
  pace.began(320)
  pace.found(EMPTY, 320, POLL)
  pace.ended()
  expect(pace.nextAt(321)).toBe(420)
})

it('what is expected does not cut a rest short', () => {
  const pace = new Pace(() => 0)
  look(pace, 0)
  pace.expect(100)
  pace.rest(2_000)
  expect(pace.nextAt(1)).toBe(2_000)
  expect(pace.mayLook(1_999)).toBe(false)
})
