import { expect, it } from 'vitest'
import { pauseAfter } from './back-off.ts'

const backOff = { firstMs: 100, longestMs: 5_000 }

it('a pause doubles with every failure, up to the longest', () => {
  const pauses = [1, 2, 3, 6, 7, 2_000].map((failures) => pauseAfter(failures, backOff, () => 1))
  expect(pauses).toEqual([100, 200, 400, 3_200, 5_000, 5_000])
})

it('chance takes at most half of it', () => {
  expect([0, 0.5, 1].map((chance) => pauseAfter(3, backOff, () => chance))).toEqual([200, 300, 400])
})
