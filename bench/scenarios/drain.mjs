import { checkRatio, inTurn, seriesOf } from '../comparison.mjs'
import { measure } from '../drain.mjs'
import {
  ALL_PEERS,
  COMPARABLE,
  COMPARABLE_PEERS,
  DIFFERENCES,
  inServerSide,
  leaseholdSide,
  leftOutOf,
  peer,
  QUICK_PEERS,
  UNAVAILABLE,
} from '../peers.mjs'

const PAYLOAD_BYTES = 200
const KEY_COUNT = 10_000
const EVENTS = { short: 50_000, full: 100_000 }
const QUICK_EVENTS = { unkeyed: 1_000, keyed: 1_000, hot: 100, stuck: 1_000 }
/** One event of a hot key after the other takes long: the drain is ended after this time, and what was done counts. */
const HOT_MS = { quick: 60_000, short: 20_000, full: 60_000 }

const VARIANTS = {
  unkeyed: 'no key',
  keyed: '10,000 keys',
  hot: 'one hot key',
  stuck: '10,000 keys and a stuck key',
  'stuck-bulk': '10,000 keys and a stuck key written in bulk',
}

const PEERS = [...new Set([...ALL_PEERS, ...COMPARABLE_PEERS])]
/** In a quick run, only what a row of the table compares. */
const QUICK_PEERS_OF = {
  unkeyed: QUICK_PEERS,
  keyed: ['graphile-worker'],
  hot: ['graphile-worker'],
  stuck: [],
}
/**
 * hot: without bullmq-fsync and bullmq-postgres, where writing the jobs takes too long. stuck-bulk: compared only with our
 * own drain of many keys.
 */
const PEERS_OF = { hot: QUICK_PEERS, 'stuck-bulk': [] }

export const scenario = {
  name: 'drain',
  title: 'Drain of a backlog that was written one event per transaction',
  reach:
    'no key: ≥ 1.3 × the fastest peer; 10,000 keys: ≥ 2 × graphile-worker with `queue_name` and ≥ 0.65 of our own drain without keys; one hot key: ≥ 3 × graphile-worker; a stuck key with as many events behind it: the others keep ≥ 0.95',

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const flags = { keyCount: KEY_COUNT, payloadBytes: PAYLOAD_BYTES, timeoutMs, coldPages: false }
    const remarks = [...METHOD, sizes(sized), ...DIFFERENCES, ...UNAVAILABLE]
    const series = []
    for (const name of Object.keys(quick ? QUICK_EVENTS : VARIANTS)) {
      const events = sized({ ...EVENTS, quick: QUICK_EVENTS[name] })
      const maxMs = name === 'hot' ? sized(HOT_MS) : undefined
      const variant = VARIANTS[name]
      const peers = (quick ? QUICK_PEERS_OF[name] : PEERS_OF[name]) ?? PEERS
      const all = [
        leaseholdSide(build),
        ...(name === 'unkeyed' || (name === 'keyed' && !quick) ? [inServerSide(build)] : []),
        ...peers.map(peer),
      ]
      const sides = all.filter((side) => leftOutOf(side, name) === undefined)
      const turns = await inTurn(
        { sides, rounds, signal, print, title: `drain, ${variant}` },
        async (side) => {
          const reading = await measure(server, side, { name, events, maxMs }, flags)
          return { ...reading, text: `${Math.round(reading.perSecond)} events/s` }
        },
      )
      remarks.push(
        ...all
          .filter((side) => !sides.includes(side))
          .map((side) => `${side.name}, ${variant}: not measured, because ${leftOutOf(side, name)}`),
        ...turns.remarks,
      )
      series.push(
        ...seriesOf(turns.readings, {
          variant,
          metric: 'events per second',
          unit: '/s',
          better: 'higher',
          valueOf: ({ perSecond }) => perSecond,
          detailsOf: (reading) => ({ ...reading, text: undefined, statements: undefined }),
        }),
      )
    }
    return { series, checks: checksOf(series, quick), remarks }
  },
}

function checksOf(series, quick) {
  const of = (side, scenarioName) =>
    series.find((one) => one.side === side && one.variant === VARIANTS[scenarioName])
  const own = (scenarioName) => of('leasehold', scenarioName)
  const check = (text, limit, scenarioName, others) =>
    checkRatio({ text, of: own(scenarioName), others, limit, comparison: '>=', quick })
  /** Of our own rate in another variant. */
  const ofOwn = (text, limit, scenarioName, otherName) => {
    const other = own(otherName)
    return check(text, limit, scenarioName, [other && { ...other, side: `leasehold, ${other.variant}` }])
  }
  return [
    check(
      'no key: ≥ 1.3 × the fastest peer',
      1.3,
      'unkeyed',
      ALL_PEERS.map((name) => of(name, 'unkeyed')),
    ),
    check(
      `no key: ≥ 1.3 × the fastest ${COMPARABLE}`,
      1.3,
      'unkeyed',
      COMPARABLE_PEERS.map((name) => of(name, 'unkeyed')),
    ),
    check('10,000 keys: ≥ 2 × graphile-worker with queue_name', 2, 'keyed', [of('graphile-worker', 'keyed')]),
    ofOwn('10,000 keys: ≥ 0.65 of our own drain without keys', 0.65, 'keyed', 'unkeyed'),
    check('one hot key: ≥ 3 × graphile-worker', 3, 'hot', [of('graphile-worker', 'hot')]),
    ofOwn('a stuck key: the others keep ≥ 0.95', 0.95, 'stuck', 'keyed'),
    ofOwn('a stuck key written in bulk: the others keep ≥ 0.95', 0.95, 'stuck-bulk', 'keyed'),
  ].filter((one) => one !== undefined)
}

const sizes = (sized) =>
  `${sized({ quick: 'Few', short: '50,000', full: '100,000' })} events of ${PAYLOAD_BYTES} bytes, and as many again of the stuck key. The drain of a hot key is ended after ${sized(HOT_MS) / 1_000} s, and the events that are finished by then count`

const METHOD = [
  'The clock starts with the runtime and stops when the server has no unfinished event; each event must then be finished exactly once',
  'in-server is no system but the ceiling: a relay does the same with a client, a network and handlers',
]
