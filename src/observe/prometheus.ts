/** The Prometheus text format, version 0.0.4, and the numbers it is written from. */
import type { Measurements } from './measure.ts'
import {
  METRIC_NAMES,
  METRICS,
  STALE_BUCKETS,
  type Metric,
  type MetricName,
  type GaugeName,
} from './metric-catalog.ts'

export const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

type Labels = Readonly<Record<string, string>>

export interface Sample {
  readonly labels: Labels
  readonly value: number
}

interface Series {
  readonly labels: Labels
  value: number
  /** Of a histogram: how many observations fell into each bucket, and into none; `value` is their sum. */
  readonly counts: number[]
}

export interface Numbers extends Measurements {
  /** All families in the order of the catalogue; the given samples are added to what events have told. */
  text(read: ReadonlyMap<GaugeName, readonly Sample[]>): string
}

export function createNumbers(): Numbers {
  // A counter without labels begins at 0, so that its first increase can be seen as one.
  const series = new Map<MetricName, Map<string, Series>>(METRIC_NAMES.map((name) => [name, new Map()]))
  for (const name of METRIC_NAMES) {
    const { kind, labels }: Metric = METRICS[name]
    if (kind === 'counter' && labels.length === 0) seriesOf(name, {})
  }

  function seriesOf(name: MetricName, labels: Labels): Series {
    const known = series.get(name)
    const key = JSON.stringify(METRICS[name].labels.map((label) => Reflect.get(labels, label)))
    const found = known?.get(key)
    if (found !== undefined) return found
    const fresh: Series = {
      labels,
      value: 0,
      counts: Array.from({ length: STALE_BUCKETS.length + 1 }, () => 0),
    }
    known?.set(key, fresh)
    return fresh
  }

  return {
    add(metric, labels, by = 1) {
      seriesOf(metric, labels).value += by
    },
    set(metric, labels, value) {
      seriesOf(metric, labels).value = value
    },
    observe(metric, labels, value) {
      const found = seriesOf(metric, labels)
      found.value += value
      const bucket = STALE_BUCKETS.findIndex((bound) => value <= bound)
      const index = bucket < 0 ? STALE_BUCKETS.length : bucket
      found.counts[index] = (found.counts[index] ?? 0) + 1
    },
    text(read) {
      const samples = new Map<MetricName, readonly Sample[]>(read)
      return METRIC_NAMES.map((name) =>
        family(METRICS[name], [...(series.get(name)?.values() ?? [])], samples.get(name) ?? []),
      ).join('')
    },
  }
}

function family(metric: Metric, series: readonly Series[], read: readonly Sample[]): string {
  const { name, kind, help } = metric
  const lines =
    kind === 'histogram'
      ? series.map((one) => histogram(name, one))
      : [...series, ...read].map(({ labels, value }) => line(name, labels, value))
  // By their labels: two answers can be compared, whatever happened first.
  return [`# HELP ${name} ${escapeHelp(help)}\n`, `# TYPE ${name} ${kind}\n`, ...lines.toSorted()].join('')
}

function histogram(name: string, { labels, value, counts }: Series): string {
  let total = 0
  const buckets = [...STALE_BUCKETS, Infinity].map((bound, i) => {
    total += counts[i] ?? 0
    return line(`${name}_bucket`, { ...labels, le: number(bound) }, total)
  })
  return [...buckets, line(`${name}_sum`, labels, value), line(`${name}_count`, labels, total)].join('')
}

function line(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escapeLabel(text)}"`)
  return `${name}${pairs.length === 0 ? '' : `{${pairs.join(',')}}`} ${number(value)}\n`
}

function number(value: number): string {
  if (value === Infinity) return '+Inf'
  return value === -Infinity ? '-Inf' : String(value)
}

function escapeHelp(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
}

function escapeLabel(text: string): string {
  return escapeHelp(text).replaceAll('"', '\\"')
}
