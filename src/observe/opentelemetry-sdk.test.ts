/** The metrics through the SDK of OpenTelemetry and its OTLP exporter, to a collector on loopback. */
import { diag, DiagLogLevel } from '@opentelemetry/api'
import { OTLPMetricExporter } from '@opentelemetry/exporter-metrics-otlp-http'
import { MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics'
import { afterAll, expect, it, onTestFinished, vi } from 'vitest'
import { useConfigFiles } from '../../test/support/config-files.ts'
import { useDatabase } from '../../test/support/database.ts'
import { metricsOf, type OtlpMetric } from '../../test/support/otlp.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { type Receiver, useReceivers } from '../../test/support/receiver.ts'
import { recording, useRelays } from '../../test/support/running-relay.ts'
import { emitOneOfEach, oneOfEachGauge } from '../../test/support/sample-events.ts'
import { createOutbox } from '../outbox/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from '../worker/events.ts'
import { dead, retry } from '../worker/completion/outcome.ts'
import { ALL_METRICS, gauge } from './metrics.ts'
import { observeWithOpenTelemetry } from './opentelemetry.ts'
import { createMetrics } from './prometheus.ts'

const { url } = useDatabase()
const startRelay = useRelays(url)
const receiver = useReceivers()
const { spawnNode } = useProcesses()
const { directoryWith } = useConfigFiles()
const db = openDatabase({ url })
const { enqueue } = createOutbox()
afterAll(async () => db.close())

async function startCollector(): Promise<Receiver> {
  return receiver((_, response) => {
    response.setHeader('content-type', 'application/json')
    response.end('{}')
  })
}

/** An SDK that exports when it is told to. */
function startSdk(collector: Receiver) {
  const reader = new PeriodicExportingMetricReader({
    exporter: new OTLPMetricExporter({ url: `${collector.url}/v1/metrics` }),
    exportIntervalMillis: 3_600_000,
  })
  const provider = new MeterProvider({ readers: [reader] })
  onTestFinished(async () => provider.shutdown())
  const api = { metrics: { getMeter: (name: string, version?: string) => provider.getMeter(name, version) } }
  const exported = async (): Promise<ReadonlyMap<string, OtlpMetric>> => {
    await reader.forceFlush()
    const last = collector.received.at(-1)
    if (last === undefined) throw new Error('nothing was exported')
    return metricsOf(last)
  }
  return { api, exported }
}

/** The lines that /metrics would have for what was exported. */
function asPrometheus(exported: ReadonlyMap<string, OtlpMetric>): string[] {
  return ALL_METRICS.flatMap(({ name, instrument, labels: order }) =>
    (exported.get(instrument)?.points ?? []).flatMap(({ labels, value, count, buckets, bounds }) => {
      const pairs = order.map((label) => `${label}="${labels[label] ?? ''}"`)
      const series = (suffix: string, more: readonly string[] = []): string =>
        `${name}${suffix}${pairs.length + more.length === 0 ? '' : `{${[...pairs, ...more].join()}}`}`
      if (buckets.length === 0) return [`${series('')} ${value}`]
      let total = 0
      const lines = buckets.map((observations, i) => {
        total += observations
        return `${series('_bucket', [`le="${bounds[i] ?? '+Inf'}"`])} ${total}`
      })
      return [...lines, `${series('_sum')} ${value}`, `${series('_count')} ${count}`]
    }),
  ).toSorted()
}

function samplesIn(text: string): string[] {
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return lines.filter((line) => !line.startsWith('leasehold_scrape_errors')).toSorted()
}

it('RULE-020-023: every metric is exported by the SDK, with its kind, its unit, its labels and the same values as in /metrics', async () => {
  const collector = await startCollector()
  const { api, exported } = startSdk(collector)
  const events = new Events()
  const gauges = oneOfEachGauge()
  const metrics = createMetrics(events, { gauges })
  observeWithOpenTelemetry(events, api, { version: '1.2.3', gauges })
  for (const worker of ['w1', 'w2', 'w1']) emitOneOfEach(events, { worker })
  const found = await exported()
  const known = ALL_METRICS.filter(({ name }) => name !== 'leasehold_scrape_errors')
  expect([...found.keys()].toSorted()).toEqual(known.map(({ instrument }) => instrument).toSorted())
  for (const { instrument, kind, unit, help, buckets } of known) {
    const metric = found.get(instrument)
    expect(metric).toMatchObject({ kind, unit, description: help, scope: 'leasehold 1.2.3' })
    expect(metric?.points[0]?.bounds).toEqual(buckets)
  }
  expect(
    ['reaper.recovered.count', 'reaper.stale.duration', 'reaper.runs.total'].every((name) => found.has(name)),
  ).toBe(true)
  expect(asPrometheus(found)).toEqual(samplesIn(await metrics.render()))
})

it('of a run of a relay, the SDK exports what /metrics says and the table has', async () => {
  const collector = await startCollector()
  const { api, exported } = startSdk(collector)
  const events = new Events()
  const metrics = createMetrics(events)
  observeWithOpenTelemetry(events, api)
  const failed = new Set<string>()
  const publisher = recording(({ id, type }) => {
    if (type === 'hopeless') return dead('hopeless')
    if (type !== 'fails' || failed.has(id)) return undefined
    failed.add(id)
    return retry({ delayMs: 1 })
  })
  const types = ['plain', 'fails', 'plain', 'hopeless', 'plain', 'fails']
  let unfinished = types.length
  const done = events.next('settled', ({ outcome, ids }) => {
    if (outcome !== 'retry') unfinished -= ids.length
    return unfinished === 0
  })
  await enqueue(
    db,
    types.map((type) => ({ type, payload: {} })),
  )
  const { runtime } = await startRelay({ publisher }, { events, id: 'w1' })
  await done
  await runtime.stop()
  const found = await exported()
  expect(asPrometheus(found)).toEqual(samplesIn(await metrics.render()))
  const { rows } = await db.query<{ published: number; dead: number }>({
    text: `select count(*) filter (where status = 'PUBLISHED')::int as published,
      count(*) filter (where status = 'DEAD')::int as dead from leasehold.outbox`,
  })
  const of = (outcome: string): number | undefined =>
    found.get('leasehold.settled.rows')?.points.find(({ labels }) => labels['outcome'] === outcome)?.value
  expect({ published: of('done'), dead: of('dead') }).toEqual(rows[0])
  expect(found.get('leasehold.end.to.end.latency')?.points[0]?.count).toBe(rows[0]?.published)
})

it('a gauge that cannot be read is missing from the export and reported by the SDK; all others are there', async () => {
  const problems: string[] = []
  const log = { error: (...parts: unknown[]) => void problems.push(parts.map(String).join(' ')) }
  const silent = () => undefined
  diag.setLogger({ warn: silent, info: silent, debug: silent, verbose: silent, ...log }, DiagLogLevel.ERROR)
  onTestFinished(() => diag.disable())
  const collector = await startCollector()
  const { api, exported } = startSdk(collector)
  const table = { table: 'public.emails' }
  observeWithOpenTelemetry(new Events(), api, {
    gauges: [
      { metric: 'oldestPendingAge', read: async () => Promise.reject(new Error('the database is away')) },
      gauge('oldestPendingAge', () => [{ labels: table, value: 9 }]),
      gauge('inFlightRows', () => [{ labels: { worker: 'w1' }, value: 4 }]),
    ],
  })
  const found = await exported()
  expect(found.get('leasehold.oldest.pending.age')?.points).toMatchObject([{ labels: table, value: 9 }])
  expect(found.get('leasehold.in.flight.rows')?.points).toMatchObject([{ value: 4 }])
  expect(problems.join('\n')).toContain('the database is away')
})

it('`leasehold work` exports through an SDK that was registered before it, without further settings', async () => {
  const collector = await startCollector()
  const dist = new URL('../../dist/', import.meta.url).href
  const cwd = await directoryWith(`
    import { relay } from '${dist}outbox/index.js'
    import { handlers } from '${dist}outbox/publishers/handlers.js'
    const publisher = handlers({ plain: async () => undefined })
    export default { workers: [relay({ publisher, retention: false })] }`)
  await db.query({ text: 'truncate leasehold.outbox' })
  const process = spawnNode('dist/cli/main.js', ['work', '--worker-id', 'w1'], {
    cwd,
    env: {
      DATABASE_URL: url,
      LEASEHOLD_PORT: '',
      NODE_OPTIONS: `--import ${new URL('../../test/fixtures/telemetry.mjs', import.meta.url).href}`,
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
    },
  })
  onTestFinished(async () => void (await process.kill('SIGKILL')))
  await process.line((line) => line.includes('Ctrl-C'))
  const http = (await process.line((line) => line.startsWith('  HTTP'))).slice(13).trim()
  await enqueue(
    db,
    Array.from({ length: 20 }, () => ({ type: 'plain', payload: {} })),
  )
  await vi.waitFor(
    async () => {
      const last = collector.received.findLast(({ path }) => path.endsWith('/v1/metrics'))
      const lines = last === undefined ? [] : asPrometheus(metricsOf(last))
      expect(lines).toContain(
        'leasehold_settled_rows_total{table="leasehold.outbox",outcome="done",worker="w1"} 20',
      )
      const latency = 'leasehold_end_to_end_latency_seconds_'
      // The last digit of the sum depends on the order of its summands.
      const ofLatency = (all: readonly string[]): string[] =>
        all
          .filter((line) => line.startsWith(latency))
          .map((line) => line.replace(/(?<=_sum\{.* [\d.]{6})\d*$/, ''))
      const text = await (await fetch(`${http}/metrics`)).text()
      expect(ofLatency(lines)).toEqual(ofLatency(samplesIn(text)))
      expect(lines).toContain('leasehold_worker_processes{state="alive"} 1')
    },
    { timeout: 60_000, interval: 50 },
  )
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})
