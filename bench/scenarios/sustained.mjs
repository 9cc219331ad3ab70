import { measureSustained } from '../load.mjs'
import {
  COMPARABLE_PEERS,
  DIFFERENCES,
  leaseholdSide,
  peer,
  plainSqlSide,
  PRODUCERS,
  QUICK_PEERS,
  UNAVAILABLE,
} from '../peers.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const CONNECTIONS = 8
const RELAYS = 2
const PAYLOAD_BYTES = 1_024
const KEY_COUNT = 10_000
const SHARE = 0.7
const DURATIONS = {
  quick: { fullMs: 800, steadyMs: 600 },
  short: { fullMs: 8_000, steadyMs: 8_000 },
  full: { fullMs: 60_000, steadyMs: 30_000 },
}
const VARIANT = '1 KB, 10,000 keys'

/** A NOTIFY with each job: commits wait for each other, and jobs do not wait for the poll interval. */
const NOTIFYING = 'pg-boss (notify)'
const SECOND_EDITION = 'leasehold (second edition)'

/** BullMQ has no keys; a consumer of PgQue is one process, and reads everything in order. */
const PEERS = [
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

function unordered({ options, ...side }) {
  return { ...side, options: () => options('none') }
}

const CPU = ['relays', 'producers', 'server']

const RATE = [
  {
    metric: 'events per second',
    unit: '/s',
    better: 'higher',
    valueFrom: ({ full }) => full.handledPerSecond,
    detailsOf: ({ full, leftOver }) => ({ ...full, leftOver }),
  },
]
const LATENCY = [
  {
    metric: 'latency at 70 % of the rate, p99',
    unit: 'ms',
    better: 'lower',
    valueFrom: ({ steady }) => steady.latencyMs.p99,
    detailsOf: ({ steady }) => steady,
  },
]
/** Those of the relays come first. */
const CPU_METRICS = CPU.map((who) => ({
  metric: `CPU per event, ${who}`,
  unit: 'µs',
  better: 'lower',
  valueFrom: ({ full }) => full.microseconds[who],
}))

export const scenario = {
  name: 'sustained',
  title: `Sustained load: ${CONNECTIONS} producers and ${RELAYS} relays together`,

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build, secondEdition }) {
    const sides = [
      leaseholdSide(build),
      plainSqlSide(build),
      ...(secondEdition === undefined ? [] : [leaseholdSide(secondEdition, { name: SECOND_EDITION })]),
      ...PEERS.filter(({ name }) => !quick || QUICK_PEERS.includes(name)),
    ]
    const remarks = []
    const readings = await measureInTurns(
      { sides, rounds, signal, print, remarks, title: 'sustained' },
      async (side) => {
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
      },
    )
    // A side that did not catch up after the first phase has no second one.
    const steady = new Map([...readings].filter(([, own]) => own.every((one) => one.steady !== undefined)))
    const rates = seriesOf(readings, RATE, VARIANT)
    const latencies = seriesOf(steady, LATENCY, VARIANT)
    const cpu = seriesOf(readings, CPU_METRICS, VARIANT)
    const behind = [...readings]
      .filter(([side]) => !steady.has(side))
      .map(
        ([{ name }, own]) =>
          `${name}: ${own.at(-1).leftOver} events were left after the full load; not measured at 70 %`,
      )
    return {
      series: [...rates, ...latencies, ...cpu],
      checks: [
        ...ratioCheck('sustained', pairs(rates, ['pg-boss', NOTIFYING])),
        ...ratioCheck('sustained-p99', pairs(latencies, ['pg-boss'])),
        ...ratioCheck('sustained-p99-peers', pairs(latencies, [...COMPARABLE_PEERS, NOTIFYING])),
        ...ratioCheck('node-sustained', pairs(cpu, [SECOND_EDITION])),
      ],
      remarks: [
        ...METHOD,
        lengths(sized(DURATIONS)),
        ...behind,
        ...PRODUCERS,
        ...DIFFERENCES,
        ...UNAVAILABLE,
        ...remarks,
      ],
    }
  },
}

/** Leasehold against each of the others. */
function pairs(series, names) {
  const of = (name) => series.find(({ side }) => side === name)?.values
  return names.map((against) => ({ of: of('leasehold'), to: of(against), against }))
}

function summary({ full, steady }) {
  const cpu = CPU.map((who) => `${who} ${full.microseconds[who].toFixed(0)} µs`).join(', ')
  const rate = `${Math.round(full.handledPerSecond)} events/s (${Math.round(full.writtenPerSecond)} written), CPU: ${cpu}`
  if (steady === undefined) return rate
  return `${rate}; at 70 %: p50 ${steady.latencyMs.p50.toFixed(1)} ms, p99 ${steady.latencyMs.p99.toFixed(1)} ms, backlog ${steady.backlog.at(-1)}`
}

const lengths = ({ fullMs, steadyMs }) =>
  `${fullMs / 1_000} s as fast as they can, then ${steadyMs / 1_000} s at 70 %`

const METHOD = [
  'events/s: events handled per second while the producers write as fast as they can; then each side at 70 % of its own rate, so that the faster side has the higher load',
  'latency: from the producer’s BEGIN to the handler. Producers and relays are separate processes on the same machine, and share its processors',
  'CPU: processor time per event handled at full speed, of the processes of the relays, of the process of the producers, and of all processes of the server',
  'BullMQ handles the events without any order, PgQue all of them in one order and by one process; both are given the same events',
  'pg-boss: once with polling, the shortest interval being 0.5 s, and once with `useListenNotify` and `notify`. graphile-worker always sends one. Commits with a NOTIFY wait for each other in PostgreSQL, so that few of them share a flush of the WAL',
]
