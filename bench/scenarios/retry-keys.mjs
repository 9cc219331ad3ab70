// Ten thousand keys whose heads all wait for a retry: what that costs other keys, and when a new key starts.
import { withClient } from '../client.mjs'
import { TYPES } from '../event-types.mjs'
import { insertEvents, until, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { boundCheck, measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

const WITHOUT = { name: 'leasehold', variant: 'no key waits' }
const WITH = { name: 'leasehold', variant: 'all keys wait' }
const FOLLOWERS = 1
const MAX_PAUSE_MS = 60

const METRICS = [
  { figure: 'perSecond', metric: 'events of other keys per second', unit: '/s', better: 'higher' },
  { figure: 'slowestMs', metric: 'slowest start of a new key', unit: 'ms', better: 'lower' },
]

export const scenario = {
  name: 'retry-keys',
  title: '10,000 keys that all wait for a retry',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    const waitingKeys = sized({ quick: 1_000, short: 10_000, full: 10_000 })
    const events = sized({ quick: 4_000, short: 40_000, full: 100_000 })
    const probes = sized({ quick: 20, short: 100, full: 200 })
    const remarks = [
      `${waitingKeys} keys, each with a head that has failed and waits for an hour, and ${FOLLOWERS} event behind it. The relay itself has made them fail. Then ${events} events of 10,000 other keys, written one by one, are drained.`,
      `A new key: ${probes} single events, each with a key of its own, written to an idle relay while the keys wait; from the start of the INSERT to the start of the handler.`,
    ]
    const readings = await measureInTurns(
      {
        sides: [WITHOUT, WITH],
        rounds,
        print,
        signal,
        remarks,
        title: 'retry-keys',
        nameOf: ({ variant }) => variant,
      },
      async (side) => {
        const keys = side === WITH ? waitingKeys : 0
        return measure({ server, build, waitingKeys: keys, events, probes, signal, timeoutMs })
      },
    )
    const of = (side, figure) => readings.get(side)?.map((reading) => reading[figure])
    return {
      series: seriesOf(readings, METRICS),
      checks: [
        ...ratioCheck('retry-keys', [
          {
            of: of(WITH, 'perSecond'),
            to: of(WITHOUT, 'perSecond'),
            against: `leasehold, ${WITHOUT.variant}`,
          },
        ]),
        ...boundCheck('retry-new-keys', of(WITH, 'slowestMs')),
      ],
      remarks,
    }
  },
}

async function measure({ server, build, waitingKeys, events, probes, signal, timeoutMs }) {
  const scenario = { keys: 'many', written: 'one by one' }
  return withOutbox({ server, build, scenario, events, timeoutMs }, async ({ url, part, startRelay }) => {
    if (waitingKeys > 0) await failHeads({ url, waitingKeys, startRelay, signal, timeoutMs })
    const prober = await startRelay('the idle relay')
    await prober.call('start', 'relay', { url })
    const latency = await prober.call('probe', 'relay', { count: probes, maxPauseMs: MAX_PAUSE_MS })
    await prober.call('stop', 'relay')
    await prober.kill()

    await part('write')
    await server.vacuum(url)
    const drainer = await startRelay('the drain')
    const drained = await drainer.call('drain', 'relay', { url, events, serverPid: server.pid })
    await drainer.call('stop', 'relay')
    await verifyPublished(url, events)
    await verifyWaiting(url, waitingKeys)
    return {
      perSecond: (events / drained.ms) * 1_000,
      serverMicroseconds: (drained.serverCpuMs * 1_000) / events,
      slowestMs: latency.max,
      p50Ms: latency.p50,
    }
  })
}

/** As in production: a relay has claimed each head, and its handler has failed. */
async function failHeads({ url, waitingKeys, startRelay, signal, timeoutMs }) {
  const key = `md5('waiting' || (n % ${waitingKeys}))::uuid::text`
  await insertEvents(url, { type: TYPES.failing, count: waitingKeys * (1 + FOLLOWERS), key })
  const failing = await startRelay('the relay whose events fail')
  await failing.call('start', 'relay', { url })
  await until(
    url,
    `count(*) = ${waitingKeys} from leasehold.outbox where status = 'PENDING' and attempts = 1`,
    {
      timeoutMs,
      signal,
    },
  )
  await failing.call('stop', 'relay')
  await failing.kill()
}

/** Nothing has happened to the keys that wait. */
async function verifyWaiting(url, waitingKeys) {
  const { rows } = await withClient(url, async (client) =>
    client.query(
      `select count(*)::int as waiting from leasehold.outbox where event_type = $1 and status = 'PENDING'`,
      [TYPES.failing],
    ),
  )
  const [{ waiting }] = rows
  if (waiting !== waitingKeys * (1 + FOLLOWERS)) throw new Error(`only ${waiting} events of keys wait`)
}
