/**
 * Every metric, and what it is measured from. Prometheus and OpenTelemetry both work through `METRICS`.
 *
 * To add a counter, add one entry to `METRICS`: the event that increases it, its name, its labels (fields of that event)
 * and its help text. The label `worker` is added to each. Then add its row to docs/reference/metrics.md; a test compares the page
 * with this table.
 */
import { type Clock, systemClock } from '../clock.ts'
import { within } from '../timeout.ts'
import { type EventOf, type Events, type EventType, isDeadOutcome } from '../worker/events.ts'

const DEAD_ROWS = {
  name: 'leasehold_dead_rows_total',
  labels: ['table'],
  help: 'Rows that are dead: settled so, reaped at their last attempt, or given up by maintenance.',
} as const

export const METRICS = {
  claims: counter('claimed', {
    name: 'leasehold_claims_total',
    labels: ['table'],
    help: 'Claims that found rows.',
  }),
  claimedRows: counter('claimed', {
    name: 'leasehold_claimed_rows_total',
    labels: ['table'],
    help: 'Rows claimed.',
    amount: ({ count }) => count,
  }),
  settledRows: counter('settled', {
    name: 'leasehold_settled_rows_total',
    labels: ['table', 'outcome'],
    help: 'Rows settled, by outcome.',
    amount: ({ ids }) => ids.length,
  }),
  latency: histogram('settled', {
    name: 'leasehold_end_to_end_latency_seconds',
    labels: ['table'],
    help: 'Time from when a row was written until it was settled as done.',
    // From an event that is published at once to a delivery whose last retry succeeds.
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 43_200],
    seconds: ({ latenciesMs = [] }) => latenciesMs.map((ms) => ms / 1_000),
  }),
  deadRows: sumOf(
    counter('settled', {
      ...DEAD_ROWS,
      amount: ({ outcome, ids }) => (isDeadOutcome(outcome) ? ids.length : 0),
    }),
    counter('reaped', { ...DEAD_ROWS, amount: ({ outcome }) => (outcome === 'dead' ? 1 : 0) }),
    counter('maintenanceRan', { ...DEAD_ROWS, amount: ({ dead }) => dead }),
  ),
  releasedRows: counter('released', {
    name: 'leasehold_released_rows_total',
    labels: ['table'],
    help: 'Rows released without an outcome.',
    amount: ({ ids }) => ids.length,
  }),
  fencedOffRows: counter('fencedOff', {
    name: 'leasehold_fenced_off_rows_total',
    labels: ['table'],
    help: 'Rows whose outcome was not written because the lease was no longer current.',
  }),
  dataErrors: counter('dataError', {
    name: 'leasehold_data_errors_total',
    labels: ['table', 'verb'],
    help: 'Rows that were left out of a statement because they stopped it with a data error, by verb.',
  }),
  lostLeases: counter('lost', {
    name: 'leasehold_lost_leases_total',
    labels: ['table', 'reason'],
    help: 'Leases lost, or no longer trusted, while their rows waited for a slot or were being processed.',
  }),
  handlerFailures: counter('failed', {
    name: 'leasehold_handler_failures_total',
    labels: ['table', 'outcome'],
    help: 'Rows whose handler threw or reported a failure, by the outcome they were then settled with.',
  }),
  heartbeats: counter('renewed', {
    name: 'leasehold_heartbeats_total',
    labels: ['table'],
    help: 'Heartbeats that the database answered. Each renews all rows in flight of the table.',
  }),
  renewedRows: counter('renewed', {
    name: 'leasehold_renewed_rows_total',
    labels: ['table'],
    help: 'Rows whose lease a heartbeat has renewed, counted at each renewal.',
    amount: ({ count }) => count,
  }),
  heartbeatFailures: counter('renewalFailed', {
    name: 'leasehold_heartbeat_failures_total',
    labels: ['table'],
    help: 'Heartbeats that failed.',
  }),
  reapedRows: counter('reaped', {
    name: 'reaper_recovered_count_total',
    // RULE-020-023 prescribes the names of the three instruments of the reaper.
    instrument: 'reaper.recovered.count',
    labels: ['table', 'outcome'],
    help: 'Rows the reaper took back from expired leases and dead worker processes, by outcome: retry or dead.',
  }),
  reapDelay: histogram('reaped', {
    name: 'reaper_stale_duration_seconds',
    instrument: 'reaper.stale.duration',
    labels: ['table'],
    help: 'Time from the end of a lease until the reaper took the row back.',
    // From a worker process that was found dead at once to one that nobody noticed for an hour.
    buckets: [0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900, 3_600],
    // The lease of a worker process that was declared dead early has not ended yet.
    seconds: ({ staleMs }) => [Math.max(0, staleMs) / 1_000],
  }),
  reaperRuns: counter('reaperRan', {
    name: 'reaper_runs_total',
    instrument: 'reaper.runs.total',
    labels: [],
    help: 'Runs of the reaper over the tables that were due.',
  }),
  reaperFailures: counter('reaperFailed', {
    name: 'leasehold_reaper_failures_total',
    labels: [],
    help: 'Times the reaper failed, on one table or as a whole.',
  }),
  reaperAlive: sampledGauge({
    name: 'leasehold_reaper_alive',
    labels: ['table'],
    help: '1 while a process that is alive reaps the table and succeeds, otherwise 0.',
  }),
  inFlightRows: sampledGauge({
    name: 'leasehold_in_flight_rows',
    labels: ['worker'],
    help: 'Rows this worker process holds leases on: waiting for a slot, being processed, or waiting to be settled.',
  }),
  claimingPaused: stateGauge('paused', 'resumed', {
    name: 'leasehold_claiming_paused',
    labels: ['table', 'reason'],
    help: '1 while this process does not claim from the table for this reason, otherwise 0.',
  }),
  workerProcessInfo: stateGauge('workerStarted', 'workerStopped', {
    name: 'leasehold_worker_process_info',
    labels: [],
    help: '1 while the workers of this process run, 0 once they have stopped.',
  }),
  workerProcesses: sampledGauge({
    name: 'leasehold_worker_processes',
    labels: ['state'],
    help: 'Worker processes in the registry, by state: alive, missing or dead.',
  }),
  workerProcessesDied: counter('workerDied', {
    name: 'leasehold_worker_processes_died_total',
    labels: [],
    help: 'Worker processes that this process declared dead.',
  }),
  pendingRows: sampledGauge({
    name: 'leasehold_pending_rows',
    labels: ['table'],
    help: 'Rows that could be claimed now, counted up to 10000; of rows with ordering keys, the heads.',
  }),
  oldestPendingAge: sampledGauge({
    name: 'leasehold_oldest_pending_age_seconds',
    labels: ['table'],
    help: 'How long the oldest row that could be claimed now has been waiting; 0 when there is none.',
  }),
  heldUpKeys: sampledGauge({
    name: 'leasehold_held_up_keys',
    labels: ['table', 'state'],
    help: 'Ordering keys whose head has failed: blocked until its retry, or parked until an operator unblocks them.',
  }),
  oldestSnapshotAge: sampledGauge({
    name: 'leasehold_oldest_snapshot_age_seconds',
    labels: [],
    help: 'How long the oldest transaction has been open that prevents VACUUM from removing dead rows; 0 when there is none.',
  }),
  databaseFailures: counter('databaseLost', {
    name: 'leasehold_database_failures_total',
    labels: [],
    help: 'Attempts of this process that found the database unavailable.',
  }),
  unexpectedErrors: counter('trouble', {
    name: 'leasehold_unexpected_errors_total',
    labels: [],
    help: 'Errors that should not happen and did not end the process. The log has each of them.',
  }),
  scrapeErrors: sampledGauge({
    name: 'leasehold_scrape_errors',
    labels: [],
    help: 'Gauges missing from this answer, because what they are read from did not answer.',
  }),
} satisfies Readonly<Record<string, Metric>>

/** In the order of the table. */
export const ALL_METRICS: readonly Metric[] = Object.values(METRICS)

export type Labels = Readonly<Record<string, string>>

/** Takes measurements of one series: an increment of a counter, the value of a gauge, the observations of a histogram. */
export type RecordValues = (labels: Labels, values: readonly number[]) => void

export interface Metric {
  readonly kind: 'counter' | 'gauge' | 'histogram'
  /** For Prometheus. */
  readonly name: string
  /** For OpenTelemetry. */
  readonly instrument: string
  /** For OpenTelemetry. Not `1`, which means a ratio there: exporters to Prometheus would add `_ratio` to the name. */
  readonly unit: 's' | '{row}' | ''
  readonly labels: readonly string[]
  readonly help: string
  /** The upper bounds of a histogram's buckets, ascending. */
  readonly buckets: readonly number[]
  /** Records what the events say about the metric from now on; returns what ends it. A sampled gauge has none. */
  readonly follow?: (events: Events, record: RecordValues) => () => void
}

/** A gauge that is read when somebody asks for it, instead of following events. */
interface SampledGauge<Label extends string> extends Metric {
  readonly labels: readonly Label[]
  readonly isSampled: true
}

/**
 * The event fields that may be labels. Each pair of label values is a series of its own, so a label must have few
 * values in a deployment. Row ids have many.
 */
type EventLabel = 'table' | 'outcome' | 'reason' | 'verb'

/**
 * A worker id is new with every start unless it is given, and a series is never forgotten. So a program that starts
 * runtimes without end gets series for this many ids; all later ones share the label `other`.
 */
const MAX_WORKER_IDS = 20

interface Description<Label extends string> {
  readonly name: string
  /** Default: the name in the style of OpenTelemetry, without the suffix of its unit. */
  readonly instrument?: string
  readonly labels: readonly Label[]
  readonly help: string
}

type DescriptionFor<Type extends EventType> = Description<Extract<EventLabel, keyof EventOf<Type>>>

/** A counter that every event of the type increases, by 1 unless `amount` says otherwise. */
function counter<Type extends EventType>(
  type: Type,
  description: DescriptionFor<Type> & { readonly amount?: (event: EventOf<Type>) => number },
): Metric {
  const { labels, amount = () => 1 } = description
  return {
    ...ofWorker('counter', description),
    follow: (events, record) =>
      events.onInternal(type, (event) => record(labelsFrom<Type>(event, labels), [amount(event)])),
  }
}

/** A counter that events of several types increase. An event that adds 0 makes its series start at 0. */
function sumOf(first: Metric, ...others: readonly Metric[]): Metric {
  return {
    ...first,
    follow(events, record) {
      const ends = [first, ...others].map((part) => part.follow?.(events, record))
      return () => {
        for (const end of ends) end?.()
      }
    },
  }
}

/** A distribution of durations, of which an event of the type may bring several. */
function histogram<Type extends EventType>(
  type: Type,
  description: DescriptionFor<Type> & {
    readonly buckets: readonly number[]
    readonly seconds: (event: EventOf<Type>) => readonly number[]
  },
): Metric {
  const { labels, buckets, seconds } = description
  return {
    ...ofWorker('histogram', description),
    buckets,
    follow: (events, record) =>
      events.onInternal(type, (event) => {
        const observed = seconds(event)
        if (observed.length > 0) record(labelsFrom<Type>(event, labels), observed)
      }),
  }
}

/** A gauge that is 1 after an event of the first type and 0 after one of the second. */
function stateGauge<On extends EventType, Off extends EventType>(
  on: On,
  off: Off,
  description: DescriptionFor<On> & DescriptionFor<Off>,
): Metric {
  const { labels } = description
  return {
    ...ofWorker('gauge', description),
    follow(events, record) {
      const ends = [
        events.onInternal(on, (event) => record(labelsFrom<On>(event, labels), [1])),
        events.onInternal(off, (event) => record(labelsFrom<Off>(event, labels), [0])),
      ]
      return () => {
        for (const end of ends) end()
      }
    },
  }
}

function sampledGauge<const Label extends string = never>(
  description: Description<Label>,
): SampledGauge<Label> {
  return { ...described('gauge', description), labels: description.labels, isSampled: true }
}

/** RULE-020-032: what follows events belongs to one worker process, and its series carry its id. */
function ofWorker(kind: Metric['kind'], description: Description<string>): Metric {
  return described(kind, { ...description, labels: [...description.labels, 'worker'] })
}

function described(kind: Metric['kind'], { name, instrument, labels, help }: Description<string>): Metric {
  return {
    kind,
    name,
    instrument: instrument ?? name.replace(/_(?:total|seconds)$/, '').replaceAll('_', '.'),
    unit: name.endsWith('_seconds') ? 's' : name.includes('_rows') ? '{row}' : '',
    labels,
    help,
    buckets: [],
  }
}

function labelsFrom<Type extends EventType>(
  event: EventOf<Type>,
  labels: readonly (keyof EventOf<Type> & string)[],
): Labels {
  const own = Object.fromEntries(labels.map((label) => [label, String(event[label])]))
  return { ...own, worker: event.worker }
}

/** Hands every measurement that the events bring to `record`. Returns what ends it. */
export function followEvents(
  events: Events,
  record: (metric: Metric, labels: Labels, values: readonly number[]) => void,
): () => void {
  const known = new Set<string>()

  function shown(worker: string): string {
    if (known.size < MAX_WORKER_IDS) known.add(worker)
    return known.has(worker) ? worker : 'other'
  }

  const ends = ALL_METRICS.map((metric) =>
    metric.follow?.(events, ({ worker = '', ...labels }, values) =>
      record(metric, { ...labels, worker: shown(worker) }, values),
    ),
  )
  // These start at 0 with their worker process, so that their first increase is seen as one.
  const end = events.onInternal('workerStarted', ({ worker }) => {
    for (const metric of ALL_METRICS) {
      if (metric.kind === 'counter' && metric.labels.length === 1)
        record(metric, { worker: shown(worker) }, [0])
    }
  })
  return () => {
    end()
    for (const each of ends) each?.()
  }
}

type Metrics = typeof METRICS

/** The gauges that are read when somebody asks. The scrape counts its own errors. */
export type GaugeName = Exclude<
  { [Name in keyof Metrics]: Metrics[Name] extends SampledGauge<string> ? Name : never }[keyof Metrics],
  'scrapeErrors'
>

export interface Sample {
  readonly labels: Labels
  readonly value: number
}

/** Where the samples of a gauge come from. */
export interface GaugeSource {
  readonly metric: GaugeName
  /** Rejects when it cannot be read now. */
  read(): Promise<readonly Sample[]>
}

/** A sample with the labels of the given gauge. */
interface SampleOf<Name extends GaugeName> extends Sample {
  readonly labels: Readonly<Record<Metrics[Name]['labels'][number], string>>
}

/** A gauge that is read from memory. */
export function gauge<Name extends GaugeName>(
  metric: Name,
  read: () => readonly SampleOf<Name>[],
): GaugeSource {
  return { metric, read: async () => Promise.resolve(read()) }
}

export interface DatabaseGaugeOptions {
  /** Nobody who asks waits longer than this. Default 2,000. */
  readonly timeoutMs?: number
  /** How long an answer, or a failure, is reused. Default 5,000. */
  readonly reuseMs?: number
  readonly clock?: Clock
}

/** An answer that took a second is reused for twenty, so that scraping costs the database at most 5 % of its time. */
const REUSE_PER_QUERY_TIME = 20

/** A gauge that is read from the database: by one query at a time, and not more often than its cost allows. */
export function databaseGauge<Name extends GaugeName>(
  metric: Name,
  query: () => Promise<readonly SampleOf<Name>[]>,
  options: DatabaseGaugeOptions = {},
): GaugeSource {
  return { metric, read: reusedAnswer(METRICS[metric].name, query, options) }
}

/** Several gauges that are read from the database together, under the same rules. Each gives its part of the answer. */
export function databaseGauges<Answer>(
  query: () => Promise<Answer>,
  parts: { readonly [Name in GaugeName]?: (answer: Answer) => readonly SampleOf<Name>[] },
): GaugeSource[] {
  // Object.keys forgets which keys it was given.
  const names = Object.keys(parts) as readonly GaugeName[]
  const read = reusedAnswer(names.map((name) => METRICS[name].name).join(', '), query)
  return names.map((metric) => ({ metric, read: async () => parts[metric]?.(await read()) ?? [] }))
}

function reusedAnswer<Answer>(
  what: string,
  query: () => Promise<Answer>,
  { timeoutMs = 2_000, reuseMs = 5_000, clock = systemClock }: DatabaseGaugeOptions = {},
): () => Promise<Answer> {
  let running: Promise<void> | undefined
  let last: { readonly answer: () => Answer; readonly validUntil: number } | undefined

  async function runQuery(): Promise<void> {
    const startedAt = clock.monotonicNow()
    const answer = await query().then(
      (value) => () => value,
      (error: unknown) => () => {
        throw error
      },
    )
    const endedAt = clock.monotonicNow()
    const validMs = Math.max(reuseMs, (endedAt - startedAt) * REUSE_PER_QUERY_TIME)
    last = { answer, validUntil: endedAt + validMs }
    running = undefined
  }

  return async () => {
    if (last !== undefined && clock.monotonicNow() < last.validUntil) return last.answer()
    running ??= runQuery()
    if (!(await within(timeoutMs, running)) || last === undefined) {
      throw new Error(`${what} was not answered within ${timeoutMs} ms`)
    }
    return last.answer()
  }
}
