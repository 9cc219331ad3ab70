import type { Events } from '../worker/events.ts'
import type { CounterName, GaugeName, HistogramName, LabelsOf } from './metric-catalog.ts'

/** Where measurements go: the Prometheus text, or OpenTelemetry. */
export interface Measurements {
  add<Name extends CounterName>(metric: Name, labels: LabelsOf<Name>, by?: number): void
  observe<Name extends HistogramName>(metric: Name, labels: LabelsOf<Name>, value: number): void
  set<Name extends GaugeName>(metric: Name, labels: LabelsOf<Name>, value: number): void
}

/**
 * What each event means as a number. Not heard: `started` and `aborted`, so that a busy worker does not build an event
 * for each row on our account. Returns what ends the listening.
 */
export function measure(events: Events, into: Measurements): () => void {
  const listening = [
    events.on('claimed', ({ table, count }) => {
      into.add('claims', { table })
      into.add('claimedRows', { table }, count)
    }),
    events.on('settled', ({ table, outcome, ids }) =>
      into.add('settlements', { table, outcome }, ids.length),
    ),
    events.on('released', ({ table, ids }) => into.add('releasedRows', { table }, ids.length)),
    events.on('dataError', ({ table, verb }) => into.add('dataErrors', { table, verb })),
    events.on('fencedOff', ({ table }) => into.add('fencedOff', { table })),
    events.on('lost', ({ table, reason }) => into.add('leasesLost', { table, reason })),
    events.on('failed', ({ table, outcome }) => into.add('handlerFailures', { table, outcome })),
    events.on('renewed', ({ table }) => into.add('heartbeats', { table })),
    events.on('renewalFailed', ({ table }) => into.add('heartbeatFailures', { table })),
    events.on('paused', ({ table, reason }) => into.set('paused', { table, reason }, 1)),
    events.on('resumed', ({ table, reason }) => into.set('paused', { table, reason }, 0)),
    events.on('reaped', ({ table, staleMs }) => {
      into.add('reaperRecovered', { table })
      // The lease of a worker that was found dead early is not over yet.
      into.observe('reaperStale', { table }, Math.max(0, staleMs) / 1_000)
    }),
    events.on('reaperRan', () => into.add('reaperRuns', {})),
    events.on('reaperFailed', () => into.add('reaperFailures', {})),
    events.on('workerStarted', ({ worker }) => into.set('workerInfo', { worker }, 1)),
    events.on('workerStopped', ({ worker }) => into.set('workerInfo', { worker }, 0)),
    events.on('workerDied', () => into.add('workersDied', {})),
    events.on('databaseLost', () => into.add('databaseLosses', {})),
    events.on('trouble', () => into.add('troubles', {})),
  ]
  return () => {
    for (const off of listening) off()
  }
}
