import { measure } from '../drain.mjs'
import {
  DIFFERENCES,
  leaseholdSide,
  leftOutOf,
  peer,
  PEER_NAMES,
  QUICK_PEERS,
  UNAVAILABLE,
} from '../peers.mjs'
import { boundCheck, measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const PAYLOAD_BYTES = 200
const KEY_COUNT = 10_000

/** One event of a hot key after the other takes long: its drain is ended after this time, and what was done counts. */
const HOT_MS = { quick: 60_000, short: 10_000, full: 60_000 }

/** `compared`: peers that a goal compares with; elsewhere others are shown beside them. */
const VARIANTS = {
  unkeyed: {
    variant: 'no key',
    events: { quick: 1_000, short: 40_000, full: 100_000 },
    peers: PEER_NAMES,
    quickPeers: QUICK_PEERS,
  },
  keyed: {
    variant: '10,000 keys',
    events: { quick: 1_000, short: 40_000, full: 100_000 },
    peers: PEER_NAMES,
    quickPeers: ['graphile-worker'],
  },
  hot: {
    variant: 'one hot key',
    events: { quick: 100, short: 10_000, full: 100_000 },
    // Writing the jobs takes the others too long.
    peers: QUICK_PEERS,
    quickPeers: ['graphile-worker'],
  },
  stuck: {
    variant: '10,000 keys and a stuck key',
    events: { quick: 1_000, short: 40_000, full: 100_000 },
    peers: [],
    quickPeers: [],
  },
}

export const scenario = {
  name: 'drain',
  title: 'Drain of a backlog that was written one event per transaction',

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const flags = { keyCount: KEY_COUNT, payloadBytes: PAYLOAD_BYTES, timeoutMs, coldPages: false }
    const remarks = [...METHOD]
    const series = []
    for (const [name, { variant, peers, quickPeers, events: sizes }] of Object.entries(VARIANTS)) {
      const events = sized(sizes)
      const maxMs = name === 'hot' ? sized(HOT_MS) : undefined
      const all = [leaseholdSide(build), ...(quick ? quickPeers : peers).map(peer)]
      const sides = all.filter((side) => leftOutOf(side, name) === undefined)
      remarks.push(
        `${variant}: ${events} events of ${PAYLOAD_BYTES} bytes${maxMs === undefined ? '' : `; the drain is ended after ${maxMs / 1_000} s, and the events that are finished by then count`}`,
        ...all
          .filter((side) => !sides.includes(side))
          .map((side) => `${side.name}, ${variant}: not measured, because ${leftOutOf(side, name)}`),
      )
      const title = `drain, ${variant}`
      const readings = await measureInTurns(
        { sides, rounds, signal, print, remarks, title },
        async (side) => {
          const reading = await measure(server, side, { name, events, maxMs }, flags)
          const { perSecond, serverMicroseconds, nodeMicroseconds } = reading
          const text = `${Math.round(perSecond)} events/s, server ${serverMicroseconds?.toFixed(1)} µs, Node ${nodeMicroseconds.toFixed(1)} µs`
          return { ...reading, text }
        },
      )
      series.push(...seriesOf(readings, METRICS, variant))
    }
    remarks.push(...DIFFERENCES, ...UNAVAILABLE)
    return { series, checks: checksOf(series), remarks }
  },
}

const METRICS = [
  { figure: 'perSecond', metric: 'events per second', unit: '/s', better: 'higher' },
  { figure: 'nodeMicroseconds', metric: 'Node CPU per event', unit: 'µs', better: 'lower' },
  { figure: 'serverMicroseconds', metric: 'server CPU per event', unit: 'µs', better: 'lower' },
]

function checksOf(series) {
  const of = (side, name, metric = METRICS[0].metric) =>
    series.find((one) => one.side === side && one.variant === VARIANTS[name].variant && one.metric === metric)
      ?.values
  const own = (name) => of('leasehold', name)
  const toPeer = (name) => ({ of: own(name), to: of('graphile-worker', name), against: 'graphile-worker' })
  const toOwn = (name, other) => ({
    of: own(name),
    to: own(other),
    against: `leasehold, ${VARIANTS[other].variant}`,
  })
  return [
    ...ratioCheck('drain', [toPeer('unkeyed')]),
    ...ratioCheck('drain-keyed', [toPeer('keyed')]),
    ...ratioCheck('drain-keyed-own', [toOwn('keyed', 'unkeyed')]),
    ...ratioCheck('drain-hot', [toPeer('hot')]),
    ...ratioCheck('stuck-key', [toOwn('stuck', 'keyed')]),
    ...boundCheck('node-drain', of('leasehold', 'unkeyed', 'Node CPU per event')),
  ]
}

const METHOD = [
  'The clock starts with the runtime and stops when the server has no unfinished event; each event must then be finished exactly once',
  'Processor time of the server is that of all its processes; of BullMQ on Redis, that of Redis',
]
