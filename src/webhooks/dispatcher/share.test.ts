import fc from 'fast-check'
import { expect, it } from 'vitest'
import { part, shareOf } from './share.ts'

it('the parts of all dispatchers are the whole, whatever the endpoint', () => {
  fc.assert(
    fc.property(fc.nat(500), fc.integer({ min: 1, max: 40 }), fc.uuid(), (whole, of, endpoint) => {
      const parts = Array.from({ length: of }, (_, rank) => part(whole, endpoint, { of, rank }))
      expect(parts.reduce((sum, one) => sum + one, 0)).toBe(whole)
      expect(Math.max(...parts) - Math.min(...parts)).toBeLessThanOrEqual(1)
    }),
  )
})

it('what is left over goes to different dispatchers for different endpoints', () => {
  const lucky = Array.from({ length: 100 }, (_, n) =>
    [0, 1, 2].findIndex((rank) => part(1, `endpoint ${n}`, { of: 3, rank }) === 1),
  )
  expect(new Set(lucky)).toEqual(new Set([0, 1, 2]))
})

it('a dispatcher that is not known yet counts itself', () => {
  expect(shareOf('b', ['a', 'c'])).toEqual({ of: 3, rank: 1 })
  expect(shareOf('b', ['a', 'b', 'c'])).toEqual({ of: 3, rank: 1 })
  expect(shareOf('b', [])).toEqual({ of: 1, rank: 0 })
})
