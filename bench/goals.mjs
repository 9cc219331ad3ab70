// What the bench is to show: every goal, how it follows from a run, and whether a figure reaches it.

const ABOVE = '>='
const BELOW = '<='

/**
 * In the order of the page. A scenario returns `{ goal, ratio, against }` for each of its goals (`rounds.mjs`). Without a
 * limit the figure is stated and not judged. `ratio` is a figure where the goal has a `unit`. `unavailable`: why no scenario
 * measures it.
 */
export const GOALS = [
  {
    id: 'drain',
    scenario: 'drain',
    text: 'drain, no key: ≥ 1.5 × graphile-worker',
    comparison: ABOVE,
    limit: 1.5,
    how: 'events per second, from the start of the runtime until the server has no unfinished event',
  },
  {
    id: 'drain-keyed',
    scenario: 'drain',
    text: 'drain, 10,000 keys: ≥ 2 × graphile-worker with `queue_name`',
    comparison: ABOVE,
    limit: 2,
    how: 'the same, with one of 10,000 keys in each event',
  },
  {
    id: 'drain-keyed-own',
    scenario: 'drain',
    text: 'drain, 10,000 keys: ≥ 0.75 of our own drain without keys',
    comparison: ABOVE,
    limit: 0.75,
    how: 'two drains of Leasehold in the same round',
  },
  {
    id: 'drain-hot',
    scenario: 'drain',
    text: 'drain, one hot key: ≥ 3 × graphile-worker',
    comparison: ABOVE,
    limit: 3,
    how: 'all events share one key; the drain is ended after a while, and the events that are finished by then count',
  },
  {
    id: 'sustained',
    scenario: 'sustained',
    text: 'sustained: ≥ 1.8 × pg-boss',
    comparison: ABOVE,
    limit: 1.8,
    how: 'events handled per second while 8 producers call `outbox.enqueue` or `boss.send` in transactions as fast as they can; the faster of the two ways to run pg-boss',
  },
  {
    id: 'sustained-p99',
    scenario: 'sustained',
    text: 'sustained, p99 at 70 % ≤ 0.3 of pg-boss',
    comparison: BELOW,
    limit: 0.3,
    how: 'from the producer’s BEGIN to the handler, each side at 70 % of its own rate; pg-boss as it is faster, without NOTIFY',
  },
  {
    id: 'sustained-p99-peers',
    scenario: 'sustained',
    text: 'sustained, p99 at 70 % ≤ every peer that settles each event',
    comparison: BELOW,
    limit: 1,
    how: 'the same, against the quickest peer that stores durably and settles each event by itself',
  },
  {
    id: 'enqueue',
    scenario: 'enqueue',
    text: 'enqueue: ≥ 0.7 of a plain one-index table',
    comparison: ABOVE,
    limit: 0.7,
    how: 'transactions per second of 8 connections: `outbox.enqueue` and a prepared INSERT into the plain table, each between BEGIN and COMMIT, with and without keys; the same without BEGIN, also with a prepared INSERT into the outbox; the lowest ratio counts',
  },
  {
    id: 'enqueue-pg-boss',
    scenario: 'enqueue',
    text: 'enqueue: ≥ 1.2 × pg-boss',
    comparison: ABOVE,
    limit: 1.2,
    how: '`outbox.enqueue` and `boss.send`, each between BEGIN and COMMIT; with and without keys; the lower ratio counts',
  },
  {
    id: 'enqueue-graphile-worker',
    scenario: 'enqueue',
    text: 'enqueue: ≥ graphile-worker',
    comparison: ABOVE,
    limit: 1,
    how: 'the same against `graphile_worker.add_job`',
  },
  {
    id: 'enqueue-cpu',
    scenario: 'enqueue',
    text: 'enqueue: server CPU ≤ 2 × a plain INSERT, both prepared',
    comparison: BELOW,
    limit: 2,
    how: 'processor time of all processes of the server per event, each event in one statement without BEGIN; `outbox.enqueue` and a plain INSERT into the outbox; the higher ratio counts',
  },
  {
    id: 'node-drain',
    scenario: 'drain',
    text: 'Node CPU per event, drain: ≤ 10 µs',
    comparison: BELOW,
    limit: 10,
    unit: 'µs',
    how: 'processor time of the relay’s process with all its threads in the drain without keys, the start of the runtime included; the worst round',
  },
  {
    id: 'node-sustained',
    scenario: 'sustained',
    text: 'Node CPU per event, sustained: ≤ 0.4 of the second edition',
    comparison: BELOW,
    limit: 0.4,
    how: 'processor time of both relays’ processes per event handled at full speed, beside a build of the second edition in the same run (`--second-edition`)',
  },
  {
    id: 'stuck-key',
    scenario: 'drain',
    text: 'drain, a stuck key: the others keep ≥ 0.95',
    comparison: ABOVE,
    limit: 0.95,
    how: 'the drain of 10,000 keys with as many events again, written first, behind the failed head of one key, against the same drain without them',
  },
  {
    id: 'retry-keys',
    scenario: 'retry-keys',
    text: '10,000 keys that wait for a retry: the others keep ≥ 0.9',
    comparison: ABOVE,
    limit: 0.9,
    how: 'a drain of other keys while the heads of 10,000 keys wait, against the same drain without them',
  },
  {
    id: 'retry-new-keys',
    scenario: 'retry-keys',
    text: '10,000 keys that wait for a retry: new keys start within 250 ms',
    comparison: BELOW,
    limit: 250,
    unit: 'ms',
    how: 'the slowest of single events, each with a key of its own, from the INSERT to the handler',
  },
  {
    id: 'held',
    scenario: 'held-snapshot',
    text: 'held snapshot, no key: the last tenth ≥ 0.9 of the first',
    comparison: ABOVE,
    limit: 0.9,
    how: 'events per second in the last and in the first tenth of one drain',
  },
  {
    id: 'held-keyed',
    scenario: 'held-snapshot',
    text: 'held snapshot, 10,000 keys: the last tenth ≥ 0.7 of the first',
    comparison: ABOVE,
    limit: 0.7,
    how: 'the same with 10,000 keys',
  },
  {
    id: 'held-hot',
    scenario: 'held-snapshot',
    text: 'held snapshot, one hot key: the last tenth of the first, stated',
    how: 'the same with one key; the drain is ended after a while, and the tenths are those of what was handled by then',
  },
  {
    id: 'finished',
    scenario: 'finished',
    text: '10M finished events: ≥ 0.9 of an empty table',
    comparison: ABOVE,
    limit: 0.9,
    how: 'the drain of a backlog in a table with finished events and in one without; with and without keys; the lower ratio counts',
  },
  {
    id: 'buckets',
    scenario: 'buckets',
    text: '64 buckets on one server: ≥ 0.9 of one bucket, in one process',
    comparison: ABOVE,
    limit: 0.9,
    how: 'two drains by one process; with and without keys; the lower ratio counts',
  },
  {
    id: 'latency-p50',
    scenario: 'latency',
    text: 'idle latency, p50: ≤ graphile-worker and pg-boss',
    comparison: BELOW,
    limit: 1,
    how: 'single events, from the producer’s BEGIN to the handler; each peer in the settings that are quickest for that',
  },
  {
    id: 'latency-p99',
    scenario: 'latency',
    text: 'idle latency, p99: ≤ graphile-worker and pg-boss',
    comparison: BELOW,
    limit: 1,
    how: 'the same',
  },
  {
    id: 'crash',
    scenario: 'crash',
    text: 'crash (SIGKILL) → running elsewhere, defaults: ≤ 5 s',
    comparison: BELOW,
    limit: 5,
    unit: 's',
    how: 'until the last row of the killed process has started in another one; the worst of all kills',
  },
  {
    id: 'heartbeat-statements',
    scenario: 'heartbeats',
    text: '10,000 rows in flight: one statement per beat',
    comparison: BELOW,
    limit: 1,
    unit: 'statements',
    how: 'calls of the statement that renews, by `pg_stat_statements`, per renewal of all rows; the worst round',
  },
  {
    id: 'heartbeat-cost',
    scenario: 'heartbeats',
    text: '10,000 rows in flight: heartbeats cost ≤ 2 % of throughput',
    comparison: ABOVE,
    limit: 0.98,
    how: 'a drain beside 10,000 rows that are renewed ten times as often as by default, against one beside rows that are not renewed; a tenth of the loss',
  },
  {
    id: 'memory',
    scenario: 'memory',
    text: 'a backlog of 1M in a process that sets no flags: ≤ 150 MB',
    comparison: BELOW,
    limit: 150,
    unit: 'MB',
    how: 'the largest resident memory (VmHWM) of `node` without flags that calls `startRuntime`; payloads of 0.2 and 1 KB; the worst round',
  },
  {
    id: 'idle',
    scenario: 'idle',
    text: 'idle process, all applications: ≤ 3 statements/s',
    comparison: BELOW,
    limit: 3,
    unit: '/s',
    how: 'all statements of the database, by `pg_stat_statements`; the worst round',
  },
  {
    id: 'webhooks',
    scenario: 'webhooks',
    text: 'webhooks to a receiver that takes 50 ms: ≥ 0.9 of a bare loop of signed requests',
    comparison: ABOVE,
    limit: 0.9,
    how: 'deliveries per second; the clock includes the start of the runtime',
  },
  {
    id: 'jobs',
    scenario: 'jobs',
    text: 'jobs, like for like: ≥ graphile-worker and pg-boss in enqueue and drain',
    comparison: ABOVE,
    limit: 1,
    unavailable: 'Leasehold has no jobs yet',
  },
  {
    id: 'wal',
    scenario: 'bytes',
    text: 'WAL per event, stated beside the peers',
    how: 'bytes without full-page images from the INSERT until the event is settled, as a multiple of what graphile-worker and pg-boss write; the highest ratio of both peers, both payloads, with and without keys',
  },
]

const COMPARISONS = {
  [ABOVE]: (value, limit) => value >= limit,
  [BELOW]: (value, limit) => value <= limit,
}

export function goalOf(id) {
  const goal = GOALS.find((one) => one.id === id)
  if (goal === undefined) throw new Error(`there is no goal ${id}`)
  return goal
}

export const isBetterAbove = ({ comparison }) => comparison === ABOVE

/** `met`, `missed`, `stated` (no limit), `not judged` (a quick run), or `not measured` (no figure). */
export function verdictOf({ comparison, limit }, check, { quick }) {
  if (!Number.isFinite(check?.ratio)) return 'not measured'
  if (quick) return 'not judged'
  if (limit === undefined) return 'stated'
  return COMPARISONS[comparison](check.ratio, limit) ? 'met' : 'missed'
}
