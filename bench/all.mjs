// Runs every scenario in one run, on one server, and writes one record: everything measured, and what it was measured on.
import { execFileSync } from 'node:child_process'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { arch, cpus, homedir, hostname, release, tmpdir, totalmem, type } from 'node:os'
import { dirname, resolve } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { checkBuild, commitOf, loadFrom } from './builds.mjs'
import { withClient } from './client.mjs'
import { GOALS, verdictOf } from './goals.mjs'
import { pgqueVersion } from './peers.mjs'
import { FORMAT } from './report/record.mjs'
import { measured, table } from './report/page.mjs'
import { redisVersion } from './redis.mjs'
import { startServer } from './server.mjs'
import { killAll } from './side-process.mjs'

/** In the order in which they run and are reported. Each is a module `scenarios/<name>.mjs`. */
export const NAMES = [
  'drain',
  'sustained',
  'enqueue',
  'latency',
  'retry-keys',
  'held-snapshot',
  'finished',
  'bytes',
  'crash',
  'heartbeats',
  'memory',
  'idle',
  'webhooks',
  'growth',
  'buckets',
]

const DEFAULT_ROUNDS = { short: 2, full: 5 }

export const USAGE = `npm --prefix bench start -- all [flags]

  --quick          small numbers and one round, in about three minutes; nothing is judged
  --short          smaller numbers than those of the goals, in about 40 minutes
  --only a,b       only these scenarios, of ${NAMES.slice(0, 7).join(', ')},
                   ${NAMES.slice(7).join(', ')}
  --rounds n       how often each side runs in each scenario; sides take turns
                   (${DEFAULT_ROUNDS.full}, or ${DEFAULT_ROUNDS.short} with --short)
  --json file      where the record is written (results/all-<time>.json)
  --timeout s      the most that one part of one side may take (1800)
  --second-edition dir   a built checkout of the second edition (commit 0ba9ec3), as one more side where a goal
                   compares with it
  --uncommitted    measure a checkout with changes that are not committed; its record cannot be published
`

const ROOT = resolve(import.meta.dirname, '..')
const print = (text) => process.stdout.write(`${text}\n`)

export function readFlags(args) {
  const { values } = parseArgs({
    args,
    options: {
      quick: { type: 'boolean', default: false },
      short: { type: 'boolean', default: false },
      only: { type: 'string' },
      rounds: { type: 'string' },
      json: { type: 'string' },
      timeout: { type: 'string', default: '1800' },
      'second-edition': { type: 'string' },
      uncommitted: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  })
  const number = (name, text) => {
    const value = Number(text)
    if (Number.isInteger(value) && value >= 1) return value
    throw new Error(`--${name} ${text}: give a whole number from 1`)
  }
  const only = values.only?.split(',').filter((name) => name !== '')
  const unknown = only?.find((name) => !NAMES.includes(name))
  if (unknown !== undefined) throw new Error(`--only: there is no ${unknown}, only ${NAMES.join(', ')}`)
  if (values.quick && values.rounds !== undefined)
    throw new Error(`--rounds ${values.rounds}: a quick run has one round`)
  const time = new Date().toISOString().slice(0, 19).replaceAll(':', '-')
  const size = values.quick ? 'quick' : values.short ? 'short' : 'full'
  return {
    help: values.help,
    quick: values.quick,
    size,
    names: only === undefined ? NAMES : NAMES.filter((name) => only.includes(name)),
    rounds: values.quick ? 1 : number('rounds', values.rounds ?? DEFAULT_ROUNDS[size]),
    json: values.json ?? resolve(import.meta.dirname, `results/all-${time}.json`),
    timeoutMs: number('timeout', values.timeout) * 1_000,
    uncommitted: values.uncommitted,
    secondEdition: values['second-edition'] && checkBuild(values['second-edition']),
  }
}

export async function all(args) {
  const flags = readFlags(args)
  if (flags.help) {
    print(USAGE)
    return
  }
  const commit = commitOf(ROOT)
  const uncommittedChanges = commit === undefined || commit.endsWith('+')
  if (uncommittedChanges && !flags.quick && !flags.uncommitted)
    throw new Error('this checkout has changes that are not committed: commit them, or give --uncommitted')
  // Otherwise an older build could be measured under the name of this commit.
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: ROOT, stdio: ['ignore', 'inherit', 'inherit'] })
  checkBuild(ROOT)
  const { startEmbedded } = await loadFrom(ROOT, './embedded')

  const stopping = new AbortController()
  const stop = (reason) => {
    stopping.abort(new Error(reason))
    killAll()
  }
  // Whatever happens, the server is stopped and its directory removed, below.
  process.once('SIGINT', () => stop('interrupted')).once('SIGTERM', () => stop('terminated'))
  process.on('uncaughtException', (error) => stop(`an error outside of any scenario: ${error.message}`))
  const server = await startServer(startEmbedded)
  try {
    const facts = {
      format: FORMAT,
      at: new Date().toISOString(),
      quick: flags.quick,
      size: flags.size,
      rounds: flags.rounds,
      commit: commit?.replace('+', ''),
      uncommittedChanges,
      secondEdition: flags.secondEdition && commitOf(flags.secondEdition),
      goals: GOALS,
      leasehold: JSON.parse(await readFile(resolve(ROOT, 'package.json'), 'utf8')).version,
      versions: await readVersions(server),
      settings: await readSettings(server),
      machine: machineFacts(),
    }
    print(
      `PostgreSQL ${facts.versions.PostgreSQL}; Node ${facts.versions.Node}; ${facts.machine.cores} cores; commit ${commit}; ${facts.quick ? 'quick' : `${facts.size}, ${facts.rounds} rounds`}`,
    )
    const record = await runScenarios({
      ...flags,
      facts,
      server,
      build: ROOT,
      signal: stopping.signal,
      load: async (name) => (await import(`./scenarios/${name}.mjs`)).scenario,
      save: async (record) => writeRecord(flags.json, record),
      print,
    })
    print(`\n${checksText(record)}\n\nwritten: ${flags.json}`)
    if (stopping.signal.aborted || record.scenarios.some(({ error }) => error !== undefined))
      process.exitCode = 1
  } finally {
    killAll()
    await server.stop()
  }
}

/** How long a scenario may take to end once the run was stopped. */
const STOP_TIMEOUT_MS = 20_000

/**
 * Runs the scenarios one after the other. One that fails is recorded as such, and the others run. The record is saved after each, so that a run that is interrupted keeps what it has measured.
 */
export async function runScenarios({ names, facts, load, save, server, build, signal, print, ...flags }) {
  const { quick, size, rounds, timeoutMs, secondEdition, stopTimeoutMs = STOP_TIMEOUT_MS } = flags
  const sized = (sizes) => sizes[size]
  const record = { ...facts, scenarios: [] }
  const add = async (entry) => {
    record.scenarios.push(scrubbed(entry))
    await save(record)
  }
  for (const name of names) {
    if (signal.aborted) {
      await add({ name, skipped: `the run was stopped before it (${signal.reason.message})` })
      continue
    }
    const began = performance.now()
    const seconds = () => Math.round((performance.now() - began) / 100) / 10
    let described = { name }
    try {
      const scenario = await load(name)
      described = { name, title: scenario.title }
      print(`\n${name}: ${scenario.title}`)
      // So that what one scenario has left unwritten does not fall into the next.
      await server.checkpoint()
      const context = { server, quick, sized, rounds, signal, timeoutMs, build, secondEdition }
      const running = scenario.run({ ...context, print: (text) => print(`  ${text}`) })
      const { series, checks, remarks } = await orStopped(running, signal, stopTimeoutMs)
      const failed = series.length > 0 ? {} : { error: 'nothing could be measured' }
      await add({ ...described, seconds: seconds(), series, checks, remarks, ...failed })
      print(`  ${seconds()} s`)
    } catch (error) {
      print(`  ${name}: ${error.message}`)
      await add({ ...described, seconds: seconds(), error: error.message })
    }
  }
  return record
}

/** What the scenario returns; or, when the run is stopped and the scenario does not end, an error. */
async function orStopped(running, signal, timeoutMs) {
  const settled = new AbortController()
  const stopped = new Promise((_, reject) => {
    const rejectLater = async () => {
      await delay(timeoutMs, undefined, { signal: settled.signal })
      reject(new Error(`stopped: ${signal.reason.message}`))
    }
    const onAbort = () => {
      rejectLater().catch(() => {})
    }
    if (signal.aborted) onAbort()
    else signal.addEventListener('abort', onAbort, { signal: settled.signal })
  })
  try {
    return await Promise.race([running, stopped])
  } finally {
    settled.abort()
  }
}

async function writeRecord(file, record) {
  await mkdir(dirname(resolve(file)), { recursive: true })
  await writeFile(file, `${JSON.stringify(record, undefined, 2)}\n`)
}

/** Paths and the name of this machine do not leave it, also not in the text of an error. */
export function scrubbed(value) {
  if (typeof value === 'string') return scrubbedText(value)
  if (Array.isArray(value)) return value.map(scrubbed)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, scrubbed(inner)]))
}

function scrubbedText(text) {
  const hidden = [
    [ROOT, '<checkout>'],
    [tmpdir(), '<tmp>'],
    [homedir(), '<home>'],
    // "localhost" and names of a letter or two also occur as ordinary words.
    ...(hostname().length > 3 && hostname() !== 'localhost' ? [[hostname(), '<host>']] : []),
  ]
  return hidden.reduce(
    (result, [from, to]) => (from.length > 1 ? result.replaceAll(from, to) : result),
    text.replaceAll('file://', ''),
  )
}

/** Of the packages that bench/package.json names, and of what is not a package. */
async function readVersions(server) {
  const { dependencies } = JSON.parse(await readFile(new URL('package.json', import.meta.url), 'utf8'))
  const versions = { PostgreSQL: server.facts.version, Node: process.versions.node }
  for (const name of Object.keys(dependencies).filter((one) => one !== 'node')) {
    const file = new URL(`node_modules/${name}/package.json`, import.meta.url)
    const text = await readFile(file, 'utf8').catch(() => undefined)
    versions[name] = text === undefined ? 'not installed' : JSON.parse(text).version
  }
  const others = { Redis: redisVersion(), PgQue: pgqueVersion() }
  return { ...versions, ...Object.fromEntries(Object.entries(others).filter(([, version]) => version)) }
}

/** Settings that change what is measured. Others name paths and ports. */
const SHOWN_SETTINGS = [
  'fsync',
  'synchronous_commit',
  'full_page_writes',
  'wal_level',
  'wal_compression',
  'shared_buffers',
  'max_wal_size',
  'checkpoint_timeout',
  'autovacuum',
  'autovacuum_naptime',
  'io_method',
  'jit',
  'max_connections',
  'shared_preload_libraries',
]

async function readSettings(server) {
  const url = await server.createDatabase('bench_settings')
  try {
    return await withClient(url, async (client) => {
      const { rows } = await client.query(
        `select name, current_setting(name) as value from pg_settings
         where name = any ($1) order by array_position($1, name)`,
        [SHOWN_SETTINGS],
      )
      return Object.fromEntries(rows.map(({ name, value }) => [name, value]))
    })
  } finally {
    await server.dropDatabase('bench_settings')
  }
}

/** No name of a host, user or path. */
export function machineFacts() {
  const [kernel] = /^\d+\.\d+/.exec(release()) ?? ['']
  return {
    cpu: cpus()[0]?.model.replaceAll(/\s+/g, ' ').trim() ?? 'unknown',
    cores: cpus().length,
    memory: `${Math.round(totalmem() / 1024 ** 3)} GiB`,
    system: `${type()} ${kernel} ${arch()}`.replaceAll(/\s+/g, ' '),
  }
}

function checksText(record) {
  const rows = record.goals.map((goal) => {
    const found = record.scenarios.find(({ name }) => name === goal.scenario)
    const check = found?.checks?.find((one) => one.goal === goal.id)
    const problem = found?.error ?? found?.skipped
    return [goal.text, measured(goal, check), check?.against ?? '', problem ?? verdictOf(goal, check, record)]
  })
  return table(['goal', 'measured', 'compared with', ''], rows)
}
