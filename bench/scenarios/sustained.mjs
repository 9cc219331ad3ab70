import { checkRatio, checkValue, inTurn, seriesOf } from '../comparison.mjs'
import { measureSustained } from '../load.mjs'
import {
  ALL_PEERS,
  COMPARABLE,
  COMPARABLE_PEERS,
  DIFFERENCES,
  leaseholdSide,
  peer,
  QUICK_PEERS,
  UNAVAILABLE,
} from '../peers.mjs'
import { median } from '../report.mjs'

const CONNECTIONS = 8
const RELAYS = 2
const PAYLOAD_BYTES = 1_024
const KEY_COUNT = 10_000
const SHARE = 0.7
const DURATIONS = {
  quick: { fullMs: 800, steadyMs: 600 },
  short: { fullMs: 15_000, steadyMs: 15_000 },
  full: { fullMs: 60_000, steadyMs: 30_000 },
}

/** A backlog that grows by less than this share of the events written is not told apart from one that goes up and down. */
const MAX_GROWTH_SHARE = 0.01

const VARIANT = '1 KB, 10,000 keys'

/** A NOTIFY with each INSERT: commits wait for each other, and jobs do not wait for the poll interval. */
const NOTIFYING = 'pg-boss (notify)'

/** BullMQ has no keys; a consumer of PgQue is one process, and reads everything in order. */
const SIDES = [
  peer('graphile-worker'),
  peer('pg-boss'),
  {
    ...peer('pg-boss'),
    name: NOTIFYING,
    options: (keys) => ({ ...peer('pg-boss').options(keys), notify: true }),
  },
  unordered(peer('bullmq')),
  unordered(peer('bullmq-fsync')),
  unordered(peer('bullmq-postgres')),
  { ...peer('pgque'), relays: 1 },
]
const KEYED_PEERS = ['graphile-worker', 'pg-boss', NOTIFYING]

function unordered({ options, ...side }) {
  return { ...side, options: () => options('none') }
}

export const scenario = {
  name: 'sustained',
  title: `Sustained load: ${CONNECTIONS} producers and ${RELAYS} relays together`,
  reach:
    'events/s ≥ 1.3 × the fastest peer, backlog not growing at 70 % of it, p99 latency ≤ every peer; 1 KB payloads, keys, 60 s',

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const peers = quick ? SIDES.filter(({ name }) => QUICK_PEERS.includes(name)) : SIDES
    const sides = [leaseholdSide(build), ...peers]
    const title = 'sustained'
    const turns = await inTurn({ sides, rounds, signal, print, title }, async (side) => {
      const reading = await measureSustained({
        server,
        side,
        keys: 'many',
        keyCount: KEY_COUNT,
        payloadBytes: PAYLOAD_BYTES,
        connections: CONNECTIONS,
        relays: side.relays ?? RELAYS,
        share: SHARE,
        timeoutMs,
        ...sized(DURATIONS),
      })
      return { ...reading, text: summary(reading) }
    })

    const rates = seriesOf(turns.readings, {
      variant: VARIANT,
      metric: 'events per second',
      unit: '/s',
      better: 'higher',
      valueOf: ({ full }) => full.handledPerSecond,
      detailsOf: ({ full, leftOver }) => ({ ...full, leftOver }),
    })
    // A side that did not catch up after the first phase has no second one.
    const steady = new Map(
      [...turns.readings].filter(([, own]) => own.every((one) => one.steady !== undefined)),
    )
    const latencies = seriesOf(steady, {
      variant: VARIANT,
      metric: 'latency at 70 % of the rate, p99',
      unit: 'ms',
      better: 'lower',
      valueOf: (one) => one.steady.latencyMs.p99,
      detailsOf: (one) => one.steady,
    })
    const growth = seriesOf(steady, {
      variant: VARIANT,
      metric: 'growth of the backlog at 70 % of the rate, as a share of the events written',
      unit: '',
      better: 'lower',
      valueOf: (one) => one.steady.backlogGrowthPerSecond / one.steady.writtenPerSecond,
    })

    const of = (series, name) => series.find(({ side }) => side === name)
    const compared = (text, names) =>
      checkRatio({
        text,
        of: of(rates, 'leasehold'),
        others: names.map((name) => of(rates, name)),
        limit: 1.3,
        comparison: '>=',
        quick,
      })
    const quicker = (text, names) =>
      checkRatio({
        text,
        of: of(latencies, 'leasehold'),
        others: names.map((name) => of(latencies, name)),
        limit: 1,
        comparison: '<=',
        quick,
      })
    const ownGrowth = of(growth, 'leasehold')
    const checks = [
      compared('events/s ≥ 1.3 × the fastest peer', [...ALL_PEERS, NOTIFYING]),
      compared(`events/s ≥ 1.3 × the fastest ${COMPARABLE}`, [...COMPARABLE_PEERS, NOTIFYING]),
      compared('events/s ≥ 1.3 × the fastest peer that orders by key', KEYED_PEERS),
      ownGrowth &&
        checkValue({
          text: 'backlog not growing at 70 % of it (growth as a share of the events written)',
          value: median(ownGrowth.values),
          limit: MAX_GROWTH_SHARE,
          comparison: '<=',
          quick,
        }),
      quicker('p99 latency at 70 % ≤ every peer', [...ALL_PEERS, NOTIFYING]),
      quicker(`p99 latency at 70 % ≤ every ${COMPARABLE}`, [...COMPARABLE_PEERS, NOTIFYING]),
    ]
    const behind = [...turns.readings]
      .filter(([name]) => !steady.has(name))
      .map(
        ([name, own]) =>
          `${name}: ${own.at(-1).leftOver} events were left after the full load; not measured at 70 %`,
      )
    return {
      series: [...rates, ...latencies, ...growth],
      checks: checks.filter((check) => check !== undefined),
      remarks: [
        ...METHOD,
        lengths(sized(DURATIONS)),
        ...behind,
        ...DIFFERENCES,
        ...UNAVAILABLE,
        ...turns.remarks,
      ],
    }
  },
}

function summary({ full, steady }) {
  const rate = `${Math.round(full.handledPerSecond)} events/s (${Math.round(full.writtenPerSecond)} written)`
  if (steady === undefined) return rate
  return `${rate}; at 70 %: p50 ${steady.latencyMs.p50.toFixed(1)} ms, p99 ${steady.latencyMs.p99.toFixed(1)} ms, backlog ${steady.backlog.at(-1)}`
}

const lengths = ({ fullMs, steadyMs }) =>
  `${fullMs / 1_000} s as fast as they can, then ${steadyMs / 1_000} s at 70 %`

const METHOD = [
  'events/s: events handled per second while the producers write as fast as they can; then each side at 70 % of its own rate, so that the faster side has the higher load',
  'latency: from the start of the producer’s statement to the handler. Producers and relays are separate processes on the same machine, and share its processors',
  'BullMQ handles the events without any order, PgQue all of them in one order and by one process; both are given the same events',
  'pg-boss: once with polling, the shortest interval being 0.5 s, and once with `useListenNotify` and a NOTIFY with each INSERT. graphile-worker always sends one. Commits with a NOTIFY wait for each other in PostgreSQL, so that few of them share a flush of the WAL',
]
