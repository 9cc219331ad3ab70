/** The metrics as Prometheus scrapes them: the text format, version 0.0.4. */
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

export const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

export interface MetricsOptions {
  /** What is read when somebody asks. */
  readonly gauges?: readonly GaugeSource[]
}

export interface Metrics {
  /** The Prometheus text. A gauge that cannot be read now is left out and counted as a scrape error. */
  render(): Promise<string>
  /** Stops following the events. */
  close(): void
}

interface Series {
  readonly labels: Labels
  /** Of a histogram: the sum of its observations. */
  value: number
  /** Of a histogram: the observations in each bucket, and at the end those above the last bound. */
  readonly counts: number[]
}

/** Measures the events from now on. */
export function createMetrics(events: Events, options: MetricsOptions = {}): Metrics {
  refuseUnknownOptions('createMetrics', options, namesOf<MetricsOptions>({ gauges: true }))
  const { gauges = [] } = options
  const seriesByMetric = new Map(ALL_METRICS.map((metric) => [metric, new Map<string, Series>()]))

  function seriesOf(metric: Metric, labels: Labels): Series {
    const known = seriesByMetric.get(metric)
    const key = JSON.stringify(metric.labels.map((label) => labels[label]))
    const found = known?.get(key)
    if (found !== undefined) return found
    const counts = Array.from({ length: metric.buckets.length + 1 }, () => 0)
    const created: Series = { labels, value: 0, counts }
    known?.set(key, created)
    return created
  }

  const close = followEvents(events, (metric, labels, values) => {
    const series = seriesOf(metric, labels)
    for (const value of values) {
      series.value = metric.kind === 'gauge' ? value : series.value + value
      if (metric.kind !== 'histogram') continue
      const bucket = metric.buckets.findIndex((bound) => value <= bound)
      const index = bucket < 0 ? metric.buckets.length : bucket
      series.counts[index] = (series.counts[index] ?? 0) + 1
    }
  })

  return {
    close,
    async render() {
      const sampled = await readGauges(gauges)
      return ALL_METRICS.map((metric) =>
        family(metric, [...(seriesByMetric.get(metric)?.values() ?? [])], sampled.get(metric) ?? []),
      ).join('')
    },
  }
}

/**
 * The texts of several processes as one: the samples of a metric are together, as the format demands. Of a series that
 * several of them have, such as the gauges of the database, the first one counts.
 */
export function mergeMetrics(texts: readonly string[]): string {
  const families = new Map<string, Record<'head' | 'samples', Map<string, string>>>()
  for (const text of texts) {
    let name = ''
    for (const line of text.split('\n').filter(Boolean)) {
      name = /^# (?:HELP|TYPE) (\S+)/.exec(line)?.[1] ?? name
      const family = families.get(name) ?? { head: new Map(), samples: new Map() }
      families.set(name, family)
      const isHead = line.startsWith('#')
      const lines = isHead ? family.head : family.samples
      const key = isHead ? line.slice(0, '# HELP'.length) : line.slice(0, line.lastIndexOf(' '))
      if (!lines.has(key)) lines.set(key, line)
    }
  }
  const lines = [...families.values()].flatMap(({ head, samples }) => [...head.values(), ...samples.values()])
  return lines.map((line) => `${line}\n`).join('')
}

async function readGauges(gauges: readonly GaugeSource[]): Promise<ReadonlyMap<Metric, readonly Sample[]>> {
  const answers = await Promise.allSettled(gauges.map(async (source) => source.read()))
  const samples = new Map<Metric, readonly Sample[]>()
  for (const [i, { metric: name }] of gauges.entries()) {
    const answer = answers[i]
    if (answer?.status !== 'fulfilled') continue
    samples.set(METRICS[name], [...(samples.get(METRICS[name]) ?? []), ...answer.value])
  }
  const errors = answers.filter(({ status }) => status === 'rejected').length
  return samples.set(METRICS.scrapeErrors, [{ labels: {}, value: errors }])
}

function family(metric: Metric, series: readonly Series[], sampled: readonly Sample[]): string {
  const { name, kind, help } = metric
  const lines =
    kind === 'histogram'
      ? series.map((each) => histogramLines(metric, each))
      : [...series, ...sampled].map(({ labels, value }) => sampleLine(name, labels, value))
  // Sorted by their labels, so that two answers can be compared whatever happened first.
  return [`# HELP ${name} ${escapeHelp(help)}\n`, `# TYPE ${name} ${kind}\n`, ...lines.toSorted()].join('')
}

function histogramLines({ name, buckets }: Metric, { labels, value, counts }: Series): string {
  let total = 0
  const bucketLines = [...buckets, Infinity].map((bound, i) => {
    total += counts[i] ?? 0
    return sampleLine(`${name}_bucket`, { ...labels, le: formatNumber(bound) }, total)
  })
  return [
    ...bucketLines,
    sampleLine(`${name}_sum`, labels, value),
    sampleLine(`${name}_count`, labels, total),
  ].join('')
}

function sampleLine(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escapeLabel(text)}"`)
  return `${name}${pairs.length === 0 ? '' : `{${pairs.join(',')}}`} ${formatNumber(value)}\n`
}

function formatNumber(value: number): string {
  if (value === Infinity) return '+Inf'
  return value === -Infinity ? '-Inf' : String(value)
}

function escapeHelp(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
}

function escapeLabel(text: string): string {
  return escapeHelp(text).replaceAll('"', '\\"')
}
