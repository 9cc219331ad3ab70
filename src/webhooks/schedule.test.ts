import { expect, it } from 'vitest'
import { DEFAULT_SCHEDULE, maxAttempts, retryDelayMs, validateSchedule } from './schedule.ts'
import { webhookTable } from './table.ts'

const HOUR = 3_600_000

it('the default schedule retries for about three days', () => {
  const total = DEFAULT_SCHEDULE.reduce((sum, delayMs) => sum + delayMs, 0)
  expect(total / HOUR).toBeGreaterThan(72)
  expect(total / HOUR).toBeLessThan(80)
})

it('the table allows one attempt more than the schedule has delays', () => {
  expect(webhookTable().attempts?.max).toBe(10)
  expect(webhookTable({ schedule: [1, 2] }).attempts?.max).toBe(maxAttempts([1, 2]))
})

it('a delay varies randomly by up to a tenth in both directions', () => {
  expect([retryDelayMs(1, [1_000], () => 0), retryDelayMs(1, [1_000], () => 1)]).toEqual([900, 1_100])
})

it('there is no delay after the last attempt', () => {
  expect([retryDelayMs(2, [1_000], () => 0), retryDelayMs(1, [], () => 0)]).toEqual([undefined, undefined])
})

it.each([[[5, -1]], [[5, Number.NaN]], [[5, 1e12]]])(
  'the schedule %j is refused, and the error names the invalid delay',
  (schedule) => {
    expect(() => validateSchedule(schedule)).toThrow(`schedule[1] of the dispatcher is ${schedule[1]}`)
  },
)
