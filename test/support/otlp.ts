/** What an OTLP exporter has sent, read as an OpenTelemetry collector does. */
import type { Received } from './receiver.ts'

interface Attribute {
  readonly key: string
  readonly value: { readonly stringValue?: string }
}

interface Point {
  readonly attributes: readonly Attribute[]
  readonly asDouble?: number
  readonly asInt?: number | string
  readonly count?: number | string
  readonly sum?: number
  readonly bucketCounts?: readonly (number | string)[]
  readonly explicitBounds?: readonly number[]
}

interface Exported {
  readonly name: string
  readonly description?: string
  readonly unit?: string
  readonly sum?: { readonly dataPoints: readonly Point[]; readonly isMonotonic: boolean }
  readonly gauge?: { readonly dataPoints: readonly Point[] }
  readonly histogram?: { readonly dataPoints: readonly Point[] }
}

export interface OtlpMetric {
  readonly kind: 'counter' | 'gauge' | 'histogram' | 'other'
  readonly scope: string
  readonly unit: string
  readonly description: string
  readonly points: readonly OtlpPoint[]
}

export interface OtlpPoint {
  readonly labels: Readonly<Record<string, string>>
  /** Of a histogram: the sum of its observations. */
  readonly value: number
  readonly count: number
  /** The observations in each bucket, the one above the last bound included. */
  readonly buckets: readonly number[]
  readonly bounds: readonly number[]
}

interface Body {
  readonly resourceMetrics?: readonly {
    readonly scopeMetrics: readonly {
      readonly scope: { readonly name: string; readonly version?: string }
      readonly metrics: readonly Exported[]
    }[]
  }[]
}

/** The metrics of one request, by the name of the instrument. */
export function metricsOf({ body }: Pick<Received, 'body'>): ReadonlyMap<string, OtlpMetric> {
  // The test compares what is in it.
  const { resourceMetrics = [] } = JSON.parse(body) as Body
  const scopes = resourceMetrics.flatMap(({ scopeMetrics }) => scopeMetrics)
  return new Map(
    scopes.flatMap(({ scope, metrics }) =>
      metrics.map((metric) => [metric.name, read(metric, `${scope.name} ${scope.version ?? ''}`.trim())]),
    ),
  )
}

function read(metric: Exported, scope: string): OtlpMetric {
  const { sum, gauge, histogram, unit = '', description = '' } = metric
  const kind =
    sum?.isMonotonic === true
      ? 'counter'
      : gauge !== undefined
        ? 'gauge'
        : histogram !== undefined
          ? 'histogram'
          : 'other'
  const points = (sum ?? gauge ?? histogram)?.dataPoints ?? []
  return { kind, scope, unit, description, points: points.map(readPoint) }
}

function readPoint(point: Point): OtlpPoint {
  const { attributes, asDouble, asInt, sum, count = 0, bucketCounts = [], explicitBounds = [] } = point
  return {
    labels: Object.fromEntries(attributes.map(({ key, value }) => [key, value.stringValue ?? ''])),
    value: Number(asDouble ?? asInt ?? sum),
    count: Number(count),
    buckets: bucketCounts.map(Number),
    bounds: explicitBounds,
  }
}
