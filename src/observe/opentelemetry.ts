/** The metrics as OpenTelemetry instruments. */
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Events } from '../worker/events.ts'
import {
  ALL_METRICS,
  followEvents,
  type GaugeSource,
  type Labels,
  type Metric,
  METRICS,
  type Sample,
} from './metrics.ts'

/** As much of `@opentelemetry/api` as is used here; the package itself is an optional peer. */
export interface OpenTelemetryApi {
  readonly metrics: { getMeter(name: string, version?: string): Meter }
}

interface InstrumentOptions {
  readonly description: string
  readonly unit: string
  readonly advice?: { readonly explicitBucketBoundaries: number[] }
}

type Observe = (result: { observe(value: number, labels?: Labels): void }) => Promise<void> | void

interface ObservableGauge {
  addCallback(callback: Observe): void
  removeCallback(callback: Observe): void
}

export interface Meter {
  createCounter(name: string, options: InstrumentOptions): { add(by: number, labels: Labels): void }
  createHistogram(name: string, options: InstrumentOptions): { record(value: number, labels: Labels): void }
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
  options: OpenTelemetryOptions = {},
): () => void {
  const names = namesOf<OpenTelemetryOptions>({ version: true, gauges: true })
  refuseUnknownOptions('observeWithOpenTelemetry', options, names)
  const { version, gauges = [] } = options
  const meter = api.metrics.getMeter('leasehold', version)
  const recorders = new Map<Metric, (value: number, labels: Labels) => void>()
  const ends: (() => void)[] = []

  for (const metric of ALL_METRICS) {
    const { kind, instrument, help: description, unit } = metric
    if (kind === 'counter') {
      const counter = meter.createCounter(instrument, { description, unit })
      recorders.set(metric, (value, labels) => counter.add(value, labels))
    } else if (kind === 'histogram') {
      const advice = { explicitBucketBoundaries: [...metric.buckets] }
      const histogram = meter.createHistogram(instrument, { description, unit, advice })
      recorders.set(metric, (value, labels) => histogram.record(value, labels))
    } else {
      const sources = gauges.filter((source) => METRICS[source.metric] === metric)
      // A gauge that neither an event nor a source feeds has no instrument: the errors of a Prometheus scrape.
      if (metric.follow === undefined && sources.length === 0) continue
      const latest = new Map<string, Sample>()
      recorders.set(metric, (value, labels) => latest.set(JSON.stringify(labels), { labels, value }))
      const observable = meter.createObservableGauge(instrument, { description, unit })
      const readLatest = async (): Promise<Iterable<Sample>> => Promise.resolve(latest.values())
      // The SDK discards everything that a callback has observed if it fails. So each source has a callback of its own.
      for (const read of [readLatest, ...sources.map((source) => async () => source.read())]) {
        const callback: Observe = async (result) => {
          for (const { labels, value } of await read()) result.observe(value, labels)
        }
        observable.addCallback(callback)
        ends.push(() => observable.removeCallback(callback))
      }
    }
  }

  const end = followEvents(events, (metric, labels, values) => {
    const record = recorders.get(metric)
    for (const value of values) record?.(value, labels)
  })
  ends.push(end)
  return () => {
    for (const each of ends) each()
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
