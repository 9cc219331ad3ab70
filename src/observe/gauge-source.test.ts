import { once } from 'node:events'
import { expect, it } from 'vitest'
import { databaseGauge } from './gauge-source.ts'

function stillClock() {
  const clock = { at: 1_000, monotonicNow: (): number => clock.at }
  return clock
}

const alive = (value: number) => [{ labels: { state: 'alive' }, value }]

it('scraping often asks the database once, until the answer is too old', async () => {
  const clock = stillClock()
  let asked = 0
  const ask = async () => alive((asked += 1))
  const source = databaseGauge('workers', ask, { keepMs: 5_000, clock })
  const together = await Promise.all(Array.from({ length: 50 }, async () => source.read()))
  expect(together).toEqual(Array.from({ length: 50 }, () => alive(1)))
  clock.at += 4_999
  expect(await source.read()).toEqual(alive(1))
  clock.at += 1
  expect(await source.read()).toEqual(alive(2))
  expect(asked).toBe(2)
})

it('a question that took long is asked the more seldom', async () => {
  const clock = stillClock()
  let asked = 0
  const ask = async () => {
    clock.at += 1_000
    return alive((asked += 1))
  }
  const source = databaseGauge('workers', ask, { keepMs: 5_000, clock })
  await source.read()
  clock.at += 19_999
  expect(await source.read()).toEqual(alive(1))
  clock.at += 1
  expect(await source.read()).toEqual(alive(2))
})

it('a failure is told, and kept as an answer is', async () => {
  const clock = stillClock()
  let asked = 0
  const ask = async () => {
    asked += 1
    if (asked === 1) throw new Error('away')
    return alive(asked)
  }
  const source = databaseGauge('workers', ask, { keepMs: 5_000, clock })
  await expect(source.read()).rejects.toThrow('away')
  await expect(source.read()).rejects.toThrow('away')
  expect(asked).toBe(1)
  clock.at += 5_000
  expect(await source.read()).toEqual(alive(2))
})

it('nobody waits for a question that hangs, and it is not asked a second time meanwhile', async () => {
  const answered = new AbortController()
  const answer = once(answered.signal, 'abort').then(() => alive(1))
  let asked = 0
  const ask = async () => {
    asked += 1
    return answer
  }
  const source = databaseGauge('workers', ask, { timeoutMs: 10 })
  await expect(source.read()).rejects.toThrow('within 10 ms')
  await expect(source.read()).rejects.toThrow('within 10 ms')
  expect(asked).toBe(1)
  answered.abort()
  expect(await source.read()).toEqual(alive(1))
})
