import { readFile } from 'node:fs/promises'
import { expect, it } from 'vitest'
import { emitOneOfEach } from '../../test/support/specimen-events.ts'
import { Events } from '../worker/events.ts'
import { gauge } from './gauge-source.ts'
import { createMetrics } from './metrics.ts'
import { METRICS, STALE_BUCKETS, type Metric } from './metric-catalog.ts'

const of = { worker: 'w1', table: 'public.emails' }
const row = { ...of, id: '7', token: 3n }

/** The samples of the text, each with its labels, as `name{labels}` → value. */
function samples(text: string): Record<string, number> {
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return Object.fromEntries(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
  )
}

it('RULE-020-023: the reaper tells by name how many rows it recovered, how stale they were and how often it ran', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  const reaped = { ...row, owner: 'gone', evicted: false, exhausted: false }
  events.emit('reaped', { ...reaped, staleMs: 400 })
  events.emit('reaped', { ...reaped, staleMs: 7_000 })
  events.emit('reaped', { ...reaped, staleMs: 4_000_000 })
  events.emit('reaped', { ...reaped, staleMs: -20_000, evicted: true })
  events.emit('reaperRan', { worker: 'w1', recovered: 4, durationMs: 3 })
  const text = await metrics.render()
  expect(text).toContain('# TYPE reaper_recovered_count counter\n')
  expect(text).toContain('# TYPE reaper_stale_duration histogram\n')
  expect(text).toContain('# TYPE reaper_runs_total counter\n')
  expect(samples(text)).toMatchObject({
    'reaper_recovered_count{table="public.emails"}': 4,
    reaper_runs_total: 1,
    'reaper_stale_duration_bucket{table="public.emails",le="0.1"}': 1,
    'reaper_stale_duration_bucket{table="public.emails",le="0.5"}': 2,
    'reaper_stale_duration_bucket{table="public.emails",le="5"}': 2,
    'reaper_stale_duration_bucket{table="public.emails",le="10"}': 3,
    'reaper_stale_duration_bucket{table="public.emails",le="3600"}': 3,
    'reaper_stale_duration_bucket{table="public.emails",le="+Inf"}': 4,
    'reaper_stale_duration_sum{table="public.emails"}': 4_007.4,
    'reaper_stale_duration_count{table="public.emails"}': 4,
  })
})

it('claims, settlements by outcome, losses by reason, heartbeats and pauses are counted per table', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  events.emit('claimed', { ...of, count: 10, full: true, durationMs: 2 })
  events.emit('claimed', { ...of, count: 0, full: false, durationMs: 2 })
  events.emit('settled', { ...of, outcome: 'sent', ids: ['1', '2', '3'], durationMs: 2 })
  events.emit('settled', { ...of, outcome: 'dead', ids: ['4'], durationMs: 2 })
  events.emit('lost', { ...row, reason: 'tooLong' })
  events.emit('renewed', { ...of, count: 10, busy: 0, durationMs: 1 })
  events.emit('renewalFailed', { ...of, ids: ['1', '2'], error: new Error('away') })
  events.emit('paused', { ...of, reason: 'saturated', forMs: 100 })
  events.emit('paused', { ...of, reason: 'operator', forMs: undefined })
  events.emit('resumed', { ...of, reason: 'saturated' })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_claims_total{table="public.emails"}': 2,
    'leasehold_claimed_rows_total{table="public.emails"}': 10,
    'leasehold_settlements_total{table="public.emails",outcome="sent"}': 3,
    'leasehold_settlements_total{table="public.emails",outcome="dead"}': 1,
    'leasehold_leases_lost_total{table="public.emails",reason="tooLong"}': 1,
    'leasehold_heartbeats_total{table="public.emails"}': 1,
    'leasehold_heartbeat_failures_total{table="public.emails"}': 1,
    'leasehold_paused{table="public.emails",reason="saturated"}': 0,
    'leasehold_paused{table="public.emails",reason="operator"}': 1,
  })
})

it('data errors are counted per table and verb, each time a row is tried', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  const stopped = { ...of, id: '7', error: new Error('out of range') }
  events.emit('dataError', { ...stopped, verb: 'reap', retryInMs: 1_000 })
  events.emit('dataError', { ...stopped, verb: 'reap', retryInMs: 2_000 })
  events.emit('dataError', { ...stopped, verb: 'settle' })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_data_errors_total{table="public.emails",verb="reap"}': 2,
    'leasehold_data_errors_total{table="public.emails",verb="settle"}': 1,
  })
})

it("RULE-020-032: the worker's id is a label, on one series of its process", async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  emitOneOfEach(events, { worker: 'host-1.abc' })
  const named = Object.keys(samples(await metrics.render())).filter((name) => name.includes('host-1.abc'))
  expect(named).toEqual(['leasehold_worker_info{worker="host-1.abc"}'])
})

it('RULE-020-052: a worker that died is counted', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  expect(samples(await metrics.render())).toMatchObject({ leasehold_workers_died_total: 0 })
  events.emit('workerDied', { worker: 'w1', died: 'w2', host: 'h', pid: 1, lastSeenAt: new Date() })
  expect(samples(await metrics.render())).toMatchObject({ leasehold_workers_died_total: 1 })
})

it('a scrape answers what it can, and counts what it cannot', async () => {
  const metrics = createMetrics(new Events(), {
    gauges: [
      gauge('inFlight', () => [{ labels: {}, value: 4 }]),
      { metric: 'workers', read: async () => Promise.reject(new Error('away')) },
    ],
  })
  const text = await metrics.render()
  expect(samples(text)).toMatchObject({ leasehold_in_flight: 4, leasehold_scrape_errors: 1 })
  expect(text).not.toContain('leasehold_workers{')
})

it('label values are escaped, and two answers are the same whatever came first', async () => {
  const tables = ['odd."na\\me"\nx', 'public.a', 'public.b']
  const texts = await Promise.all(
    [tables, tables.toReversed()].map(async (order) => {
      const events = new Events()
      const metrics = createMetrics(events)
      for (const table of order)
        events.emit('claimed', { worker: 'w', table, count: 1, full: false, durationMs: 1 })
      return metrics.render()
    }),
  )
  expect(texts[0]).toBe(texts[1])
  expect(texts[0]).toContain(String.raw`leasehold_claims_total{table="odd.\"na\\me\"\nx"} 1` + '\n')
})

it('every line is a line of the text format', async () => {
  const events = new Events()
  const metrics = createMetrics(events, { gauges: [gauge('inFlight', () => [{ labels: {}, value: 0 }])] })
  emitOneOfEach(events)
  const text = await metrics.render()
  const sample = /^[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? (\d+(\.\d+)?|\+Inf)$/
  const comment = /^# (HELP [a-z_]+ \S.*|TYPE [a-z_]+ (counter|gauge|histogram))$/
  expect(text.endsWith('\n')).toBe(true)
  const wrong = text
    .slice(0, -1)
    .split('\n')
    .filter((line) => !sample.test(line) && !comment.test(line))
  expect(wrong).toEqual([])
})

it('after close() nothing more is counted, and nothing listens', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  metrics.close()
  emitOneOfEach(events)
  expect(samples(await metrics.render())).toMatchObject({ reaper_runs_total: 0 })
  expect(events.wanted('claimed')).toBe(false)
})

it('what happens to each row in the normal course of work is not listened to', () => {
  const events = new Events()
  createMetrics(events)
  expect(events.wanted('started')).toBe(false)
})

it('docs/metrics.md has every metric with its type, labels and instrument, in the same order, and no other', async () => {
  const page = await readFile(new URL('../../docs/metrics.md', import.meta.url), 'utf8')
  const rows = [...page.matchAll(/^\| `([a-z_]+)` \| (\w+) \| (.*?) \| `([a-z.]+)` \| (.+) \|$/gm)]
  const documented = rows.map(([, name, kind, labels = '', instrument]) => ({
    name,
    kind,
    labels: [...labels.matchAll(/`([a-z]+)`/g)].map(([, label]) => label),
    instrument,
  }))
  const known = Object.values<Metric>(METRICS).map(({ name, kind, labels, instrument }) => ({
    name,
    kind,
    labels: [...labels],
    instrument,
  }))
  expect(documented).toEqual(known)
  expect(page).toContain(STALE_BUCKETS.join(', '))
})

it('what can be rendered is what the catalogue says: every family, with its labels and no other', async () => {
  const events = new Events()
  const metrics = createMetrics(events, {
    gauges: [
      gauge('inFlight', () => [{ labels: {}, value: 1 }]),
      gauge('workers', () => [{ labels: { state: 'alive' }, value: 1 }]),
      gauge('oldestPendingAge', () => [{ labels: { table: 'public.emails' }, value: 1 }]),
    ],
  })
  emitOneOfEach(events)
  const found = Object.keys(samples(await metrics.render())).map((sample) => {
    const [, name = '', labels = ''] = /^([a-z_]+?)(?:_bucket|_sum)?(?:\{(.*)\})?$/.exec(sample) ?? []
    const names = [...labels.matchAll(/([a-z]+)="/g)]
      .map(([, label]) => label)
      .filter((label) => label !== 'le')
    return `${name.replace('reaper_stale_duration_count', 'reaper_stale_duration')} ${names.join()}`
  })
  const known = Object.values<Metric>(METRICS).map(({ name, labels }) => `${name} ${labels.join()}`)
  expect(new Set(found)).toEqual(new Set(known))
})
