// One process and several buckets: how quickly it drains events without keys and with keys.
import { verifyPublished, withOutbox } from '../outbox-database.mjs'
import { measureInTurns, ratioCheck, seriesOf } from '../rounds.mjs'

/** The number of buckets that the goal names. */
const MANY = 64
const VARIANTS = [
  { variant: 'no key', keys: 'none' },
  { variant: '10,000 keys', keys: 'many' },
]

const METRICS = [
  { figure: 'perSecond', metric: 'events per second', unit: '/s', better: 'higher' },
  { figure: 'nodeMicroseconds', metric: 'Node CPU per event', unit: 'µs', better: 'lower' },
  { figure: 'serverMicroseconds', metric: 'server CPU per event', unit: 'µs', better: 'lower' },
]

export const scenario = {
  name: 'buckets',
  title: 'Buckets of one server, one process',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    const events = sized({ quick: 1_000, short: 40_000, full: 100_000 })
    const sides = sized({ quick: [1, MANY], short: [1, MANY], full: [1, 16, MANY, 256] }).map((buckets) => ({
      name: `leasehold, ${buckets === 1 ? '1 bucket' : `${buckets} buckets`}`,
      buckets,
    }))
    const remarks = [`${events} events of 200 bytes, written one by one, are drained by one process.`]
    const series = []
    const pairs = []
    for (const { variant, keys } of VARIANTS) {
      const readings = await measureInTurns(
        { sides, rounds, print, signal, remarks, title: `buckets, ${variant}` },
        async ({ buckets }) => drain({ server, build, buckets, keys, events, timeoutMs }),
      )
      const own = seriesOf(readings, METRICS, variant)
      series.push(...own)
      const [one, many] = [1, MANY].map((wanted) => {
        const { name } = sides.find(({ buckets }) => buckets === wanted)
        return own.find(({ side }) => side === name)
      })
      pairs.push({ of: many?.values, to: one?.values, against: `${one?.side}, ${variant}` })
    }
    return { series, checks: ratioCheck('buckets', pairs), remarks }
  },
}

async function drain({ server, build, buckets, keys, events, timeoutMs }) {
  const scenario = { keys, written: 'one by one' }
  const options = { server, build, buckets, scenario, events, timeoutMs }
  return withOutbox(options, async ({ url, part, startRelay }) => {
    await part('write')
    await server.vacuum(url)
    const relay = await startRelay()
    const { ms, nodeCpuMs, serverCpuMs } = await relay.call('drain', 'relay', {
      url,
      events,
      serverPid: server.pid,
    })
    await relay.call('stop', 'relay')
    await verifyPublished(url, events)
    return {
      perSecond: (events / ms) * 1_000,
      nodeMicroseconds: (nodeCpuMs * 1_000) / events,
      serverMicroseconds: (serverCpuMs * 1_000) / events,
    }
  })
}
