// Millions of events through a table whose retention is short: are its size and the cost of a claim the same in the end?
import { setTimeout as delay } from 'node:timers/promises'
import { withClient } from '../client.mjs'
import { readFill } from '../counters.mjs'
import { TYPES } from '../event-types.mjs'
import { withOutbox } from '../outbox-database.mjs'
import { measureInTurns, median, present, valueCheck } from '../rounds.mjs'
import { keyExpression, payloadExpression } from '../scenarios.mjs'

const TABLE = 'leasehold.outbox'
const SAMPLES = 20
const RELAYS = 2
const PRODUCERS = 2
const EVENTS_OF_A_TRANSACTION = 100
/** Of all producers. The relays keep up with it, or the backlog would grow. */
const PER_SECOND = 6_000
/** Producers wait while so many events are unfinished. */
const MOST_UNFINISHED = 5_000
const KEY_COUNT = 10_000
const PAYLOAD_BYTES = 200
/** The first events are removed once the retention has passed, and their space is used again soon after that. */
const RETENTIONS_BEFORE_STEADY = 1.5
/**
 * With a retention of days, what is written in the minute between two runs of retention, or two visits of autovacuum, is
 * next to nothing of the table. Here both come more often, so that it is little.
 */
const RUNS_OF_A_RETENTION = 15
const VACUUMS_OF_A_RETENTION = 60

const SIZE_LIMIT = 1.2
const COST_LIMIT = 1.2
const FILL_LIMIT = 85

export const scenario = {
  name: 'steady',
  title: 'Steady state: many more events than are retained',
  reach:
    '5M events through a table with a retention of three minutes: table and indexes ≤ 1.2 × their size at the beginning of the steady state, claims and settlements ≤ 1.2 × their time; finished pages ≥ 85 % full',

  async run({ server, build, sized, print, signal, timeoutMs }) {
    const events = sized({ quick: 100_000, short: 1_000_000, full: 5_000_000 })
    const keepMs = sized({ quick: 3_000, short: 30_000, full: 180_000 })
    const rate = { events, perSecond: PER_SECOND }
    const remarks = [
      `${events.toLocaleString('en')} events of ${PAYLOAD_BYTES} bytes, every other one with one of ${KEY_COUNT.toLocaleString('en')} keys, are written and published at the same time by ${RELAYS} relays, and retained for ${keepMs / 1_000} s after that. Retention is applied by both relays, every ${everyMsOf(keepMs) / 1_000} s, and autovacuum_naptime is ${naptimeMsOf(keepMs) / 1_000} s: as a share of the retention that is more than the default of a minute is of days.`,
      `${PRODUCERS} connections write ${PER_SECOND.toLocaleString('en')} events per second, ${EVENTS_OF_A_TRANSACTION} in each transaction, because the number of events that are retained depends on their rate. They wait while ${MOST_UNFINISHED.toLocaleString('en')} are unfinished.`,
      `The steady state begins after ${RETENTIONS_BEFORE_STEADY} times the retention. Sizes in the end are compared with those of the first sample after that. The cost of claims and settlements (time of their statements in the server, and blocks that they read, for each event) is compared as the median of the last three samples with that of the first three.`,
      'Fill: of the pages that hold events in the end, how much is taken by events. Pages that retention has emptied are used again, and do not count.',
      'One round: what counts is how the figures change within it.',
    ]
    const readings = await measureInTurns(
      { sides: ['leasehold'], rounds: 1, print, signal, remarks, title: 'steady' },
      async () => measure({ server, build, rate, keepMs, print, signal, timeoutMs }),
    )
    const [{ samples, fillPercent, retentions, vacuums }] = readings.get('leasehold')
    const steady = samples.filter(({ ms }) => ms >= RETENTIONS_BEFORE_STEADY * keepMs)
    const retentionRate = median(retentions.map((run) => (run.removed / run.durationMs) * 1_000))
    if (retentionRate !== undefined)
      remarks.push(
        `Retention removed ${Math.round(retentionRate).toLocaleString('en')} events per second while it ran (median of ${retentions.length} runs that removed any). Autovacuum came ${vacuums.count} times and took ${(vacuums.ms / 1_000).toFixed(0)} s of ${(samples.at(-1).ms / 1_000).toFixed(0)} s.`,
      )
    if (steady.length < 2) remarks.push('The run was over before the steady state.')
    return {
      series: [
        ...LINES.map(({ variant, valueOf, ...metric }) => ({
          side: 'leasehold',
          ...(variant === undefined ? {} : { variant }),
          ...metric,
          xLabel: 'thousand events',
          points: samples
            .filter((sample) => valueOf(sample) !== undefined)
            .map((sample) => ({ x: Math.round(sample.settled / 1_000), values: [valueOf(sample)] })),
        })),
        single('fill of the pages of finished events', fillPercent, '%', 'higher'),
      ].map((series, i) => (i === 0 ? { ...series, details: { samples, retentions } } : series)),
      checks: present([
        ...checksOfSizes(steady),
        check('server time of claims and settlements', costRatio(steady, 'microseconds'), COST_LIMIT),
        check('blocks read by claims and settlements', costRatio(steady, 'blocks'), COST_LIMIT),
        valueCheck({
          text: 'pages of finished events ≥ 85 % full',
          values: [fillPercent],
          unit: '%',
          comparison: '>=',
          limit: FILL_LIMIT,
        }),
      ]),
      remarks,
    }
  },
}

const MB = 1_000_000

/** What is drawn over the events. */
const LINES = [
  { metric: 'size', variant: 'table', unit: 'MB', better: 'lower', valueOf: ({ table }) => table / MB },
  { metric: 'size', variant: 'indexes', unit: 'MB', better: 'lower', valueOf: ({ indexes }) => indexes / MB },
  { metric: 'rows', variant: 'live', unit: '', valueOf: ({ live }) => live },
  { metric: 'rows', variant: 'dead versions', unit: '', valueOf: ({ dead }) => dead },
  {
    metric: 'server time of claims and settlements per event',
    unit: 'µs',
    better: 'lower',
    valueOf: ({ microseconds }) => microseconds,
  },
  {
    metric: 'blocks read by claims and settlements per event',
    unit: '',
    better: 'lower',
    valueOf: ({ blocks }) => blocks,
  },
  { metric: 'events per second', unit: '/s', better: 'higher', valueOf: ({ perSecond }) => perSecond },
  { metric: 'backlog', unit: 'events', better: 'lower', valueOf: ({ unfinished }) => unfinished },
]

const single = (metric, value, unit, better) => ({ side: 'leasehold', metric, unit, better, values: [value] })

function check(what, ratio, limit) {
  if (ratio === undefined) return undefined
  const text = `${what}: in the end ≤ ${limit} × as at the beginning of the steady state`
  return { text, ratio, limit, comparison: '<=', met: ratio <= limit, against: 'leasehold, earlier' }
}

function checksOfSizes(steady) {
  if (steady.length < 2) return []
  const [first, last] = [steady[0], steady.at(-1)]
  // Of the indexes that are never large, a page more would be a large ratio.
  return ['table', 'indexes'].map((what) =>
    check(`size of the ${what}`, last[what] / first[what], SIZE_LIMIT),
  )
}

function costRatio(steady, figure) {
  if (steady.length < 6) return undefined
  const medianOf = (samples) => median(samples.map((sample) => sample[figure]))
  return medianOf(steady.slice(-3)) / medianOf(steady.slice(0, 3))
}

async function measure({ server, build, rate, keepMs, print, signal, timeoutMs }) {
  const { events } = rate
  return withOutbox({ server, build, timeoutMs }, async ({ url, startRelay }) =>
    withNaptime(url, naptimeMsOf(keepMs), async () =>
      withClient(url, async (client) => {
        await client.query('create extension if not exists pg_stat_statements')
        const relays = []
        for (let i = 1; i <= RELAYS; i += 1) {
          const relay = await startRelay(`relay ${i}`)
          const retention = { publishedMs: keepMs, deadMs: keepMs }
          const retentionEveryMs = everyMsOf(keepMs)
          const options = { url, settings: { paused: true }, retention, retentionEveryMs }
          await relay.call('start', 'relay', options)
          relays.push(relay)
        }
        const progress = createProgress(relays)
        for (const relay of relays) await relay.call('resume', 'relay')
        const stopping = new AbortController()
        const until = AbortSignal.any([stopping.signal, ...(signal === undefined ? [] : [signal])])
        const ended = Promise.race(relays.map(async (relay) => relay.ended))
        const began = performance.now()
        try {
          const writing = Promise.all(
            Array.from({ length: PRODUCERS }, async () => produce(url, progress, rate, until)),
          )
          const sampling = takeSamples({ client, progress, events, began, until, print })
          const [samples] = await Promise.race([Promise.all([sampling, writing]), ended])
          const runs = []
          for (const relay of relays) runs.push(...(await relay.call('stop', 'relay')).retentions)
          await verify(client, events, runs)
          const { rows } = await client.query(VACUUMS)
          return {
            samples,
            retentions: runs.filter(({ removed }) => removed > 0),
            vacuums: rows[0],
            fillPercent: await readFill(url, TABLE),
          }
        } finally {
          stopping.abort()
        }
      }),
    ),
  )
}

const everyMsOf = (keepMs) => keepMs / RUNS_OF_A_RETENTION
/** A second is the shortest. */
const naptimeMsOf = (keepMs) => Math.max(1_000, keepMs / VACUUMS_OF_A_RETENTION)

async function withNaptime(url, naptimeMs, work) {
  const set = async (change) =>
    withClient(url, async (client) => {
      await client.query(`alter system ${change}`)
      await client.query('select pg_reload_conf()')
    })
  await set(`set autovacuum_naptime = '${naptimeMs}ms'`)
  try {
    return await work()
  } finally {
    await set('reset autovacuum_naptime')
  }
}

function createProgress(relays) {
  const counts = relays.map(() => 0)
  const progress = { started: 0, written: 0, settled: 0, nextAt: performance.now() }
  for (const [i, relay] of relays.entries()) {
    relay.onReport(({ settled }) => {
      counts[i] = settled
      progress.settled = counts.reduce((sum, count) => sum + count, 0)
    })
  }
  return progress
}

const WAIT_MS = 5

async function produce(url, progress, { events, perSecond }, until) {
  const insert = {
    name: 'bench_write',
    text: `insert into ${TABLE} (event_type, payload, ordering_key)
      select '${TYPES.happened}', ${payloadExpression(PAYLOAD_BYTES)}, case when n % 2 = 0 then ${keyExpression('many', KEY_COUNT)} end
      from generate_series($1::int, $2::int) as n`,
  }
  await withClient(url, async (client) => {
    while (progress.started < events) {
      until.throwIfAborted()
      const isEarly = performance.now() < progress.nextAt
      if (isEarly || progress.started - progress.settled > MOST_UNFINISHED) {
        await delay(WAIT_MS)
        continue
      }
      // What could not be written in its time is not made up for: that would be a higher rate.
      const intervalMs = (EVENTS_OF_A_TRANSACTION / perSecond) * 1_000
      progress.nextAt = Math.max(progress.nextAt + intervalMs, performance.now() - WAIT_MS)
      const first = progress.started + 1
      const last = Math.min(events, progress.started + EVENTS_OF_A_TRANSACTION)
      progress.started = last
      await client.query({ ...insert, values: [first, last] })
      progress.written += last - first + 1
    }
  })
}

async function takeSamples({ client, progress, events, began, until, print }) {
  const samples = []
  let before = await readCounters(client, progress, began)
  for (let i = 1; i <= SAMPLES; i += 1) {
    while (progress.settled < (events * i) / SAMPLES) {
      until.throwIfAborted()
      await delay(WAIT_MS)
    }
    const now = await readCounters(client, progress, began)
    const settled = now.settled - before.settled
    const sample = {
      ...now,
      perSecond: (settled / (now.ms - before.ms)) * 1_000,
      microseconds: ((now.claimMs - before.claimMs) * 1_000) / settled,
      blocks: (now.claimBlocks - before.claimBlocks) / settled,
    }
    samples.push(sample)
    print(textOf(sample))
    before = now
  }
  return samples
}

const textOf = (one) =>
  `${one.settled} events, ${Math.round(one.ms / 1_000)} s: ${Math.round(one.perSecond)}/s, table ${Math.round(one.table / MB)} MB, indexes ${Math.round(one.indexes / MB)} MB, ${one.live} live, ${one.dead} dead, ${one.microseconds.toFixed(1)} µs, ${one.blocks.toFixed(1)} blocks, ${one.unfinished} unfinished`

async function readCounters(client, progress, began) {
  const { rows } = await client.query(COUNTERS)
  const { sizes, ...counters } = rows[0]
  return {
    ms: performance.now() - began,
    settled: progress.settled,
    unfinished: progress.written - progress.settled,
    ...counters,
    indexes: Object.values(sizes).reduce((sum, bytes) => sum + bytes, 0),
    sizes,
  }
}

/** Sizes in bytes; time and blocks are those of all statements that claim or settle, since the server was started. */
const COUNTERS = `select pg_relation_size('${TABLE}')::float8 as table,
  (select json_object_agg(indexrelid::regclass, pg_relation_size(indexrelid)) from pg_index
    where indrelid = '${TABLE}'::regclass) as sizes,
  n_live_tup::float8 as live, n_dead_tup::float8 as dead, autovacuum_count::int as vacuums,
  (select coalesce(max(age(backend_xmin)), 0)::int from pg_stat_activity) as "oldestSnapshotAge", claims.*
from pg_stat_user_tables
cross join (
  select coalesce(sum(total_exec_time), 0)::float8 as "claimMs",
    coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8 as "claimBlocks",
    coalesce(sum(calls), 0)::float8 as "claimCalls"
  from pg_stat_statements
  where dbid = (select oid from pg_database where datname = current_database())
    -- Comments at the beginning of a statement are not in its text.
    and query ~ '(claimed|settled) as \\('
) as claims
where relid = '${TABLE}'::regclass`

const VACUUMS = `select autovacuum_count::int as count,
  coalesce((to_jsonb(t) ->> 'total_autovacuum_time')::float8, 0) as ms
from pg_stat_user_tables as t where relid = '${TABLE}'::regclass`

/** Every event was published by its first claim, without a failure; what is gone was removed by retention. */
async function verify(client, events, runs) {
  const removed = runs.reduce((sum, run) => sum + run.removed, 0)
  const { rows } = await client.query(
    `select count(*)::int as published from ${TABLE} where status = 'PUBLISHED' and lock_token = 1 and attempts = 0`,
  )
  if (rows[0].published + removed !== events)
    throw new Error(`${rows[0].published} events are published and ${removed} removed, instead of ${events}`)
}
