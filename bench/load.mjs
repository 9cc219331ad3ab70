// Producers and relays of one side, in processes of their own, on an empty store.
import { setTimeout as delay } from 'node:timers/promises'
import { quantiles } from './clock.mjs'
import { cpuOfServer } from './cpu.mjs'
import { runSide, startLoadProcess } from './side-process.mjs'
import { openStore } from './stores.mjs'

/**
 * Calls `work` with `start(role)`, which starts a process of that role on a new store with the tables of the side,
 * `analyse`, and the process id of the server. All processes have ended when it returns.
 */
async function withProcesses({ server, side, keys, timeoutMs, ...values }, work) {
  const { name, system, options } = side
  const sideOrder = { system, keys, ...options(keys) }
  const store = await openStore(server, sideOrder, `${name}_load`)
  const common = { label: name, side: sideOrder, url: store.url, keys, ...values }
  const started = []
  try {
    await runSide({ ...common, part: 'migrate' }, { timeoutMs })
    if (store.kind === 'postgres') await server.checkpoint()
    const start = async (role) => {
      const child = await startLoadProcess({ ...common, role }, { timeoutMs })
      started.push(child)
      return child
    }
    // As in a table that has been in use for a while: plans made for an empty one would last for the whole reading.
    const analyse = async () => {
      if (store.kind === 'postgres') await server.vacuum(store.url)
    }
    const result = await work(start, analyse, store.pid)
    for (const child of started) {
      await child.ask('stop')
      await child.end()
    }
    return result
  } finally {
    for (const child of started) child.kill()
    await store.close()
  }
}

/** How many events per second the producers store, with nobody to relay them, and the processor time of each. */
export async function measureEnqueue({ ms, ...order }) {
  return withProcesses(order, async (start, analyse, serverPid) => {
    const producer = await start('producer')
    await produce(producer, { ms: ms * WARM_UP_SHARE })
    await analyse()
    const read = async () => ({ nodeMs: await producer.ask('cpu'), serverMs: cpuOfServer(serverPid) })
    const before = await read()
    const { perSecond, written } = await produce(producer, { ms })
    const after = await read()
    return {
      perSecond,
      serverMicroseconds: perEvent(after.serverMs - before.serverMs, written),
      nodeMicroseconds: perEvent(after.nodeMs - before.nodeMs, written),
    }
  })
}

const perEvent = (ms, events) => (ms * 1_000) / events

/** Connections, plans and caches are warm when the clock starts. */
const WARM_UP_SHARE = 0.2

async function produce(producer, { ms, perSecond }) {
  const before = await producer.ask('count')
  const began = performance.now()
  await producer.ask('begin', { ms, perSecond })
  const after = await producer.ask('finish')
  const written = after - before
  return { written, perSecond: (written / (performance.now() - began)) * 1_000 }
}

/** Milliseconds from the producer's statement to the handler, of single events of an otherwise idle system. */
export async function measureLatency({ count, warmUp, ...order }) {
  return withProcesses(order, async (start, analyse) => {
    const prober = await start('prober')
    await prober.ask('probe', { count: warmUp })
    await analyse()
    return prober.ask('probe', { count })
  })
}

/** How often the backlog is read in a phase. */
const SAMPLES = 20

/**
 * First the producers at full speed with the relays, then at a share of the rate that the relays have reached. Between
 * the two, the relays have as long as the first phase twice to catch up.
 */
export async function measureSustained({ relays, fullMs, steadyMs, share, ...order }) {
  return withProcesses(order, async (start, analyse, serverPid) => {
    const relaying = []
    for (let i = 0; i < relays; i += 1) relaying.push(await start('relay'))
    const producer = await start('producer')
    const system = { producer, relaying, serverPid }

    await produce(producer, { ms: fullMs * WARM_UP_SHARE })
    await analyse()
    const full = await runPhase(system, { ms: fullMs })
    const leftOver = await catchUp(system, { withinMs: 2 * fullMs })
    if (leftOver > 0) return { full, leftOver }
    const rate = share * full.handledPerSecond
    const steady = await runPhase(system, { ms: steadyMs, perSecond: rate })
    return { full, steady, leftOver: await catchUp(system, { withinMs: 2 * steadyMs }) }
  })
}

const handledBy = async (relaying) =>
  (await Promise.all(relaying.map(async (relay) => relay.ask('count')))).reduce((sum, one) => sum + one, 0)

async function runPhase({ producer, relaying, serverPid }, { ms, perSecond }) {
  const samples = []
  const began = performance.now()
  const sample = async () => {
    const [written, handled] = await Promise.all([producer.ask('count'), handledBy(relaying)])
    samples.push({ ms: performance.now() - began, written, handled })
  }
  await producer.ask('begin', { ms, perSecond })
  await delay(ms * WARM_UP_SHARE)
  for (const relay of relaying) await relay.ask('latencies')
  const readCpu = async () => {
    const ofRelays = await Promise.all(relaying.map(async (relay) => relay.ask('cpu')))
    return {
      relays: ofRelays.reduce((sum, one) => sum + one, 0),
      producers: await producer.ask('cpu'),
      server: cpuOfServer(serverPid),
    }
  }
  const cpuBefore = await readCpu()
  await sample()
  for (let i = 1; i <= SAMPLES; i += 1) {
    const at = ms * (WARM_UP_SHARE + ((1 - WARM_UP_SHARE) * i) / SAMPLES)
    await delay(Math.max(0, at - (performance.now() - began)))
    await sample()
  }
  const cpu = await readCpu()
  const latencies = await Promise.all(relaying.map(async (relay) => relay.ask('latencies')))
  await producer.ask('finish')
  const [first, last] = [samples[0], samples.at(-1)]
  if (last.handled === first.handled)
    throw new Error(`no event was handled within ${Math.round(last.ms - first.ms)} ms`)
  const perSecondOf = (field) => ((last[field] - first[field]) / (last.ms - first.ms)) * 1_000
  return {
    handledPerSecond: perSecondOf('handled'),
    writtenPerSecond: perSecondOf('written'),
    microseconds: Object.fromEntries(
      Object.entries(cpu).map(([who, cpuMs]) => [
        who,
        perEvent(cpuMs - cpuBefore[who], last.handled - first.handled),
      ]),
    ),
    latencyMs: quantiles(latencies.flatMap((some) => [...some])),
    backlog: samples.map(({ written, handled }) => written - handled),
    backlogGrowthPerSecond: slope(samples.map((one) => [one.ms / 1_000, one.written - one.handled])),
  }
}

/** Waits until all that was written has been handled; what is left when the time is over. */
async function catchUp({ producer, relaying }, { withinMs }) {
  const written = await producer.ask('count')
  const deadline = performance.now() + withinMs
  for (;;) {
    const left = written - (await handledBy(relaying))
    if (left < 0) throw new Error(`${-left} events were handled more than once`)
    if (left === 0 || performance.now() > deadline) return left
    await delay(50)
  }
}

/** Of the straight line through the points, by least squares. */
function slope(points) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length
  const [x, y] = [mean(points.map(([a]) => a)), mean(points.map(([, b]) => b))]
  const across = points.reduce((sum, [a, b]) => sum + (a - x) * (b - y), 0)
  return across / points.reduce((sum, [a]) => sum + (a - x) ** 2, 0)
}
