import { expect, it } from 'vitest'
import { attemptsOf, DEFAULT_SCHEDULE, usableSchedule, waitAfter } from './schedule.ts'
import { webhookTable } from './table.ts'

const HOUR = 3_600_000

it('retries go on for about three days', () => {
  const total = DEFAULT_SCHEDULE.reduce((sum, wait) => sum + wait, 0)
  expect(total / HOUR).toBeGreaterThan(72)
  expect(total / HOUR).toBeLessThan(80)
})

it('the schedule says how often a delivery is attempted, and the table follows it', () => {
  expect(webhookTable().attempts?.max).toBe(10)
  expect(webhookTable({ schedule: [1, 2] }).attempts?.max).toBe(attemptsOf([1, 2]))
})

it('a wait is left to chance by a tenth on either side', () => {
  expect([waitAfter(1, [1_000], () => 0), waitAfter(1, [1_000], () => 1)]).toEqual([900, 1_100])
})

it('there is none after the last attempt', () => {
  expect([waitAfter(2, [1_000], () => 0), waitAfter(1, [], () => 0)]).toEqual([undefined, undefined])
})

it.each([[[5, -1]], [[5, Number.NaN]], [[5, 1e12]]])(
  'refuses %j, and says which wait is wrong',
  (schedule) => {
    expect(() => usableSchedule(schedule)).toThrow(`schedule[1] of the dispatcher is ${schedule[1]}`)
  },
)
