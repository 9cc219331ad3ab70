import fc from 'fast-check'
import { expect, it } from 'vitest'
import { Prefetch } from './prefetch.ts'

it('the prefetch grows while slots run dry, up to its maximum', () => {
  const prefetch = new Prefetch(10)
  const sizes = Array.from({ length: 4 }, () => {
    prefetch.ranDry(50)
    return prefetch.within(50)
  })
  expect(sizes).toEqual([20, 40, 50, 50])
})

it('the prefetch shrinks when rows wait too long for a slot, and can grow from zero', () => {
  const prefetch = new Prefetch(10)
  prefetch.waited(1_000)
  expect(prefetch.within(500)).toBe(10)
  for (let i = 0; i < 5; i += 1) prefetch.waited(1_001)
  expect(prefetch.within(500)).toBe(0)
  prefetch.ranDry(500)
  expect(prefetch.within(500)).toBe(1)
})

it('RULE-020-041: the prefetch is always a whole number between 0 and its current maximum', () => {
  const step = fc.oneof(
    fc.record({ dry: fc.nat(1_000) }),
    fc.record({ waited: fc.integer({ min: 0, max: 5_000 }) }),
  )
  fc.assert(
    fc.property(fc.nat(1_000), fc.array(step), fc.nat(1_000), (start, steps, most) => {
      const prefetch = new Prefetch(start)
      for (const taken of steps) {
        if ('dry' in taken) prefetch.ranDry(taken.dry)
        else prefetch.waited(taken.waited)
      }
      const size = prefetch.within(most)
      expect(Number.isInteger(size) && size >= 0 && size <= most).toBe(true)
    }),
  )
})
