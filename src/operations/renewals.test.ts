import { describe, expect, it } from 'vitest'
import { renewalsOf } from './renewals.ts'

const SETTINGS = { leaseMs: 30_000, heartbeatMs: 10_000 }
const at = (seconds: number): Date => new Date(1_800_000_000_000 + seconds * 1_000)

describe('the renewals of a lease', () => {
  it.each([
    ['claimed just now', 0, 30, 4, { renewedAt: null, renewals: 0, isLate: false }],
    ['claimed one and a half intervals ago', 0, 30, 15, { renewedAt: null, renewals: 0, isLate: false }],
    ['claimed longer ago than that', 0, 30, 15.1, { renewedAt: null, renewals: 0, isLate: true }],
    ['renewed after one interval', 0, 40.2, 12, { renewedAt: at(10.2), renewals: 1, isLate: false }],
    ['renewed four times, not quite in time', 0, 72, 47, { renewedAt: at(42), renewals: 4, isLate: false }],
    ['not renewed any more', 0, 50, 36, { renewedAt: at(20), renewals: 2, isLate: true }],
    ['without the time of the claim', null, 50, 25, { renewedAt: at(20), renewals: null, isLate: false }],
    ['late without the time of the claim', null, 50, 36, { renewedAt: at(20), renewals: null, isLate: true }],
    [
      'of a length that its process does not have',
      0,
      60,
      5,
      { renewedAt: null, renewals: null, isLate: false },
    ],
    ['shorter than its process makes them', 0, 10, 5, { renewedAt: null, renewals: 0, isLate: false }],
  ])('of a lease %s', (_, since, until, now, expected) => {
    const lease = { since: since === null ? null : at(since), until: at(until), now: at(now) }
    expect(renewalsOf(lease, SETTINGS)).toEqual(expected)
  })
})
