import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createLimiter, type Limits } from './limits.ts'

function limiter(limits: Omit<Limits<string>, 'key'>) {
  const clock = { now: 0, monotonicNow: () => clock.now }
  return { clock, limiter: createLimiter({ key: (row: string) => row, ...limits }, clock) }
}

describe('concurrency per key', () => {
  it('a key without room waits for one of its own rows to end; other keys do not', () => {
    const { limiter: tested } = limiter({ concurrency: 2 })
    expect([tested.start('a'), tested.start('a'), tested.start('a'), tested.start('b')]).toEqual([
      0,
      0,
      Number.POSITIVE_INFINITY,
      0,
    ])
    tested.ended('b')
    expect(tested.start('a')).toBe(Number.POSITIVE_INFINITY)
    tested.ended('a')
    expect(tested.start('a')).toBe(0)
  })
})

describe('rate per key', () => {
  it('starts the burst at once, and says how long the next row has to wait', () => {
    const { clock, limiter: tested } = limiter({ rate: { perSecond: 10, burst: 3 } })
    expect([1, 2, 3, 4].map(() => tested.start('a'))).toEqual([0, 0, 0, 100])
    clock.now = 99
    expect(tested.start('a')).toBeGreaterThan(0)
    clock.now = 100
    expect(tested.start('a')).toBe(0)
    clock.now = 60_000
    expect([1, 2, 3, 4].map(() => tested.start('a'))).toEqual([0, 0, 0, 100])
  })

  it('counts the part of a start that has been gained so far towards the wait', () => {
    const { clock, limiter: tested } = limiter({ rate: { perSecond: 10, burst: 1 } })
    expect([tested.start('a'), tested.start('a')]).toEqual([0, 100])
    clock.now = 75
    expect(tested.start('a')).toBe(25)
  })

  it('RULE-020-042: keys that are idle and have their burst are forgotten, and no others', () => {
    const { clock, limiter: tested } = limiter({ concurrency: 1, rate: { perSecond: 1, burst: 1 } })
    expect(tested.start('running')).toBe(0)
    expect(tested.start('waiting')).toBe(0)
    tested.ended('waiting')
    for (let i = 0; i < 1_000; i += 1) {
      expect(tested.start(String(i))).toBe(0)
      tested.ended(String(i))
    }
    expect(tested.start('running')).toBe(Number.POSITIVE_INFINITY)
    expect(tested.start('waiting')).toBe(1_000)
    clock.now = 10_000
    expect(tested.start('waiting')).toBe(0)
    expect(tested.start('running')).toBe(Number.POSITIVE_INFINITY)
    tested.ended('never started')
  })

  it('lets a row start after the wait that it named, whatever the rate', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.01, max: 5_000, noNaN: true }),
        fc.integer({ min: 1, max: 20 }),
        (perSecond, burst) => {
          const { clock, limiter: tested } = limiter({ rate: { perSecond, burst } })
          for (let i = 0; i < burst; i += 1) expect(tested.start('a')).toBe(0)
          clock.now += tested.start('a')
          // A timer never fires early, and fires on whole milliseconds.
          clock.now = Math.ceil(clock.now)
          expect(tested.start('a')).toBe(0)
        },
      ),
    )
  })
})

it('RULE-020-041: no key ever has more rows running than allowed, nor more started in any span of time than burst and rate allow', () => {
  const step = fc.record({
    key: fc.constantFrom('a', 'b', 'c'),
    what: fc.constantFrom('start', 'start', 'end'),
    after: fc.nat(300),
  })
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 1, max: 20 }),
      fc.integer({ min: 1, max: 5 }),
      fc.array(step, { maxLength: 200 }),
      (concurrency, perSecond, burst, steps) => {
        const { clock, limiter: tested } = limiter({ concurrency, rate: { perSecond, burst } })
        const running = new Map<string, number>()
        const startedAt = new Map<string, number[]>()
        for (const { key, what, after } of steps) {
          clock.now += after
          const runs = running.get(key) ?? 0
          if (what === 'end' && runs > 0) {
            tested.ended(key)
            running.set(key, runs - 1)
          } else if (what === 'start' && tested.start(key) === 0) {
            running.set(key, runs + 1)
            startedAt.set(key, [...(startedAt.get(key) ?? []), clock.now])
          }
          expect(running.get(key) ?? 0).toBeLessThanOrEqual(concurrency)
        }
        for (const times of startedAt.values()) {
          times.forEach((from, i) =>
            times.slice(i).forEach((to, further) => {
              expect(further + 1).toBeLessThanOrEqual(burst + ((to - from) * perSecond) / 1_000 + 1e-6)
            }),
          )
        }
      },
    ),
  )
})

it('idle keys are forgotten without losing the tokens they have', () => {
  const { clock, limiter: tested } = limiter({ concurrency: 1, rate: { perSecond: 1, burst: 1 } })
  expect(tested.start('busy')).toBe(0)
  for (let i = 0; i < 2_500; i += 1) {
    tested.start(`key ${i}`)
    tested.ended(`key ${i}`)
  }
  clock.now = 900
  expect(tested.start('key 2499')).toBeGreaterThan(0)
  clock.now = 5_000
  for (let i = 0; i < 2_500; i += 1) tested.start(`another ${i}`)
  expect(tested.start('busy')).toBe(Number.POSITIVE_INFINITY)
})

it.each([
  [{ concurrency: 0 }, /limits\.concurrency is 0/],
  [{ concurrency: 1.5 }, /limits\.concurrency is 1\.5/],
  [{ rate: { perSecond: 0, burst: 1 } }, /limits\.rate\.perSecond is 0/],
  [{ rate: { perSecond: Number.NaN, burst: 1 } }, /limits\.rate\.perSecond is NaN/],
  [{ rate: { perSecond: 1, burst: 0.5 } }, /limits\.rate\.burst is 0\.5/],
])('limits that cannot work are refused with the value: %j', (limits, message) => {
  expect(() => limiter(limits)).toThrow(
    expect.objectContaining({ code: 'SETTING_INVALID', message: expect.stringMatching(message) }),
  )
})
