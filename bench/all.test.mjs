import { homedir, hostname } from 'node:os'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'
import { machineFacts, NAMES, readFlags, runScenarios, scrubbed } from './all.mjs'
import { GOALS } from './goals.mjs'
import { checkRecord, FORMAT } from './report/record.mjs'

const SERIES = { side: 'leasehold (made up)', metric: 'events per second', unit: '/s', values: [1] }
const CHECK = { goal: 'drain', ratio: 2 }

const working = (name) => ({
  name,
  title: `${name} (made up)`,
  run: async () => ({ series: [SERIES], checks: [CHECK], remarks: [] }),
})

async function run(scenarios, more = {}) {
  const saved = []
  const record = await runScenarios({
    names: Object.keys(scenarios),
    facts: { format: FORMAT, goals: GOALS },
    load: async (name) => scenarios[name],
    save: async (record) => saved.push(record.scenarios.length),
    server: { checkpoint: async () => {} },
    signal: new AbortController().signal,
    print: () => {},
    quick: false,
    size: 'full',
    rounds: 3,
    ...more,
  })
  checkRecord(record)
  return { record, saved }
}

it('a scenario that fails and one without figures are recorded, and the others run', async () => {
  const failing = { ...working('b'), run: async () => Promise.reject(new Error('made-up failure')) }
  const remarks = ['leasehold was left out']
  const empty = { ...working('c'), run: async () => ({ series: [], checks: [], remarks }) }
  const { record, saved } = await run({ a: working('a'), b: failing, c: empty, d: working('d') })
  expect(record.scenarios).toMatchObject([
    { name: 'a', title: 'a (made up)', series: [SERIES], checks: [CHECK] },
    { name: 'b', title: 'b (made up)', error: 'made-up failure' },
    { name: 'c', error: 'nothing could be measured', remarks },
    { name: 'd', series: [SERIES] },
  ])
  expect(saved, 'the record is saved after each scenario').toEqual([1, 2, 3, 4])
})

it('after the run was stopped, a scenario that does not end is left, and the others do not start', async () => {
  const stopping = new AbortController()
  const endless = {
    ...working('a'),
    run: async () => {
      stopping.abort(new Error('interrupted'))
      return new Promise(() => {})
    },
  }
  const more = { signal: stopping.signal, stopTimeoutMs: 1 }
  const { record } = await run({ a: endless, b: working('b') }, more)
  expect(record.scenarios).toMatchObject([
    { name: 'a', error: 'stopped: interrupted' },
    { name: 'b', skipped: 'the run was stopped before it (interrupted)' },
  ])
})

it('the record has no path and no name of this machine', () => {
  const root = fileURLToPath(new URL('..', import.meta.url))
  const told = scrubbed({ error: `cannot load file://${root}bench/x.mjs`, list: [`${homedir()}/y`] })
  expect(told).toEqual({ error: 'cannot load <checkout>/bench/x.mjs', list: ['<home>/y'] })
  const facts = JSON.stringify(machineFacts())
  expect(facts).not.toContain(`"${hostname()}"`)
  expect(facts).not.toMatch(/\/(?:home|root|tmp|work)\b/)
})

it('flags that make no sense are refused, and the message names the flag and what is known', () => {
  expect(readFlags([])).toMatchObject({ names: NAMES, rounds: 5, quick: false })
  expect(readFlags(['--quick'])).toMatchObject({ rounds: 1 })
  expect(readFlags(['--short'])).toMatchObject({ rounds: 2, size: 'short' })
  expect(readFlags(['--only', 'latency,drain']).names, 'in the order of the report').toEqual([
    'drain',
    'latency',
  ])
  expect(() => readFlags(['--only', 'drain,drian'])).toThrow(
    '--only: there is no drian, only drain, sustained',
  )
  expect(() => readFlags(['--rounds', '0'])).toThrow('--rounds 0: give a whole number from 1')
  expect(() => readFlags(['--second-edition', '/nowhere'])).toThrow('/nowhere is not the root of a checkout')
  expect(() => readFlags(['--quick', '--rounds', '3'])).toThrow('--rounds 3: a quick run has one round')
})
