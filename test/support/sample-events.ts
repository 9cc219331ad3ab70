import { gauge, type GaugeName, type GaugeSource } from '../../src/observe/metrics.ts'
import type { EventMap, Events, EventType } from '../../src/worker/events.ts'

/** Emits one event of each type, for the tests of logs and metrics. A missing type does not compile. */
export function emitOneOfEach(events: Events, { worker = 'w1', error = new Error('no') } = {}): void {
  const of = { worker, table: 'public.emails' }
  const row = { ...of, id: '7', token: 3n }
  const each: EventMap = {
    claimed: { ...of, count: 1, full: false, durationMs: 1 },
    started: { ...row, attempt: 1 },
    failed: { ...row, attempt: 1, outcome: 'retry', error },
    settled: { ...of, outcome: 'done', ids: ['7'], durationMs: 1, latenciesMs: [9] },
    released: { ...of, ids: ['7'] },
    renewed: { ...of, count: 1, busy: 0, durationMs: 1 },
    renewalFailed: { ...of, ids: ['7', '8'], error },
    lost: { ...row, reason: 'taken' },
    aborted: { ...row, reason: 'taken' },
    fencedOff: { ...row, outcome: 'done', isUncertain: false },
    paused: { ...of, reason: 'saturated', forMs: 1 },
    resumed: { ...of, reason: 'saturated' },
    reaped: { ...row, owner: 'w2', staleMs: 1, evicted: false, outcome: 'retry' },
    dataError: { ...of, verb: 'settle', id: '7', error, retryInMs: 1_000 },
    maintenanceRan: { ...of, done: { published: 1 }, dead: 0, durationMs: 1 },
    reaperRan: { worker, reaped: 1, durationMs: 1 },
    reaperFailed: { worker, table: of.table, error },
    reaperMissing: { worker, tables: [of.table] },
    waitingForWorkerId: { worker, host: 'h2', pid: 42, lastSeenAt: new Date(0) },
    workerStarted: { worker, roles: ['emails'] },
    workerStopped: { worker, clean: true },
    workerDied: { worker, died: 'w2', host: 'h2', pid: 42, lastSeenAt: new Date(0) },
    workerReturned: { worker },
    settingsChanged: { ...of, settings: { leaseMs: 1_000 } },
    settingsRefused: { ...of, error },
    tableSlow: { ...of, what: 'no index serves the claim', remedy: 'Run: CREATE INDEX …;' },
    databaseLost: { worker, what: 'claiming', error },
    databaseBack: { worker },
    listening: { worker },
    notListening: { worker, error },
    trouble: { worker, what: 'a bug', error },
  }
  // Object.keys forgets which keys it was given.
  for (const type of Object.keys(each) as EventType[]) events.emit(type, each[type])
}

/** A source with samples for each gauge that is not fed by events. A missing one does not compile. */
export function oneOfEachGauge(): GaugeSource[] {
  const table = 'public.emails'
  const each: { readonly [Name in GaugeName]: GaugeSource } = {
    inFlightRows: gauge('inFlightRows', () => [{ labels: { worker: 'w1' }, value: 4 }]),
    reaperAlive: gauge('reaperAlive', () => [{ labels: { table }, value: 1 }]),
    workerProcesses: gauge('workerProcesses', () => [
      { labels: { state: 'alive' }, value: 2 },
      { labels: { state: 'missing' }, value: 1 },
    ]),
    pendingRows: gauge('pendingRows', () => [{ labels: { table }, value: 8 }]),
    oldestPendingAge: gauge('oldestPendingAge', () => [{ labels: { table }, value: 9 }]),
    heldUpKeys: gauge('heldUpKeys', () => [{ labels: { table, state: 'parked' }, value: 1 }]),
    oldestSnapshotAge: gauge('oldestSnapshotAge', () => [{ labels: {}, value: 3 }]),
  }
  return Object.values(each)
}
