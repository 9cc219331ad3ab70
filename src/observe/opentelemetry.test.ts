import { expect, it } from 'vitest'
import { recordingApi } from '../../test/support/recording-meter.ts'
import { emitOneOfEach, oneOfEachGauge } from '../../test/support/sample-events.ts'
import { Events } from '../worker/events.ts'
import { ALL_METRICS, gauge } from './metrics.ts'
import { loadOpenTelemetry, observeWithOpenTelemetry } from './opentelemetry.ts'

it('RULE-020-023: the reaper has the instruments reaper.recovered.count, reaper.stale.duration and reaper.runs.total', () => {
  const events = new Events()
  const { api, written, kinds } = recordingApi()
  observeWithOpenTelemetry(events, api)
  events.emit('reaped', {
    worker: 'w1',
    table: 'public.emails',
    id: '7',
    token: 3n,
    owner: 'w2',
    staleMs: 1_500,
    evicted: false,
    outcome: 'retry',
  })
  events.emit('reaperRan', { worker: 'w1', reaped: 1, durationMs: 1 })
  expect(written).toEqual([
    'leasehold.dead.rows 0 {"table":"public.emails","worker":"w1"}',
    'reaper.recovered.count 1 {"table":"public.emails","outcome":"retry","worker":"w1"}',
    'reaper.stale.duration 1.5 {"table":"public.emails","worker":"w1"}',
    'reaper.runs.total 1 {"worker":"w1"}',
  ])
  expect(kinds).toMatchObject({
    'reaper.recovered.count': 'counter',
    'reaper.stale.duration': 'histogram',
    'reaper.runs.total': 'counter',
  })
})

it('every metric except the errors of a scrape has an instrument, and is measured', async () => {
  const events = new Events()
  const { api, written, kinds, meters, collect } = recordingApi()
  observeWithOpenTelemetry(events, api, { version: '1.2.3', gauges: oneOfEachGauge() })
  emitOneOfEach(events)
  await collect()
  const known = ALL_METRICS.filter(({ name }) => name !== 'leasehold_scrape_errors')
  expect(kinds).toEqual(Object.fromEntries(known.map(({ instrument, kind }) => [instrument, kind])))
  expect(new Set(written.map((line) => line.split(' ')[0]))).toEqual(new Set(Object.keys(kinds)))
  expect(written).toContain('leasehold.worker.processes 2 {"state":"alive"}')
  expect(written).toContain(
    'leasehold.claiming.paused 0 {"table":"public.emails","reason":"saturated","worker":"w1"}',
  )
  expect(meters).toEqual(['leasehold 1.2.3'])
})

it('RULE-020-032: every measurement of a worker process carries its id, for 20 ids; later ones share `other`', async () => {
  const events = new Events()
  const { api, written, collect } = recordingApi()
  observeWithOpenTelemetry(events, api)
  for (let i = 1; i <= 22; i += 1) emitOneOfEach(events, { worker: `host-${i}.abc` })
  await collect()
  const ids = written.map((line) => /"worker":"([^"]+)"/.exec(line)?.[1])
  expect(new Set(ids)).toEqual(
    new Set(['other', ...Array.from({ length: 20 }, (_, i) => `host-${i + 1}.abc`)]),
  )
})

it('after the end of the observation nothing is measured', async () => {
  const events = new Events()
  const { api, written, collect } = recordingApi()
  const end = observeWithOpenTelemetry(events, api, {
    gauges: [gauge('inFlightRows', () => [{ labels: { worker: 'w1' }, value: 4 }])],
  })
  end()
  emitOneOfEach(events)
  await collect()
  expect(written).toEqual([])
})

const failing = (code: string) => async () => Promise.reject(Object.assign(new Error('no'), { code }))

it('a missing package is no error; a broken package is one', async () => {
  expect(await loadOpenTelemetry(failing('ERR_MODULE_NOT_FOUND'))).toBeUndefined()
  await expect(loadOpenTelemetry(failing('ERR_OTHER'))).rejects.toThrow('no')
  const { api } = recordingApi()
  expect(await loadOpenTelemetry(async () => api)).toBe(api)
})
