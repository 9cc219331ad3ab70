import { expect, it } from 'vitest'
import { goalOf, GOALS, verdictOf } from './goals.mjs'
import { NAMES } from './all.mjs'
import { boundCheck, measureInTurns, ratioCheck, seriesOf } from './rounds.mjs'

it('every goal has a scenario or a reason why it has none, and a limit exactly if it is compared', () => {
  expect(new Set(GOALS.map(({ id }) => id)).size).toBe(GOALS.length)
  for (const { scenario, how, unavailable, comparison, limit } of GOALS) {
    expect(NAMES.includes(scenario)).toBe(unavailable === undefined)
    expect(typeof (how ?? unavailable)).toBe('string')
    expect(comparison === undefined).toBe(limit === undefined)
  }
})

it('of several pairs, the one that comes off worst decides a goal, by the median of the ratios within rounds', () => {
  const slow = { of: [10, 60, 12], to: [10, 30, 10], against: 'a' }
  const fast = { of: [30], to: [10], against: 'b' }
  expect(ratioCheck('drain', [fast, slow])).toEqual([{ goal: 'drain', ratio: 1.2, against: 'a' }])
  expect(ratioCheck('latency-p50', [slow, fast])).toEqual([{ goal: 'latency-p50', ratio: 3, against: 'b' }])
  expect(ratioCheck('drain', [{ of: [1], to: undefined, against: 'a' }]), 'left out').toEqual([])
})

it('the worst round decides a goal that bounds a figure', () => {
  expect(boundCheck('memory', [120, 160, 130])).toEqual([{ goal: 'memory', ratio: 160 }])
  expect(boundCheck('memory', undefined)).toEqual([])
})

it('a verdict follows from the limit, and a quick run has none', () => {
  const verdict = (id, ratio, quick = false) => verdictOf(goalOf(id), { ratio }, { quick })
  expect([verdict('drain', 1.5), verdict('drain', 1.49)]).toEqual(['met', 'missed'])
  expect([verdict('memory', 150), verdict('memory', 151)]).toEqual(['met', 'missed'])
  expect(verdict('held-hot', 0.1)).toBe('stated')
  expect(verdict('drain', 2, true)).toBe('not judged')
  expect(verdict('drain', undefined)).toBe('not measured')
})

it('sides take turns, and one that fails is left out with a remark', async () => {
  const [first, second, broken] = ['first', 'second', 'broken'].map((name) => ({ name }))
  const order = []
  const remarks = []
  const readings = await measureInTurns(
    { sides: [first, second, broken], rounds: 2, print: () => {}, remarks, title: 'made up' },
    async (side, round) => {
      if (side === broken) throw new Error('it does not start')
      order.push(side.name)
      return { perSecond: round }
    },
  )
  expect(order).toEqual(['first', 'second', 'second', 'first'])
  expect(remarks).toEqual(['made up: broken was left out: it does not start'])
  expect(seriesOf(readings, [{ figure: 'perSecond', metric: 'events per second' }], 'no key')).toEqual([
    { side: 'first', variant: 'no key', metric: 'events per second', values: [1, 2] },
    { side: 'second', variant: 'no key', metric: 'events per second', values: [1, 2] },
  ])
})
