import { measureEnqueue } from '../load.mjs'
import {
  DIFFERENCES,
  leaseholdSide,
  peer,
  PEER_NAMES,
  plainSqlSide,
  PRODUCERS,
  QUICK_PEERS,
  UNAVAILABLE,
} from '../peers.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const CONNECTIONS = 8
const PAYLOAD_BYTES = 200
const KEY_COUNT = 10_000
const MS = { quick: 400, short: 3_000, full: 10_000 }

const PLAIN_TABLE = 'plain table'
const plainTable = (options = {}) => ({ name: PLAIN_TABLE, system: 'plain-table', options: () => options })

/** One statement for each event, without BEGIN: what an INSERT costs, and nothing else. */
const ALONE = { inTransaction: false }

const VARIANTS = [
  { variant: '10,000 keys', keys: 'many', sidesOf: inTransactions },
  { variant: 'no key', keys: 'none', sidesOf: inTransactions },
  {
    variant: '10,000 keys, one statement',
    keys: 'many',
    sidesOf: (build) => [
      leaseholdSide(build, { name: 'leasehold', ...ALONE }),
      plainSqlSide(build, ALONE),
      plainTable(ALONE),
    ],
  },
]

function inTransactions(build, quick) {
  const peers = (quick ? QUICK_PEERS : PEER_NAMES).map((name) => storing(peer(name)))
  return [leaseholdSide(build), plainSqlSide(build), plainTable(), ...peers]
}

/** Nothing is relayed here: settings without keys serve for both. */
function storing({ options, ...side }) {
  return { ...side, options: (keys) => options(keys) ?? options('none') }
}

const METRICS = [
  { figure: 'perSecond', metric: 'transactions per second', unit: '/s', better: 'higher' },
  { figure: 'serverMicroseconds', metric: 'server CPU per event', unit: 'µs', better: 'lower' },
  { figure: 'nodeMicroseconds', metric: 'Node CPU per event', unit: 'µs', better: 'lower' },
]

export const scenario = {
  name: 'enqueue',
  title: `Enqueue: one event in an otherwise empty transaction, ${CONNECTIONS} connections`,

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const series = []
    const remarks = [
      `Each side writes for ${sized(MS) / 1_000} s. “one statement” is without BEGIN and COMMIT`,
      'BullMQ and PgQue store no key: the same event without one is beside ours',
      ...PRODUCERS,
      ...DIFFERENCES,
      ...UNAVAILABLE,
    ]
    for (const { variant, keys, sidesOf } of VARIANTS) {
      const sides = sidesOf(build, quick)
      const title = `enqueue, ${variant}`
      const readings = await measureInTurns({ sides, rounds, signal, print, remarks, title }, async (side) =>
        measureEnqueue({
          server,
          side,
          keys,
          keyCount: KEY_COUNT,
          payloadBytes: PAYLOAD_BYTES,
          connections: CONNECTIONS,
          ms: sized(MS),
          timeoutMs,
        }),
      )
      series.push(...seriesOf(readings, METRICS, variant))
    }
    return { series, checks: checksOf(series), remarks }
  },
}

function checksOf(series) {
  const of = (side, variant, { metric }) =>
    series.find((one) => one.side === side && one.variant === variant && one.metric === metric)?.values
  const [rate, serverCpu] = METRICS
  const [{ variant: keyed }, { variant: unkeyed }, { variant: alone }] = VARIANTS
  const pair = (side, other, variant, metric) => ({
    of: of(side, variant, metric),
    to: of(other, variant, metric),
    against: `${other}; ${side}, ${variant}`,
  })
  const inBoth = (other) => [keyed, unkeyed].map((variant) => pair('leasehold', other, variant, rate))
  const inOne = (metric) =>
    ['leasehold', 'leasehold (plain SQL)'].map((side) => pair(side, PLAIN_TABLE, alone, metric))
  return [
    ...ratioCheck('enqueue', [...inBoth(PLAIN_TABLE), ...inOne(rate)]),
    ...ratioCheck('enqueue-pg-boss', inBoth('pg-boss')),
    ...ratioCheck('enqueue-graphile-worker', inBoth('graphile-worker')),
    ...ratioCheck('enqueue-cpu', inOne(serverCpu)),
  ]
}
