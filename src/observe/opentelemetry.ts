import type { Events } from '../worker/events.ts'
import type { GaugeSource } from './gauge-source.ts'
import { measure } from './measure.ts'
import {
  METRICS,
  METRIC_NAMES,
  STALE_BUCKETS,
  type GaugeName,
  type Metric,
  type MetricName,
} from './metric-catalog.ts'

/** As much of `@opentelemetry/api` as is used here; the package itself is an optional peer. */
export interface OpenTelemetryApi {
  readonly metrics: { getMeter(name: string, version?: string): Meter }
}

type Attributes = Readonly<Record<string, string>>

interface InstrumentOptions {
  readonly description: string
  readonly unit: string
  readonly advice?: { readonly explicitBucketBoundaries: number[] }
}

type Observe = (result: { observe(value: number, attributes?: Attributes): void }) => Promise<void> | void

interface ObservableGauge {
  addCallback(callback: Observe): void
  removeCallback(callback: Observe): void
}

export interface Meter {
  createCounter(name: string, options: InstrumentOptions): { add(by: number, attributes: Attributes): void }
  createHistogram(
    name: string,
    options: InstrumentOptions,
  ): { record(value: number, attributes: Attributes): void }
  createObservableGauge(name: string, options: InstrumentOptions): ObservableGauge
}

export interface OpenTelemetryOptions {
  readonly version?: string
  readonly gauges?: readonly GaugeSource[]
}

/** Feeds OpenTelemetry instruments from the events. Returns what ends it. */
export function observeWithOpenTelemetry(
  events: Events,
  api: OpenTelemetryApi,
  { version, gauges = [] }: OpenTelemetryOptions = {},
): () => void {
  const meter = api.metrics.getMeter('leasehold', version)
  const counters = instruments('counter', (metric) =>
    meter.createCounter(metric.instrument, described(metric)),
  )
  const histograms = instruments('histogram', (metric) =>
    meter.createHistogram(metric.instrument, {
      ...described(metric),
      advice: { explicitBucketBoundaries: [...STALE_BUCKETS] },
    }),
  )
  const told = new Map<GaugeName, Map<string, { readonly labels: Attributes; readonly value: number }>>()

  const observing = gaugeNames(gauges).map((name) => {
    const instrument = meter.createObservableGauge(METRICS[name].instrument, described(METRICS[name]))
    const callback: Observe = async (result) => {
      for (const { labels, value } of told.get(name)?.values() ?? []) result.observe(value, labels)
      for (const source of gauges.filter(({ metric }) => metric === name)) {
        for (const { labels, value } of await source.read()) result.observe(value, labels)
      }
    }
    instrument.addCallback(callback)
    return () => instrument.removeCallback(callback)
  })

  const close = measure(events, {
    add: (metric, labels, by = 1) => counters.get(metric)?.add(by, labels),
    observe: (metric, labels, value) => histograms.get(metric)?.record(value, labels),
    set(metric, labels, value) {
      const known = told.get(metric) ?? new Map<string, { labels: Attributes; value: number }>()
      told.set(metric, known)
      known.set(JSON.stringify(labels), { labels, value })
    },
  })
  return () => {
    close()
    for (const end of observing) end()
  }
}

/** The package, if the user has installed it. Without a registered SDK it does nothing, and costs as much. */
export async function loadOpenTelemetry(
  load: (name: string) => Promise<unknown> = async (name) => import(name),
): Promise<OpenTelemetryApi | undefined> {
  try {
    // Its own types say more than our interface asks for.
    return (await load('@opentelemetry/api')) as OpenTelemetryApi
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND') return undefined
    throw error
  }
}

function instruments<Instrument>(
  kind: Metric['kind'],
  create: (metric: Metric) => Instrument,
): ReadonlyMap<MetricName, Instrument> {
  const names = METRIC_NAMES.filter((name) => METRICS[name].kind === kind)
  return new Map(names.map((name) => [name, create(METRICS[name])]))
}

/** The gauges that events tell of, and those that can be read; a scrape is Prometheus's affair. */
function gaugeNames(gauges: readonly GaugeSource[]): readonly GaugeName[] {
  return [...new Set<GaugeName>(['paused', 'workerInfo', ...gauges.map(({ metric }) => metric)])]
}

function described({ help, unit }: Metric): InstrumentOptions {
  return { description: help, unit }
}
