// How throughput changes with the number of processes and of keys.
import { untilAllSettled, verifyPublished, withOutbox } from '../outbox-database.mjs'
import { measureInTurns, seriesOf } from '../rounds.mjs'

const DIMENSIONS = [
  {
    name: 'processes',
    title: (x) => (x === 1 ? '1 process' : `${x} processes`),
    sizes: [1, 2, 4, 8],
    shortSizes: [1, 2, 8],
    quickSizes: [1, 2],
    measure: drainByProcesses,
    remark: (events) =>
      `Processes: ${events} events of 10,000 keys are drained by several worker processes, which all run before the clock starts. The machine has as many cores as the record says: more processes than cores cannot help here, and should not hurt.`,
  },
  {
    name: 'keys',
    title: (x) => `${x.toLocaleString('en')} keys`,
    sizes: [10, 100, 1_000, 10_000, 100_000],
    shortSizes: [10, 1_000, 100_000],
    quickSizes: [100, 1_000],
    measure: drainOfKeys,
    remark: (events) =>
      `Keys: ${events} events, written one by one, that share this many keys. Events of one key are published one after another, so that few keys mean little that can be done at a time.`,
  },
]

export const scenario = {
  name: 'growth',
  title: 'Growth: processes and keys',

  async run({ server, build, sized, rounds, print, signal, timeoutMs }) {
    const events = sized({ quick: 2_000, short: 30_000, full: 100_000 })
    const remarks = DIMENSIONS.map(({ remark }) => remark(events))
    const sides = DIMENSIONS.flatMap((dimension) =>
      dimension[sized({ quick: 'quickSizes', short: 'shortSizes', full: 'sizes' })].map((x) => ({
        name: 'leasehold',
        variant: dimension.title(x),
        dimension,
        x,
      })),
    )
    const readings = await measureInTurns(
      {
        sides,
        rounds,
        print,
        signal,
        remarks,
        title: 'growth',
        nameOf: ({ variant }) => variant,
      },
      async ({ dimension, x }) => dimension.measure({ server, build, x, events, timeoutMs }),
    )
    const series = DIMENSIONS.flatMap(({ name }) =>
      seriesOf(new Map([...readings].filter(([{ dimension }]) => dimension.name === name)), [
        { figure: 'perSecond', metric: `events per second by ${name}`, unit: '/s', better: 'higher' },
      ]),
    )
    return { series, checks: [], remarks }
  },
}

async function drainByProcesses({ server, build, x: count, events, timeoutMs }) {
  const scenario = { keys: 'many', written: 'one by one' }
  return withOutbox({ server, build, scenario, events, timeoutMs }, async ({ url, part, startRelay }) => {
    await part('write')
    await server.vacuum(url)
    const relays = await Promise.all(
      Array.from({ length: count }, async (_, i) => {
        const relay = await startRelay(`relay ${i + 1}`)
        await relay.call('start', 'relay', { url, settings: { paused: true } })
        return relay
      }),
    )
    const began = performance.now()
    await untilAllSettled(relays, events, timeoutMs, async () => {
      await Promise.all(relays.map(async (relay) => relay.call('resume', 'relay')))
    })
    const ms = performance.now() - began
    await Promise.all(relays.map(async (relay) => relay.call('stop', 'relay')))
    await verifyPublished(url, events)
    return { perSecond: (events / ms) * 1_000 }
  })
}

async function drainOfKeys({ server, build, x: keyCount, events, timeoutMs }) {
  const scenario = { keys: 'many', written: 'one by one' }
  const options = { server, build, scenario, events, keyCount, timeoutMs }
  return withOutbox(options, async ({ url, part, startRelay }) => {
    await part('write')
    await server.vacuum(url)
    const relay = await startRelay()
    const { ms, startMs } = await relay.call('drain', 'relay', { url, events, serverPid: server.pid })
    await relay.call('stop', 'relay')
    await verifyPublished(url, events)
    return { perSecond: (events / (ms - startMs)) * 1_000 }
  })
}
