import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { backoffSteps, DEFAULT_RETRY, retryDelay, retryPolicy, type RetryPolicy } from './retry-policy.ts'

const policies = fc
  .record({
    firstMs: fc.nat(1e6),
    factor: fc.double({ min: 1, max: 10, noNaN: true }),
    beyond: fc.nat(1e8),
    jitter: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  .map(({ firstMs, factor, beyond, jitter }): RetryPolicy => {
    return { firstMs, factor, jitter, longestMs: firstMs + beyond }
  })
const chance = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true })

describe('the delay of a failed row', () => {
  it('the delay is never longer than the longest, nor shorter than the first less its jitter', () => {
    fc.assert(
      fc.property(policies, fc.integer({ min: 1, max: 10_000 }), chance, (policy, attempt, random) => {
        const wait = retryDelay(attempt, policy, () => random)
        expect(wait).toBeLessThanOrEqual(policy.longestMs)
        // Rounding of the last digit apart.
        expect(wait).toBeGreaterThanOrEqual(policy.firstMs * (1 - policy.jitter) * (1 - 1e-12))
      }),
    )
  })

  it('without jitter the delay does not shrink with further attempts', () => {
    fc.assert(
      fc.property(policies, fc.integer({ min: 1, max: 2_000 }), chance, (policy, attempt, random) => {
        const [now, next] = [attempt, attempt + 1].map((n) => retryDelay(n, policy, () => random))
        expect(next).toBeGreaterThanOrEqual(now ?? Infinity)
      }),
    )
  })

  it('the delay grows by the factor, and jitter takes away up to its share', () => {
    const waits = (random: number): number[] =>
      [1, 2, 3, 4].map((attempt) => retryDelay(attempt, { ...DEFAULT_RETRY, longestMs: 5_000 }, () => random))
    expect(waits(0)).toEqual([1_000, 2_000, 4_000, 5_000])
    expect(waits(1)).toEqual([750, 1_500, 3_000, 3_750])
  })
})

it('the steps of a policy are its delays without jitter, up to the one that stays', () => {
  expect(backoffSteps({ ...DEFAULT_RETRY, longestMs: 5_000 })).toEqual([1_000, 2_000, 4_000, 5_000])
  expect(backoffSteps({ firstMs: 10, factor: 1, longestMs: 20, jitter: 1 })).toEqual([10])
  expect(backoffSteps({ firstMs: 1, factor: 1.01, longestMs: 1e9, jitter: 0 })).toHaveLength(64)
  fc.assert(
    fc.property(policies, fc.integer({ min: 1, max: 60 }), (policy, attempt) => {
      const steps = backoffSteps(policy)
      const delay = retryDelay(attempt, policy, () => 0)
      expect(steps[Math.min(attempt, steps.length) - 1]).toBe(delay)
    }),
  )
})

describe('a policy', () => {
  it.each([
    { firstMs: 0, factor: 1, longestMs: 0, jitter: 0 },
    { firstMs: 5, factor: 1, longestMs: 5, jitter: 1 },
  ])('a policy at the limits of what can work is accepted: %j', (policy) => {
    expect(retryPolicy(policy)).toEqual(policy)
  })

  it('a policy is completed from the defaults', () => {
    expect(retryPolicy({ firstMs: 3 })).toEqual({ ...DEFAULT_RETRY, firstMs: 3 })
  })

  it.each([
    [{ firstMs: -1 }, /retry\.firstMs is -1/],
    [{ firstMs: Number.NaN }, /retry\.firstMs is NaN/],
    [{ factor: 0.5 }, /retry\.factor is 0\.5/],
    [{ firstMs: 10, longestMs: 9 }, /retry\.longestMs is 9, but must be at least firstMs \(10\)/],
    [{ jitter: 1.1 }, /retry\.jitter is 1\.1/],
    [{ factor: 0, jitter: -1 }, /retry\.factor.*retry\.jitter/],
  ])('a policy that cannot work is refused with what is wrong: %j', (given, message) => {
    expect(() => retryPolicy(given)).toThrow(
      expect.objectContaining({ code: 'SETTING_INVALID', message: expect.stringMatching(message) }),
    )
  })
})
