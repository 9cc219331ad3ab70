/**
 * Every metric, once: the Prometheus text, the OpenTelemetry instruments and docs/metrics.md are made from, or
 * compared with, this list. A label is something of which a deployment has few: the id of a row is none, and a worker's
 * id, new with every start, stands on one series only.
 */
export interface Metric {
  readonly kind: 'counter' | 'gauge' | 'histogram'
  /** For Prometheus. */
  readonly name: string
  /** For OpenTelemetry. */
  readonly instrument: string
  readonly unit: 's' | '1'
  readonly labels: readonly string[]
  readonly help: string
}

export const METRICS = {
  reaperRecovered: {
    kind: 'counter',
    name: 'reaper_recovered_count',
    instrument: 'reaper.recovered.count',
    unit: '1',
    labels: ['table'],
    help: 'Rows the reaper took back from expired leases and dead workers.',
  },
  reaperStale: {
    kind: 'histogram',
    name: 'reaper_stale_duration',
    instrument: 'reaper.stale.duration',
    unit: 's',
    labels: ['table'],
    help: 'How long the lease of a row had been over when the reaper took it back, in seconds.',
  },
  reaperRuns: {
    kind: 'counter',
    name: 'reaper_runs_total',
    instrument: 'reaper.runs.total',
    unit: '1',
    labels: [],
    help: 'Runs of the reaper over all of its tables.',
  },
  reaperFailures: {
    kind: 'counter',
    name: 'leasehold_reaper_failures_total',
    instrument: 'leasehold.reaper.failures',
    unit: '1',
    labels: [],
    help: 'Times the reaper failed, on one table or as a whole.',
  },
  claims: {
    kind: 'counter',
    name: 'leasehold_claims_total',
    instrument: 'leasehold.claims',
    unit: '1',
    labels: ['table'],
    help: 'Claims that found rows.',
  },
  claimedRows: {
    kind: 'counter',
    name: 'leasehold_claimed_rows_total',
    instrument: 'leasehold.claimed.rows',
    unit: '1',
    labels: ['table'],
    help: 'Rows claimed.',
  },
  settlements: {
    kind: 'counter',
    name: 'leasehold_settlements_total',
    instrument: 'leasehold.settlements',
    unit: '1',
    labels: ['table', 'outcome'],
    help: 'Rows settled, by outcome.',
  },
  releasedRows: {
    kind: 'counter',
    name: 'leasehold_released_rows_total',
    instrument: 'leasehold.released.rows',
    unit: '1',
    labels: ['table'],
    help: 'Rows given back without an outcome.',
  },
  fencedOff: {
    kind: 'counter',
    name: 'leasehold_fenced_off_total',
    instrument: 'leasehold.fenced.off',
    unit: '1',
    labels: ['table'],
    help: 'Outcomes that were not written, because the lease was no longer current.',
  },
  dataErrors: {
    kind: 'counter',
    name: 'leasehold_data_errors_total',
    instrument: 'leasehold.data.errors',
    unit: '1',
    labels: ['table', 'verb'],
    help: 'Rows that were left out of a statement because they stopped it with a data error, by verb.',
  },
  leasesLost: {
    kind: 'counter',
    name: 'leasehold_leases_lost_total',
    instrument: 'leasehold.leases.lost',
    unit: '1',
    labels: ['table', 'reason'],
    help: 'Leases lost, or no longer trusted, while their rows were in processing.',
  },
  handlerFailures: {
    kind: 'counter',
    name: 'leasehold_handler_failures_total',
    instrument: 'leasehold.handler.failures',
    unit: '1',
    labels: ['table', 'outcome'],
    help: 'Rows whose handler threw or reported a failure, by what they were then settled as.',
  },
  heartbeats: {
    kind: 'counter',
    name: 'leasehold_heartbeats_total',
    instrument: 'leasehold.heartbeats',
    unit: '1',
    labels: ['table'],
    help: 'Renewals of all rows in flight that the database answered.',
  },
  heartbeatFailures: {
    kind: 'counter',
    name: 'leasehold_heartbeat_failures_total',
    instrument: 'leasehold.heartbeat.failures',
    unit: '1',
    labels: ['table'],
    help: 'Renewals that failed.',
  },
  inFlight: {
    kind: 'gauge',
    name: 'leasehold_in_flight',
    instrument: 'leasehold.in.flight',
    unit: '1',
    labels: [],
    help: 'Rows this process has in hand: in processing, waiting for a slot, or not yet settled.',
  },
  paused: {
    kind: 'gauge',
    name: 'leasehold_paused',
    instrument: 'leasehold.paused',
    unit: '1',
    labels: ['table', 'reason'],
    help: '1 while this process does not claim from the table for this reason, 0 when it does again.',
  },
  workerInfo: {
    kind: 'gauge',
    name: 'leasehold_worker_info',
    instrument: 'leasehold.worker.info',
    unit: '1',
    labels: ['worker'],
    help: '1 while the worker of this process runs, 0 once it has stopped; the label is its id.',
  },
  workers: {
    kind: 'gauge',
    name: 'leasehold_workers',
    instrument: 'leasehold.workers',
    unit: '1',
    labels: ['state'],
    help: 'Workers in the registry, of all processes, by state: alive, missing or dead.',
  },
  workersDied: {
    kind: 'counter',
    name: 'leasehold_workers_died_total',
    instrument: 'leasehold.workers.died',
    unit: '1',
    labels: [],
    help: 'Workers that this process found dead.',
  },
  oldestPendingAge: {
    kind: 'gauge',
    name: 'leasehold_oldest_pending_age_seconds',
    instrument: 'leasehold.oldest.pending.age',
    unit: 's',
    labels: ['table'],
    help: 'How long the oldest row that could be claimed now has been waiting; 0 when there is none.',
  },
  databaseLosses: {
    kind: 'counter',
    name: 'leasehold_database_losses_total',
    instrument: 'leasehold.database.losses',
    unit: '1',
    labels: [],
    help: 'Attempts of the worker that found the database away.',
  },
  troubles: {
    kind: 'counter',
    name: 'leasehold_troubles_total',
    instrument: 'leasehold.troubles',
    unit: '1',
    labels: [],
    help: 'Things that should not happen and did not end the process; the log has each.',
  },
  scrapeErrors: {
    kind: 'gauge',
    name: 'leasehold_scrape_errors',
    instrument: 'leasehold.scrape.errors',
    unit: '1',
    labels: [],
    help: 'Gauges missing from this answer, because what they are read from did not answer.',
  },
} as const satisfies Readonly<Record<string, Metric>>

export type MetricName = keyof typeof METRICS
type OfKind<Kind extends Metric['kind']> = {
  [Name in MetricName]: (typeof METRICS)[Name]['kind'] extends Kind ? Name : never
}[MetricName]
export type CounterName = OfKind<'counter'>
export type GaugeName = OfKind<'gauge'>
export type HistogramName = OfKind<'histogram'>

/** A value for each of the metric's labels. */
export type LabelsOf<Name extends MetricName> = Readonly<
  Record<(typeof METRICS)[Name]['labels'][number], string>
>

// Object.keys forgets which keys it was given.
export const METRIC_NAMES = Object.keys(METRICS) as readonly MetricName[]

/** Seconds. From a worker that was found dead at once to one that nobody noticed for an hour. */
export const STALE_BUCKETS = [0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900, 3_600] as const
