import { measureLatency } from '../load.mjs'
import { DIFFERENCES, leaseholdSide, peer, PRODUCERS, QUICK_PEERS, UNAVAILABLE } from '../peers.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const PAYLOAD_BYTES = 200
const COUNTS = {
  quick: { count: 20, warmUp: 5 },
  short: { count: 250, warmUp: 20 },
  full: { count: 1_000, warmUp: 50 },
}

/** Settings for single events, where they differ from those for many. */
const POLLING = 'graphile-worker (2 ms poll)'
const PEERS = [
  // Without a local queue, a job is fetched as soon as its NOTIFY arrives.
  { ...peer('graphile-worker'), options: () => ({ worker: { concurrentJobs: 24 } }) },
  { ...peer('graphile-worker'), name: POLLING },
  { ...peer('pg-boss'), options: () => ({ batchSize: 1, localConcurrency: 4, notify: true }) },
  peer('bullmq'),
  peer('bullmq-fsync'),
  peer('bullmq-postgres'),
  { ...peer('pgque'), options: () => ({ tickMs: 1 }) },
]
const COMPARED = ['graphile-worker', POLLING, 'pg-boss']

const METRICS = [
  { figure: 'p50', metric: 'latency, p50', unit: 'ms', better: 'lower' },
  { figure: 'p99', metric: 'latency, p99', unit: 'ms', better: 'lower' },
]

export const scenario = {
  name: 'latency',
  title: 'Idle latency: from the producer’s BEGIN to the handler',

  async run({ server, quick, sized, rounds, print, signal, timeoutMs, build }) {
    const sides = [leaseholdSide(build), ...PEERS.filter(({ name }) => !quick || QUICK_PEERS.includes(name))]
    const remarks = [
      ...SETTINGS,
      `${sized(COUNTS).count} events, one at a time`,
      ...PRODUCERS,
      ...DIFFERENCES,
      ...UNAVAILABLE,
    ]
    const readings = await measureInTurns(
      { sides, rounds, signal, print, remarks, title: 'latency' },
      async (side) =>
        measureLatency({
          server,
          side,
          keys: 'none',
          payloadBytes: PAYLOAD_BYTES,
          timeoutMs,
          ...sized(COUNTS),
        }),
    )
    const series = seriesOf(readings, METRICS, 'one event at a time')
    const checks = METRICS.flatMap(({ figure, metric }) => {
      const of = (name) => series.find((one) => one.side === name && one.metric === metric)?.values
      return ratioCheck(
        `latency-${figure}`,
        COMPARED.map((against) => ({ of: of('leasehold'), to: of(against), against })),
      )
    })
    return { series, checks, remarks }
  },
}

const SETTINGS = [
  'Producer and relay are one process; pauses of up to 60 ms lie between the events; no key',
  'leasehold: default settings',
  `graphile-worker: once with its default settings, which wait for a NOTIFY, and once with the settings of the drain, which ask the server every 2 ms (${POLLING})`,
  'pg-boss: `useListenNotify` and `notify`',
  'pgque: a ticker that asks every millisecond, the shortest period that it documents',
]
