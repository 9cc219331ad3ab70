// `npm --prefix bench start -- survival`: what Leasehold and its peers lose, double or leave stuck, and for how long.
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { machineFacts, scrubbed } from '../all.mjs'
import { checkBuild, commitOf, loadFrom } from '../builds.mjs'
import { startServer } from '../server.mjs'
import { killAll } from '../side-process.mjs'
import { survivalPage } from './page.mjs'
import { SIDES } from './sides.mjs'
import { STAGES, Trial } from './stages.mjs'

export const USAGE = `npm --prefix bench start -- survival [flags]

  --rounds n       how often each side goes through each stage (3)
  --seed text      of the moments at which faults come (1)
  --only a,b       only these stages, of ${Object.keys(STAGES).join(', ')}
  --sides a,b      only these sides, of ${Object.keys(SIDES).join(', ')}
  --wait s         for how long a job may not run before it counts as stuck (60)
  --block s        for how long the event loop is blocked (40)
  --parallel n     databases, each with up to three processes, at the same time (10)
  --json file      the record (results/survival-<time>.json)
  --page file      the page, of a full run (../docs/survival.md)
  --from file      write the page from this record, and run nothing
`

const ROOT = resolve(import.meta.dirname, '../..')
const print = (text) => process.stdout.write(`${text}\n`)

function readFlags(args) {
  const time = new Date().toISOString().slice(0, 19).replaceAll(':', '-')
  const { values } = parseArgs({
    args,
    options: {
      rounds: { type: 'string', default: '3' },
      seed: { type: 'string', default: '1' },
      only: { type: 'string', default: Object.keys(STAGES).join(',') },
      sides: { type: 'string', default: Object.keys(SIDES).join(',') },
      wait: { type: 'string', default: '60' },
      block: { type: 'string', default: '40' },
      parallel: { type: 'string', default: '10' },
      json: { type: 'string', default: resolve(import.meta.dirname, `../results/survival-${time}.json`) },
      page: { type: 'string' },
      from: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  })
  const number = (name) => {
    const value = Number(values[name])
    if (Number.isInteger(value) && value >= 1) return value
    throw new Error(`--${name} ${values[name]}: give a whole number from 1`)
  }
  const list = (name, known) => {
    const names = values[name].split(',')
    const unknown = names.find((one) => known[one] === undefined)
    if (unknown !== undefined)
      throw new Error(`--${name}: there is no ${unknown}, only ${Object.keys(known).join(', ')}`)
    return names
  }
  return {
    ...values,
    rounds: number('rounds'),
    waitMs: number('wait') * 1_000,
    blockMs: number('block') * 1_000,
    parallel: number('parallel'),
    stages: list('only', STAGES),
    sides: list('sides', SIDES),
  }
}

export async function survival(args) {
  const flags = readFlags(args)
  if (flags.help) return print(USAGE)
  if (flags.from !== undefined) return writePage(flags, JSON.parse(await readFile(flags.from, 'utf8')))
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: ROOT, stdio: ['ignore', 'inherit', 'inherit'] })
  checkBuild(ROOT)
  const { startEmbedded } = await loadFrom(ROOT, './embedded')
  process.once('SIGINT', () => killAll()).once('SIGTERM', () => killAll())
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-survival-'))
  // TCP, as in production: a server that is down answers with ECONNREFUSED there, and with ENOENT on a Unix socket.
  const port = await freePort()
  const server = await startServer(startEmbedded, {
    max_connections: '500',
    shared_buffers: '128MB',
    listen_addresses: '127.0.0.1',
    port: String(port),
  })
  try {
    const record = {
      at: new Date().toISOString(),
      commit: commitOf(ROOT),
      seed: flags.seed,
      rounds: flags.rounds,
      waitSeconds: flags.waitMs / 1_000,
      blockSeconds: flags.blockMs / 1_000,
      versions: {
        ...(await readVersions()),
        PostgreSQL: server.facts.version,
        Node: process.version.slice(1),
      },
      machine: machineFacts(),
      trials: await runTrials({ flags, server, directory, port }),
    }
    await mkdir(dirname(resolve(flags.json)), { recursive: true })
    await writeFile(flags.json, `${JSON.stringify(scrubbed(record), null, 1)}\n`)
    print(`written: ${flags.json}`)
    await writePage(flags, record)
    if (record.trials.some(({ error }) => error !== undefined)) process.exitCode = 1
  } finally {
    killAll()
    await server.stop()
    await rm(directory, { recursive: true, force: true })
  }
}

async function writePage(flags, record) {
  const stages = new Set(record.trials.map(({ stage }) => stage))
  const sides = new Set(record.trials.map(({ side }) => side))
  const isFull = stages.size === Object.keys(STAGES).length && sides.size === Object.keys(SIDES).length
  const page = flags.page ?? (isFull ? join(ROOT, 'docs/survival.md') : undefined)
  if (page === undefined) return
  await writeFile(page, survivalPage(record))
  print(`written: ${page}`)
}

async function readVersions() {
  const of = async (name) =>
    JSON.parse(await readFile(join(import.meta.dirname, '../node_modules', name, 'package.json'), 'utf8'))
      .version
  return { 'graphile-worker': await of('graphile-worker'), 'pg-boss': await of('pg-boss') }
}

async function runTrials({ flags, server, directory, port }) {
  const orders = []
  for (let round = 1; round <= flags.rounds; round += 1)
    for (const stage of flags.stages)
      for (const side of flags.sides) orders.push({ round, stage, side, id: orders.length })
  const trials = []
  const run = async (order, fault) => {
    const result = await runTrial({ ...order, flags, server, directory, port, fault })
    trials.push(result)
    print(summaryOf(result))
  }
  // The slots of a pool, not batches: one side that waits for a minute holds up none of the others.
  const waiting = orders.filter(({ stage }) => STAGES[stage].sharesFault !== true)
  await Promise.all(
    Array.from({ length: flags.parallel }, async () => {
      for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) await run(next)
    }),
  )
  for (let round = 1; round <= flags.rounds; round += 1) {
    const together = orders.filter((one) => one.round === round && STAGES[one.stage].sharesFault === true)
    const shared = sharedFault(server, together.length)
    await Promise.all(
      together.map(async (order) => {
        try {
          await run(order, shared.fault)
        } finally {
          shared.leave()
        }
      }),
    )
  }
  return trials.sort((a, b) => a.id - b.id)
}

/** The server goes down when all have asked for it, or have left because they failed. Returns when it was up again. */
function sharedFault(server, count) {
  const works = []
  const crashed = Promise.withResolvers()
  let missing = count
  const arrive = () => {
    missing -= 1
    if (missing > 0) return
    server
      .crash(async () => Promise.all(works.map(async (work) => work())))
      .then(() => crashed.resolve(Date.now()), crashed.reject)
  }
  let left = 0
  return {
    fault: async (work) => {
      works.push(work)
      arrive()
      return crashed.promise
    },
    leave() {
      left += 1
      // Whoever failed before it had asked is not waited for.
      if (missing > 0 && left + works.length > count - missing) arrive()
    },
  }
}

async function runTrial({ id, round, stage, side, flags, server, directory, port, fault }) {
  const database = `survival_${id}`
  const facts = { id, round, stage, side }
  let trial
  try {
    const url = overTcp(await server.createDatabase(database), port)
    trial = new Trial({
      side,
      url,
      file: join(directory, `${database}.jsonl`),
      build: ROOT,
      random: randomOf(`${flags.seed} ${round} ${stage} ${side}`),
      waitMs: flags.waitMs,
      blockMs: flags.blockMs,
      fault,
    })
    return { ...facts, ...(await STAGES[stage].run(trial)) }
  } catch (error) {
    return {
      ...facts,
      error: error.message,
      troubles: trial
        ?.lines()
        .filter(({ what }) => what === 'trouble')
        .slice(0, 5),
    }
  } finally {
    await trial?.end()
    await server.dropDatabase(database).catch(() => {})
  }
}

async function freePort() {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address()
  probe.close()
  await once(probe, 'close')
  return port
}

function overTcp(url, port) {
  const changed = new URL(url)
  changed.search = ''
  changed.hostname = '127.0.0.1'
  changed.port = String(port)
  return changed.href
}

/** Numbers from 0 to 1, the same for the same text (FNV-1a into mulberry32). */
export function randomOf(text) {
  let state = 2_166_136_261
  for (const character of text) state = Math.imul(state ^ character.codePointAt(0), 16_777_619)
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

function summaryOf({
  round,
  stage,
  side,
  error,
  written,
  once,
  twice,
  lost,
  stuck,
  zombieFinished,
  seconds,
  dueSeconds,
}) {
  const head = `${stage} ${side} round ${round}:`
  if (error !== undefined) return `${head} failed: ${error}`
  const parts = [`written ${written}, once ${once}, twice ${twice}, lost ${lost}, stuck ${stuck}`]
  if (zombieFinished !== undefined) parts.push(`finished by a zombie ${zombieFinished}`)
  if (seconds !== undefined) parts.push(`${seconds.toFixed(1)} s`)
  if (dueSeconds !== undefined) parts.push(`due in ${Math.round(dueSeconds)} s`)
  return `${head} ${parts.join('; ')}`
}
