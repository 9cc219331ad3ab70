import { checkRatio, inTurn, seriesOf } from '../comparison.mjs'
import { measureEnqueue } from '../load.mjs'
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

const CONNECTIONS = 8
const PAYLOAD_BYTES = 200
const KEY_COUNT = 10_000
const MS = { quick: 400, short: 5_000, full: 10_000 }

const PLAIN = { name: 'plain table', system: 'plain-table', options: () => ({}) }
const PEERS = [...new Set([...ALL_PEERS, ...COMPARABLE_PEERS])]

export const scenario = {
  name: 'enqueue',
  title: `Enqueue: one event in an otherwise empty transaction, ${CONNECTIONS} connections`,
  reach: 'transactions/s ≥ 0.9 of the same transaction with a plain one-index table; ≥ every peer',

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const sides = [
      leaseholdSide(build),
      PLAIN,
      ...(quick ? QUICK_PEERS : PEERS).map((name) => storing(peer(name))),
    ]
    const series = []
    const checks = []
    const remarks = [
      `Each side writes for ${sized(MS) / 1_000} s`,
      'BullMQ and PgQue store no key: the same event without one is compared with ours',
      ...DIFFERENCES,
      ...UNAVAILABLE,
    ]
    for (const { keys, variant } of quick ? VARIANTS.slice(0, 1) : VARIANTS) {
      const title = `enqueue, ${variant}`
      const turns = await inTurn({ sides, rounds, signal, print, title }, async (side) => {
        const reading = await measureEnqueue({
          server,
          side,
          keys,
          keyCount: KEY_COUNT,
          payloadBytes: PAYLOAD_BYTES,
          connections: CONNECTIONS,
          ms: sized(MS),
          timeoutMs,
        })
        return { ...reading, text: `${Math.round(reading.perSecond)} transactions/s` }
      })
      remarks.push(...turns.remarks)
      const own = seriesOf(turns.readings, {
        variant,
        metric: 'transactions per second',
        unit: '/s',
        better: 'higher',
        valueOf: ({ perSecond }) => perSecond,
      })
      series.push(...own)
      const of = (name) => own.find(({ side }) => side === name)
      checks.push(
        checkRatio({
          text: `${variant}: transactions/s ≥ 0.9 of a plain one-index table`,
          of: of('leasehold'),
          others: [of(PLAIN.name)],
          limit: 0.9,
          comparison: '>=',
          quick,
        }),
        checkRatio({
          text: `${variant}: transactions/s ≥ every peer`,
          of: of('leasehold'),
          others: ALL_PEERS.map(of),
          limit: 1,
          comparison: '>=',
          quick,
        }),
        checkRatio({
          text: `${variant}: transactions/s ≥ every ${COMPARABLE}`,
          of: of('leasehold'),
          others: COMPARABLE_PEERS.map(of),
          limit: 1,
          comparison: '>=',
          quick,
        }),
      )
    }
    return { series, checks: checks.filter((check) => check !== undefined), remarks }
  },
}

const VARIANTS = [
  { keys: 'many', variant: `${KEY_COUNT.toLocaleString('en')} keys` },
  { keys: 'none', variant: 'no key' },
]

/** Nothing is relayed here: settings without keys serve for both. */
function storing({ options, ...side }) {
  return { ...side, options: (keys) => options(keys) ?? options('none') }
}
