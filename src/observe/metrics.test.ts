import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { emitOneOfEach, oneOfEachGauge } from '../../test/support/sample-events.ts'
import { Events } from '../worker/events.ts'
import { ALL_METRICS, databaseGauge, gauge } from './metrics.ts'
import { createMetrics, mergeMetrics } from './prometheus.ts'

const of = { worker: 'w1', table: 'public.emails' }
const row = { ...of, id: '7', token: 3n }

/** The samples of the text, each with its labels, as `name{labels}` → value. */
function samples(text: string): Record<string, number> {
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return Object.fromEntries(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
  )
}

it('RULE-020-023: the reaper reports how many rows it recovered, how stale they were and how often it ran', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  const reaped = { ...row, owner: 'w2', evicted: false, outcome: 'retry' } as const
  events.emit('reaped', { ...reaped, staleMs: 400 })
  events.emit('reaped', { ...reaped, staleMs: 7_000 })
  events.emit('reaped', { ...reaped, staleMs: 4_000_000 })
  events.emit('reaped', { ...reaped, staleMs: -20_000, evicted: true })
  events.emit('reaperRan', { worker: 'w1', reaped: 4, durationMs: 3 })
  const text = await metrics.render()
  expect(text).toContain('# TYPE reaper_recovered_count_total counter\n')
  expect(text).toContain('# TYPE reaper_stale_duration_seconds histogram\n')
  expect(text).toContain('# TYPE reaper_runs_total counter\n')
  expect(samples(text)).toMatchObject({
    'reaper_recovered_count_total{table="public.emails",outcome="retry",worker="w1"}': 4,
    'reaper_runs_total{worker="w1"}': 1,
    'reaper_stale_duration_seconds_bucket{table="public.emails",worker="w1",le="0.1"}': 1,
    'reaper_stale_duration_seconds_bucket{table="public.emails",worker="w1",le="0.5"}': 2,
    'reaper_stale_duration_seconds_bucket{table="public.emails",worker="w1",le="5"}': 2,
    'reaper_stale_duration_seconds_bucket{table="public.emails",worker="w1",le="10"}': 3,
    'reaper_stale_duration_seconds_bucket{table="public.emails",worker="w1",le="3600"}': 3,
    'reaper_stale_duration_seconds_bucket{table="public.emails",worker="w1",le="+Inf"}': 4,
    'reaper_stale_duration_seconds_sum{table="public.emails",worker="w1"}': 4_007.4,
    'reaper_stale_duration_seconds_count{table="public.emails",worker="w1"}': 4,
  })
})

it('claims, settled rows by outcome, lost leases by reason, heartbeats and pauses are counted per table', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  events.emit('claimed', { ...of, count: 10, full: true, durationMs: 2 })
  events.emit('settled', { ...of, outcome: 'sent', ids: ['1', '2', '3'], durationMs: 2 })
  events.emit('settled', { ...of, outcome: 'dead', ids: ['4'], durationMs: 2 })
  events.emit('lost', { ...row, reason: 'tooLong' })
  events.emit('renewed', { ...of, count: 10, busy: 0, durationMs: 1 })
  events.emit('renewalFailed', { ...of, ids: ['1', '2'], error: new Error('unavailable') })
  events.emit('paused', { ...of, reason: 'saturated', forMs: 100 })
  events.emit('paused', { ...of, reason: 'operator', forMs: undefined })
  events.emit('resumed', { ...of, reason: 'saturated' })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_claims_total{table="public.emails",worker="w1"}': 1,
    'leasehold_claimed_rows_total{table="public.emails",worker="w1"}': 10,
    'leasehold_settled_rows_total{table="public.emails",outcome="sent",worker="w1"}': 3,
    'leasehold_settled_rows_total{table="public.emails",outcome="dead",worker="w1"}': 1,
    'leasehold_lost_leases_total{table="public.emails",reason="tooLong",worker="w1"}': 1,
    'leasehold_heartbeats_total{table="public.emails",worker="w1"}': 1,
    'leasehold_heartbeat_failures_total{table="public.emails",worker="w1"}': 1,
    'leasehold_claiming_paused{table="public.emails",reason="saturated",worker="w1"}': 0,
    'leasehold_claiming_paused{table="public.emails",reason="operator",worker="w1"}': 1,
  })
})

it('the latencies of rows that are done go into the buckets of a histogram, as many as an event brings', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  const settled = { ...of, outcome: 'done', durationMs: 2 }
  events.emit('settled', { ...settled, ids: ['1', '2', '3'], latenciesMs: [4, 40, 4_000] })
  events.emit('settled', { ...settled, ids: ['4'], latenciesMs: [90_000_000] })
  // Of a table that does not say when a row was written, and of rows that are to be retried.
  events.emit('settled', { ...settled, table: 'public.other', ids: ['5'] })
  events.emit('settled', { ...settled, outcome: 'retry', ids: ['6'] })
  const found = samples(await metrics.render())
  const latency = 'leasehold_end_to_end_latency_seconds'
  expect(found).toMatchObject({
    [`${latency}_bucket{table="public.emails",worker="w1",le="0.005"}`]: 1,
    [`${latency}_bucket{table="public.emails",worker="w1",le="0.05"}`]: 2,
    [`${latency}_bucket{table="public.emails",worker="w1",le="5"}`]: 3,
    [`${latency}_bucket{table="public.emails",worker="w1",le="43200"}`]: 3,
    [`${latency}_bucket{table="public.emails",worker="w1",le="+Inf"}`]: 4,
    [`${latency}_sum{table="public.emails",worker="w1"}`]: 90_004.044,
    [`${latency}_count{table="public.emails",worker="w1"}`]: 4,
  })
  expect(Object.keys(found).filter((name) => name.includes('public.other'))).not.toContainEqual(
    expect.stringContaining(latency),
  )
})

it('rows whose lease a heartbeat has renewed are counted at each renewal, and those found locked are not', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  events.emit('renewed', { ...of, count: 10, busy: 2, durationMs: 1 })
  events.emit('renewed', { ...of, count: 2, busy: 0, durationMs: 1 })
  events.emit('renewalFailed', { ...of, ids: ['1', '2'], error: new Error('unavailable') })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_renewed_rows_total{table="public.emails",worker="w1"}': 12,
    'leasehold_heartbeats_total{table="public.emails",worker="w1"}': 2,
  })
})

it('every dead row is counted: settled so, reaped at its last attempt, or given up by maintenance', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  const dead = async () =>
    samples(await metrics.render())['leasehold_dead_rows_total{table="public.emails",worker="w1"}']
  events.emit('settled', { ...of, outcome: 'done', ids: ['1', '2'], durationMs: 2 })
  // The series starts at 0: otherwise an alert on its increase would not see the first dead row.
  expect(await dead()).toBe(0)
  events.emit('settled', { ...of, outcome: 'dead', ids: ['3', '4'], durationMs: 2 })
  events.emit('settled', { ...of, outcome: 'exhausted', ids: ['5'], durationMs: 2 })
  expect(await dead()).toBe(3)
  const reaped = { ...row, owner: 'w2', staleMs: 1, evicted: false }
  events.emit('reaped', { ...reaped, outcome: 'retry' })
  events.emit('reaped', { ...reaped, outcome: 'dead' })
  expect(await dead()).toBe(4)
  events.emit('maintenanceRan', { ...of, done: { removed: 9, overdue: 5 }, dead: 5, durationMs: 2 })
  expect(await dead()).toBe(9)
})

it('data errors are counted per table and verb, each time the row is tried', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  const stopped = { ...of, id: '7', error: new Error('out of range') }
  events.emit('dataError', { ...stopped, verb: 'reap', retryInMs: 1_000 })
  events.emit('dataError', { ...stopped, verb: 'reap', retryInMs: 2_000 })
  events.emit('dataError', { ...stopped, verb: 'settle' })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_data_errors_total{table="public.emails",verb="reap",worker="w1"}': 2,
    'leasehold_data_errors_total{table="public.emails",verb="settle",worker="w1"}': 1,
  })
})

it('RULE-020-032: every series of a worker process carries its id, and two processes in one program are told apart', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  emitOneOfEach(events, { worker: 'host-1.abc' })
  emitOneOfEach(events, { worker: 'host-1.def' })
  const names = Object.keys(samples(await metrics.render()))
  const without = names.filter((name) => !name.includes('worker="host-1.'))
  expect(without).toEqual(['leasehold_scrape_errors'])
  const ofFirst = names.filter((name) => name.includes('worker="host-1.abc"'))
  const ofSecond = names.filter((name) => name.includes('worker="host-1.def"'))
  expect(ofSecond).toEqual(ofFirst.map((name) => name.replace('host-1.abc', 'host-1.def')))
})

it('RULE-020-032: a program that starts runtimes without end gets series for 20 worker ids, and one more set for all others', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  for (let i = 1; i <= 500; i += 1) {
    events.emit('workerStarted', { worker: `w${i}`, roles: [] })
    events.emit('claimed', { ...of, worker: `w${i}`, count: 1, full: false, durationMs: 1 })
  }
  const found = samples(await metrics.render())
  const claims = Object.keys(found).filter((name) => name.startsWith('leasehold_claims_total{'))
  expect(claims).toHaveLength(21)
  expect(found).toMatchObject({
    'leasehold_claims_total{table="public.emails",worker="w20"}': 1,
    'leasehold_claims_total{table="public.emails",worker="other"}': 480,
  })
})

it('RULE-020-052: a worker process that died is counted', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  events.emit('workerStarted', { worker: 'w1', roles: [] })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_worker_processes_died_total{worker="w1"}': 0,
  })
  events.emit('workerDied', { worker: 'w1', died: 'w2', host: 'h', pid: 1, lastSeenAt: new Date() })
  expect(samples(await metrics.render())).toMatchObject({
    'leasehold_worker_processes_died_total{worker="w1"}': 1,
  })
})

it('a scrape leaves out a gauge that cannot be read, and counts it as an error', async () => {
  const metrics = createMetrics(new Events(), {
    gauges: [
      gauge('inFlightRows', () => [{ labels: { worker: 'w1' }, value: 4 }]),
      { metric: 'workerProcesses', read: async () => Promise.reject(new Error('unavailable')) },
    ],
  })
  const text = await metrics.render()
  expect(samples(text)).toMatchObject({
    'leasehold_in_flight_rows{worker="w1"}': 4,
    leasehold_scrape_errors: 1,
  })
  expect(text).not.toContain('leasehold_worker_processes{')
})

it('label values are escaped, and the order of events does not change the text', async () => {
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
  expect(texts[0]).toContain(
    String.raw`leasehold_claims_total{table="odd.\"na\\me\"\nx",worker="w"} 1` + '\n',
  )
})

it('every line conforms to the Prometheus text format', async () => {
  const events = new Events()
  const metrics = createMetrics(events, {
    gauges: [gauge('inFlightRows', () => [{ labels: { worker: 'w1' }, value: 0 }])],
  })
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

it('the texts of several processes become one, with each metric once; the first one counts for a series that several have', async () => {
  const texts = await Promise.all(
    ['w1', 'w2'].map(async (worker, i) => {
      const events = new Events()
      const gauges = [gauge('workerProcesses', () => [{ labels: { state: 'alive' }, value: 3 + i }])]
      const metrics = createMetrics(events, { gauges })
      events.emit('claimed', { worker, table: 'public.emails', count: 1, full: false, durationMs: 1 })
      return metrics.render()
    }),
  )
  const merged = mergeMetrics([...texts, ''])
  expect(samples(merged)).toMatchObject({
    'leasehold_claims_total{table="public.emails",worker="w1"}': 1,
    'leasehold_claims_total{table="public.emails",worker="w2"}': 1,
    'leasehold_worker_processes{state="alive"}': 3,
  })
  expect(merged.match(/^# .*$/gm)).toEqual(texts[0]?.match(/^# .*$/gm))
  expect(merged).toMatch(/claims_total\{.*"w1"\} 1\nleasehold_claims_total\{.*"w2"\} 1\n# HELP/)
  expect(mergeMetrics([texts[0] ?? ''])).toBe(texts[0])
})

it('after close() nothing is counted and nobody listens to the events', async () => {
  const events = new Events()
  const metrics = createMetrics(events)
  metrics.close()
  emitOneOfEach(events)
  expect(samples(await metrics.render())).toEqual({ leasehold_scrape_errors: 0 })
  expect(events.wanted('claimed')).toBe(false)
  expect(events.wanted('workerStarted')).toBe(false)
})

it('events of single rows in the normal course of work are not listened to', () => {
  const events = new Events()
  createMetrics(events)
  expect(events.wanted('started')).toBe(false)
})

it('docs/reference/metrics.md lists exactly the metrics of the table, with type, labels and instrument, in the same order', async () => {
  const page = await readFile(new URL('../../docs/reference/metrics.md', import.meta.url), 'utf8')
  const rows = [...page.matchAll(/^\| `([a-z_]+)` \| (\w+) \| (.*?) \| `([a-z.]+)` \| (.+) \|$/gm)]
  const documented = rows.map(([, name, kind, labels = '', instrument]) => ({
    name,
    kind,
    labels: [...labels.matchAll(/`([a-z]+)`/g)].map(([, label]) => label),
    instrument,
  }))
  const known = ALL_METRICS.map(({ name, kind, labels, instrument }) => ({
    name,
    kind,
    labels: [...labels],
    instrument,
  }))
  expect(documented).toEqual(known)
  for (const { name, buckets } of ALL_METRICS.filter(({ kind }) => kind === 'histogram'))
    expect(page).toContain(`\`${name}\`: ${buckets.join(', ')}.`)
})

it('the text has every metric of the table, with exactly its labels', async () => {
  const events = new Events()
  const metrics = createMetrics(events, {
    gauges: oneOfEachGauge(),
  })
  emitOneOfEach(events)
  const found = Object.keys(samples(await metrics.render())).map((sample) => {
    const [, name = '', labels = ''] = /^([a-z_]+?)(?:_bucket|_sum)?(?:\{(.*)\})?$/.exec(sample) ?? []
    const names = [...labels.matchAll(/([a-z]+)="/g)]
      .map(([, label]) => label)
      .filter((label) => label !== 'le')
    return `${name.replace(/_seconds_count$/, '_seconds')} ${names.join()}`
  })
  const known = ALL_METRICS.map(({ name, labels }) => `${name} ${labels.join()}`)
  expect(new Set(found)).toEqual(new Set(known))
})

/** A clock that only moves when the test says so. */
function manualClock() {
  const clock = { at: 1_000, monotonicNow: (): number => clock.at }
  return clock
}

const alive = (value: number) => [{ labels: { state: 'alive' }, value }]

describe('a gauge that is read from the database', () => {
  it('many scrapes share one query until its answer is too old', async () => {
    const clock = manualClock()
    let queries = 0
    const query = async () => alive((queries += 1))
    const source = databaseGauge('workerProcesses', query, { reuseMs: 5_000, clock })
    const together = await Promise.all(Array.from({ length: 50 }, async () => source.read()))
    expect(together).toEqual(Array.from({ length: 50 }, () => alive(1)))
    clock.at += 4_999
    expect(await source.read()).toEqual(alive(1))
    clock.at += 1
    expect(await source.read()).toEqual(alive(2))
    expect(queries).toBe(2)
  })

  it('the answer of a slow query is reused for longer', async () => {
    const clock = manualClock()
    let queries = 0
    const query = async () => {
      clock.at += 1_000
      return alive((queries += 1))
    }
    const source = databaseGauge('workerProcesses', query, { reuseMs: 5_000, clock })
    await source.read()
    clock.at += 19_999
    expect(await source.read()).toEqual(alive(1))
    clock.at += 1
    expect(await source.read()).toEqual(alive(2))
  })

  it('a failure is reported, and reused like an answer', async () => {
    const clock = manualClock()
    let queries = 0
    const query = async () => {
      queries += 1
      if (queries === 1) throw new Error('unavailable')
      return alive(queries)
    }
    const source = databaseGauge('workerProcesses', query, { reuseMs: 5_000, clock })
    await expect(source.read()).rejects.toThrow('unavailable')
    await expect(source.read()).rejects.toThrow('unavailable')
    expect(queries).toBe(1)
    clock.at += 5_000
    expect(await source.read()).toEqual(alive(2))
  })

  it('a scrape does not wait for a query that hangs, and does not start a second one', async () => {
    const answered = new AbortController()
    const answer = once(answered.signal, 'abort').then(() => alive(1))
    let queries = 0
    const query = async () => {
      queries += 1
      return answer
    }
    const source = databaseGauge('workerProcesses', query, { timeoutMs: 10 })
    await expect(source.read()).rejects.toThrow('within 10 ms')
    await expect(source.read()).rejects.toThrow('within 10 ms')
    expect(queries).toBe(1)
    answered.abort()
    expect(await source.read()).toEqual(alive(1))
  })
})

it('an event that only metrics follow still counts as unheard, so that an error reaches stderr', () => {
  const events = new Events()
  const unheard: string[] = []
  events.onUnheard(({ type }) => unheard.push(type))
  createMetrics(events)
  events.emit('trouble', { worker: 'w1', what: 'a bug', error: new Error('no') })
  events.on('trouble', () => undefined)
  events.emit('trouble', { worker: 'w1', what: 'a bug', error: new Error('no') })
  expect(unheard).toEqual(['trouble'])
})
