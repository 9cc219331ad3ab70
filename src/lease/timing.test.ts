import { assert, double, property } from 'fast-check'
import { expect, it } from 'vitest'
import { LEASE_MS, REAPER_INTERVAL_MS, timing } from './timing.ts'

it('RULE-020-002: the lease is 30 s by default, 60 s for heavy work, 60 to 120 s for external calls', () => {
  expect(timing().leaseMs).toBe(30_000)
  expect(LEASE_MS).toEqual({ default: 30_000, heavy: 60_000, externalCalls: 120_000 })
})

it('D2, WH-FR-003-AC1: the heartbeat is 0.3 of the lease by default: 9 s for 30 s', () => {
  expect(timing().heartbeatMs).toBe(9_000)
  expect(timing({ leaseMs: 1_000 }).heartbeatMs).toBe(300)
})

it('RULE-020-022: the reaper runs every 10 s by default, and sooner when the lease is short', () => {
  expect(REAPER_INTERVAL_MS).toEqual({ default: 10_000, highVolume: 5_000, lowVolume: 30_000 })
  expect(timing().reaperIntervalMs).toBe(10_000)
  expect(timing({ leaseMs: 6_000 }).reaperIntervalMs).toBe(2_000)
})

it.each([
  [{ leaseMs: 0 }, 'leaseMs is 0'],
  [{ leaseMs: -5 }, 'leaseMs is -5'],
  [{ leaseMs: Number.NaN }, 'leaseMs is NaN'],
  [{ leaseMs: Number.POSITIVE_INFINITY }, 'leaseMs is Infinity'],
  [{ heartbeatMs: 0 }, 'heartbeatMs is 0'],
  [{ shutdownTimeoutMs: -1 }, 'shutdownTimeoutMs is -1'],
])('a timing of %o is refused with its number', (given, message) => {
  expect(() => timing(given)).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  expect(() => timing(given)).toThrow(message)
})

it('a shutdown may have no time at all', () => {
  expect(timing({ shutdownTimeoutMs: 0 }).shutdownTimeoutMs).toBe(0)
})

it('only what was given is refused, not what would be derived from it', () => {
  expect(() => timing({ leaseMs: -5 })).toThrow(
    /^The timing cannot work: leaseMs is -5, but must be a number of milliseconds above 0\.$/,
  )
})

it('D2, RULE-020-011, WH-FR-003-AC3: a heartbeat of exactly a third of the lease is refused, with the numbers', () => {
  expect(() => timing({ leaseMs: 30_000, heartbeatMs: 10_000 })).toThrow(
    'heartbeatMs is 10000, but must be less than a third of leaseMs (30000 / 3 = 10000)',
  )
  expect(timing({ leaseMs: 30_000, heartbeatMs: 9_999 }).heartbeatMs).toBe(9_999)
})

it('RULE-020-022: a reaper interval as long as the lease is refused, with the numbers', () => {
  expect(() => timing({ leaseMs: 5_000, reaperIntervalMs: 5_000 })).toThrow(
    'reaperIntervalMs is 5000, but must be less than leaseMs (5000)',
  )
})

it('RULE-020-031: a shutdown timeout longer than the lease is refused, with the numbers', () => {
  expect(() => timing({ leaseMs: 5_000, shutdownTimeoutMs: 5_001 })).toThrow(
    'shutdownTimeoutMs is 5001, but must be at most leaseMs (5000)',
  )
  expect(timing({ leaseMs: 5_000, shutdownTimeoutMs: 5_000 }).shutdownTimeoutMs).toBe(5_000)
})

it('every broken rule is reported at once', () => {
  expect(() =>
    timing({ leaseMs: 3_000, heartbeatMs: 1_000, reaperIntervalMs: 3_000, shutdownTimeoutMs: 4_000 }),
  ).toThrow(/heartbeatMs is 1000.*; reaperIntervalMs is 3000.*; shutdownTimeoutMs is 4000/s)
})

it('RULE-020-011, WH-FR-003-AC2: whatever the lease, the derived timing keeps every rule', () => {
  assert(
    property(double({ min: 1, max: 1e9, noNaN: true }), (leaseMs) => {
      const { heartbeatMs, reaperIntervalMs, shutdownTimeoutMs } = timing({ leaseMs })
      expect(heartbeatMs).toBeGreaterThan(0)
      expect(heartbeatMs * 3).toBeLessThan(leaseMs)
      expect(reaperIntervalMs).toBeLessThan(leaseMs)
      expect(shutdownTimeoutMs).toBeLessThanOrEqual(leaseMs)
    }),
  )
})
