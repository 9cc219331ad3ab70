import { once } from 'node:events'
import { expect, it } from 'vitest'
import { createHealth } from './health.ts'

it('a check that throws is not ok, and says why; the others are told as well', async () => {
  const health = createHealth([
    { name: 'good', run: async () => 'answers' },
    { name: 'bad', run: async () => Promise.reject(new Error('gone')) },
  ])
  expect(await health.examine()).toEqual([
    { name: 'good', ok: true, detail: 'answers' },
    { name: 'bad', ok: false, detail: 'gone' },
  ])
})

it('a check that hangs is not ok after the timeout, and is joined rather than started again', async () => {
  let runs = 0
  const answered = new AbortController()
  const hanging = once(answered.signal, 'abort').then(() => 'back')
  const check = {
    name: 'slow',
    run: async () => {
      runs += 1
      return hanging
    },
  }
  const health = createHealth([check], 10)
  expect(await health.examine()).toEqual([{ name: 'slow', ok: false, detail: 'no answer within 10 ms' }])
  const patient = health.examine()
  answered.abort()
  expect(await patient).toEqual([{ name: 'slow', ok: true, detail: 'back' }])
  expect(runs).toBe(1)
  await health.examine()
  expect(runs).toBe(2)
})
