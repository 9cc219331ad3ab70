// Drains the outbox in several scenarios, with two builds of Leasehold and its peers in turn, on one server, in one run.
import { mkdir, writeFile } from 'node:fs/promises'
import { cpus } from 'node:os'
import { dirname, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { checkBuild, commitOf, loadFrom } from './builds.mjs'
import { withClient } from './client.mjs'
import { readDisk, readStatements, readUpdates, resetStatements } from './counters.mjs'
import { leaseholdSide, leftOutOf, peer, PEER_NAMES } from './peers.mjs'
import { selfTimes } from './profile.mjs'
import { summarise, summaryTable, windowTables } from './report.mjs'
import { DEFAULT_SCENARIOS, SCENARIOS } from './scenarios.mjs'
import { startServer } from './server.mjs'
import { killAll, runSide } from './side-process.mjs'
import { openStore } from './stores.mjs'

export const USAGE = `npm start -- drain [flags]

  --builds a=dir,b=dir   builds of Leasehold: a name and the root of a built checkout (leasehold=..)
  --peers a,b            also: ${PEER_NAMES.join(', ')}
  --scenarios a,b:n      of ${Object.keys(SCENARIOS).join(', ')};
                         with :n, so many events in this one (${DEFAULT_SCENARIOS.join(',')})
  --events n             events of one drain (100000)
  --rounds n             how often each side runs each scenario; sides alternate (3)
  --payload bytes        size of a payload as JSON text (200)
  --keys n               ordering keys where a scenario has many (10000)
  --batch n              the most events of one call of the publisher (1)
  --settings json        settings of the relay, for all builds; otherwise each build's defaults
  --window n             portion for which rate, claim time and latency are recorded under a held snapshot (50000)
  --live-rate n          events written per second where a scenario writes during the drain (4000)
  --cold-pages           checkpoint before the drain, so that its WAL has a full-page image of each page it changes
  --profile dir          CPU profiles of the Leasehold processes into dir, and the statements that took the server
                         longest; the rates of such a run mean nothing
  --json file            where everything measured is written (results/drain-<time>.json)
  --timeout s            the most that one part of one side may take (900)
`

const PROBES = 100

const print = (text) => process.stdout.write(`${text}\n`)

function readFlags(args) {
  const { values } = parseArgs({
    args,
    options: {
      builds: { type: 'string' },
      peers: { type: 'string', default: '' },
      scenarios: { type: 'string', default: DEFAULT_SCENARIOS.join(',') },
      events: { type: 'string', default: '100000' },
      rounds: { type: 'string', default: '3' },
      payload: { type: 'string', default: '200' },
      keys: { type: 'string', default: '10000' },
      batch: { type: 'string', default: '1' },
      settings: { type: 'string' },
      window: { type: 'string', default: '50000' },
      'live-rate': { type: 'string', default: '4000' },
      'cold-pages': { type: 'boolean', default: false },
      profile: { type: 'string' },
      json: { type: 'string' },
      timeout: { type: 'string', default: '900' },
      help: { type: 'boolean', default: false },
    },
  })
  const number = (name) => {
    const value = Number(values[name])
    if (Number.isInteger(value) && value >= 1) return value
    throw new Error(`--${name} ${values[name]}: give a whole number from 1`)
  }
  return {
    help: values.help,
    builds: readBuilds(values.builds ?? `leasehold=${resolve(import.meta.dirname, '..')}`),
    peers: chosenFrom(PEER_NAMES, 'peers', values.peers),
    scenarios: readScenarios(values.scenarios, number('events')),
    events: number('events'),
    rounds: number('rounds'),
    payloadBytes: number('payload'),
    keyCount: number('keys'),
    maxBatch: number('batch'),
    settings: values.settings === undefined ? undefined : JSON.parse(values.settings),
    windowSize: number('window'),
    liveRate: number('live-rate'),
    coldPages: values['cold-pages'],
    profile: values.profile,
    json: values.json ?? resolve(import.meta.dirname, `results/drain-${fileTime()}.json`),
    timeoutMs: number('timeout') * 1_000,
  }
}

function readBuilds(text) {
  return text.split(',').map((part) => {
    const [name, directory] = part.split('=')
    if (!/^\w+$/.test(name) || directory === undefined)
      throw new Error(`--builds ${text}: give names and directories, such as before=dir,after=dir`)
    return { name, root: checkBuild(directory) }
  })
}

/** `hot:20000` is a scenario with a number of events of its own. */
function readScenarios(text, events) {
  return text.split(',').map((part) => {
    const [name, own] = part.split(':')
    chosenFrom(Object.keys(SCENARIOS), 'scenarios', name)
    const count = own === undefined ? events : Number(own)
    if (!Number.isInteger(count) || count < 1)
      throw new Error(`--scenarios ${part}: give a whole number from 1`)
    return { name, events: count }
  })
}

function chosenFrom(known, flag, text) {
  const names = text.split(',').filter((name) => name !== '')
  const unknown = names.find((name) => !known.includes(name))
  if (unknown === undefined) return names
  throw new Error(`--${flag}: there is no ${unknown}, only ${known.join(', ')}`)
}

const fileTime = () => new Date().toISOString().slice(0, 19).replaceAll(':', '-')

export async function drain(args) {
  const flags = readFlags(args)
  if (flags.help) {
    print(USAGE)
    return
  }
  const { maxBatch, settings, rounds } = flags
  const sides = [
    ...flags.builds.map(({ name, root }) => leaseholdSide(root, { name, maxBatch, settings })),
    ...flags.peers.map(peer),
  ]
  if (flags.profile !== undefined) await mkdir(flags.profile, { recursive: true })
  const { startEmbedded } = await loadFrom(flags.builds[0].root, './embedded')

  // Before the server starts: however the run ends, the server is stopped and its directory removed.
  const stopping = new AbortController()
  const stop = () => {
    stopping.abort()
    killAll()
  }
  process.once('SIGINT', stop).once('SIGTERM', stop)
  const server = await startServer(startEmbedded)
  const { payloadBytes, keyCount, windowSize, liveRate, coldPages, events } = flags
  const run = {
    at: new Date().toISOString(),
    node: process.versions.node,
    cores: cpus().length,
    server: server.facts,
    builds: flags.builds.map(({ name, root }) => ({ name, commit: commitOf(root) })),
    flags: { events, rounds, payloadBytes, keyCount, maxBatch, settings, windowSize, liveRate, coldPages },
  }
  print(headline(run))
  const readings = []
  let failures = 0
  try {
    for (let round = 1; round <= rounds; round += 1) {
      for (const scenario of flags.scenarios) {
        // Every other round in the opposite order, so that a machine that grows slower favours neither.
        for (const side of round % 2 === 1 ? sides : sides.toReversed()) {
          if (stopping.signal.aborted || leftOutOf(side, scenario.name) !== undefined) continue
          const reading = await measure(server, side, scenario, flags).catch((error) => {
            failures += 1
            print(`round ${round}: ${scenario.name}: ${side.name}: ${error.message}`)
          })
          if (reading === undefined) continue
          readings.push({ round, scenario: scenario.name, side: side.name, ...reading })
          print(`round ${round}: ${scenario.name}: ${side.name}: ${Math.round(reading.perSecond)} events/s`)
          if (flags.profile !== undefined) printStatements(reading.statements)
          await writeRecord(flags.json, { ...run, readings })
        }
      }
    }
  } finally {
    killAll()
    await server.stop()
  }
  const summary = summarise(readings, { sides, scenarios: flags.scenarios.map(({ name }) => name) })
  await writeRecord(flags.json, { ...run, summary, readings })
  print(`\n${summaryTable(summary, sides[0].name)}`)
  for (const text of windowTables(readings)) print(`\n${text}`)
  print(`\nwritten: ${flags.json}`)
  if (flags.profile !== undefined) await printSelfTimes(flags.profile)
  if (failures > 0 || stopping.signal.aborted) process.exitCode = 1
}

function headline({ server, node, cores, builds, flags }) {
  const names = builds.map(({ name, commit }) => `${name} ${commit ?? ''}`.trim()).join(', ')
  return `PostgreSQL ${server.version}, fsync ${server.fsync}, synchronous_commit ${server.synchronousCommit}; Node ${node}; ${cores} cores; ${flags.events} events, payload ${flags.payloadBytes} bytes, ${flags.rounds} rounds; ${names}`
}

/**
 * One scenario of one side, from an empty store to the last settlement; no figures unless every event was done. With
 * `maxMs` the drain is ended after that time, and the figures are those of the events that were done by then.
 */
export async function measure(
  server,
  { name, system, options },
  { name: scenarioName, events, maxMs },
  flags,
) {
  const scenario = SCENARIOS[scenarioName]
  const { keyCount, payloadBytes, liveRate, timeoutMs } = flags
  const side = { system, keys: scenario.keys, ...options(scenario.keys) }
  const store = await openStore(server, side, `${name}_${scenarioName}`)
  const { url, pid: serverPid } = store
  const common = {
    label: name,
    side,
    url,
    scenario,
    events,
    maxMs,
    keyCount,
    payloadBytes,
    liveRate,
    serverPid,
  }
  const part = async (partName, more = {}, execArgv = []) =>
    runSide({ ...common, part: partName, ...more }, { timeoutMs, execArgv })
  try {
    await part('migrate')
    return store.kind === 'postgres'
      ? await measureOnPostgres(server, { url, part, side, scenario, events }, flags)
      : await measureElsewhere({ part, events })
  } finally {
    await store.close()
  }
}

async function measureOnPostgres(server, { url, part, side, scenario, events }, flags) {
  let snapshot
  try {
    // Pages that are written from here on need no full-page image, neither while writing nor in the drain.
    await server.checkpoint()
    if (scenario.heldSnapshot) snapshot = await server.holdSnapshot(url)
    const probe = scenario.heldSnapshot ? await part('probe', { probes: PROBES }) : undefined

    const isLive = scenario.written === 'live'
    const writing = isLive ? undefined : await measureWal(server, async () => part('write'))
    if (!isLive) await server.vacuum(url)
    if (flags.coldPages) await server.checkpoint()

    const { schema, table } = await describe(side)
    await withClient(url, resetStatements)
    const updatesBefore = await readUpdates(url, schema)
    const more = scenario.heldSnapshot
      ? { windowSize: flags.windowSize, probes: PROBES, firstProbe: PROBES }
      : {}
    const profiled = flags.profile !== undefined && side.system === 'leasehold'
    const execArgv = profiled ? ['--cpu-prof', `--cpu-prof-dir=${resolve(flags.profile)}`] : []
    const draining = await measureWal(server, async () => {
      const [reading] = await Promise.all([part('drain', more, execArgv), ...(isLive ? [part('write')] : [])])
      return reading
    })
    const statements = await withClient(url, readStatements)
    const updates = await readUpdates(url, schema)
    const diskAtEnd = await readDisk(url, schema, table)
    await server.vacuum(url)
    return {
      ...figures({ events, writing, draining }),
      ...costs({ events, writing, draining, statements, updatesBefore, updates, diskAtEnd }),
      afterVacuum: await readDisk(url, schema, table),
      ...(probe === undefined ? {} : { probeMsBefore: probe.probeMs }),
      ...draining,
      statements: statements.slice(0, SHOWN_STATEMENTS),
    }
  } finally {
    await snapshot?.release()
  }
}

/** Without PostgreSQL there is no WAL, no statement and no table to tell of. */
async function measureElsewhere({ part, events }) {
  const writing = await part('write')
  const draining = await part('drain')
  return { ...figures({ events, writing, draining }), ...draining, statements: [] }
}

/** Which tables a side has; the module of the side is not used further in this process. */
async function describe(side) {
  const { openSide } = await import('./sides/index.mjs')
  const { schema, table } = await openSide(side)
  return { schema, table }
}

async function measureWal(server, work) {
  const before = await server.readWal()
  const result = await work()
  return { ...result, walBytes: (await server.readWal()) - before }
}

function figures({ events, writing, draining }) {
  const microseconds = (ms, count) => (ms === undefined ? undefined : (ms * 1_000) / count)
  return {
    perSecond: (draining.events / draining.ms) * 1_000,
    serverMicroseconds: microseconds(draining.serverCpuMs, draining.events),
    nodeMicroseconds: microseconds(draining.nodeCpuMs, draining.events),
    writeServerMicroseconds: microseconds(writing?.serverCpuMs, events),
  }
}

function costs({ events, writing, draining, statements, updatesBefore, updates, diskAtEnd }) {
  const updated = updates.updates - updatesBefore.updates
  return {
    writeWalBytes: writing && writing.walBytes / events,
    drainWalBytes: draining.walBytes / draining.events,
    diskBytes: diskAtEnd.total / events,
    heapBytes: diskAtEnd.heap / events,
    statementsPerThousand: (statements.reduce((sum, { calls }) => sum + calls, 0) / draining.events) * 1_000,
    hotShare: updated === 0 ? undefined : (updates.hot - updatesBefore.hot) / updated,
  }
}

async function writeRecord(file, record) {
  await mkdir(dirname(file), { recursive: true })
  await writeFile(file, `${JSON.stringify(record, undefined, 2)}\n`)
}

const SHOWN_STATEMENTS = 10

function printStatements(statements) {
  for (const { ms, calls, rows, statement } of statements)
    print(
      `  ${ms.toFixed(0).padStart(6)} ms  ${String(calls).padStart(6)} calls  ${String(rows).padStart(7)} rows  ${statement}`,
    )
}

const SHOWN_FUNCTIONS = 40

async function printSelfTimes(directory) {
  const times = await selfTimes(directory)
  const all = times.reduce((sum, { ms }) => sum + ms, 0)
  print(`\nself time in the Leasehold processes, ${directory}`)
  for (const { name, ms } of times.slice(0, SHOWN_FUNCTIONS))
    print(
      `  ${Math.round(ms)} ms`.padEnd(12) + `${((ms / all) * 100).toFixed(1)} %`.padStart(7) + `  ${name}`,
    )
}
