import { checkRatio, inTurn, seriesOf } from '../comparison.mjs'
import { measureLatency } from '../load.mjs'
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

const PAYLOAD_BYTES = 200
const COUNTS = {
  quick: { count: 20, warmUp: 5 },
  short: { count: 400, warmUp: 20 },
  full: { count: 1_000, warmUp: 50 },
}

/** Settings for single events, where they differ from those for many. */
const POLLING = 'graphile-worker (2 ms poll)'
const SIDES = [
  // Without a local queue, a job is fetched as soon as its NOTIFY arrives.
  { ...peer('graphile-worker'), options: () => ({ worker: { concurrentJobs: 24 } }) },
  { ...peer('graphile-worker'), name: POLLING },
  { ...peer('pg-boss'), options: () => ({ batchSize: 1, localConcurrency: 4, notify: true }) },
  peer('bullmq'),
  peer('bullmq-fsync'),
  peer('bullmq-postgres'),
  { ...peer('pgque'), options: () => ({ tickMs: 1 }) },
]
const COMPARED = [
  { whom: 'every peer', names: [...ALL_PEERS, POLLING] },
  { whom: `every ${COMPARABLE}`, names: [...COMPARABLE_PEERS, POLLING] },
]

const METRICS = [
  { metric: 'latency, p50', valueOf: ({ p50 }) => p50 },
  { metric: 'latency, p99', valueOf: ({ p99 }) => p99 },
]

export const scenario = {
  name: 'latency',
  title: 'Idle latency: from the start of the producer’s statement to the handler',
  reach: 'p50 and p99 ≤ every peer',

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const peers = quick ? SIDES.filter(({ name }) => QUICK_PEERS.includes(name)) : SIDES
    const sides = [leaseholdSide(build), ...peers]
    const title = 'latency'
    const turns = await inTurn({ sides, rounds, signal, print, title }, async (side) => {
      const reading = await measureLatency({
        server,
        side,
        keys: 'none',
        payloadBytes: PAYLOAD_BYTES,
        timeoutMs,
        ...sized(COUNTS),
      })
      const text = `p50 ${reading.p50.toFixed(1)} ms, p99 ${reading.p99.toFixed(1)} ms`
      return { ...reading, text }
    })
    const series = METRICS.flatMap(({ metric, valueOf }) =>
      seriesOf(turns.readings, {
        variant: 'one event at a time',
        metric,
        unit: 'ms',
        better: 'lower',
        valueOf,
        detailsOf: ({ count, mean, max }) => ({ count, mean, max }),
      }),
    )
    const checks = METRICS.flatMap(({ metric }) => {
      const of = (name) => series.find((one) => one.side === name && one.metric === metric)
      return COMPARED.map(({ whom, names }) =>
        checkRatio({
          text: `${metric} ≤ ${whom}`,
          of: of('leasehold'),
          others: names.map(of),
          limit: 1,
          comparison: '<=',
          quick,
        }),
      )
    })
    return {
      series,
      checks: checks.filter((check) => check !== undefined),
      remarks: [
        ...SETTINGS,
        `${sized(COUNTS).count} events, one at a time`,
        ...DIFFERENCES,
        ...UNAVAILABLE,
        ...turns.remarks,
      ],
    }
  },
}

const SETTINGS = [
  'Producer and relay are one process; pauses of up to 60 ms lie between the events; no key',
  'leasehold: default settings',
  `graphile-worker: once with its default settings, which wait for a NOTIFY, and once with the settings of the drain, which ask the server every 2 ms (${POLLING})`,
  'pg-boss: `useListenNotify`, and a NOTIFY with each INSERT',
  'pgque: a ticker that asks every millisecond, the shortest period that it documents',
]
