// The services of compose.yaml as plain processes of this machine: `npm run build`, then `node scripts/topology.mjs`.
// Without a DATABASE_URL (of the owner of the tables) they share an embedded PostgreSQL in .leasehold. RECONCILERS=3 says
// how many reconcilers there are; names after the script choose profiles (`events`, `sync`, `all`). Ctrl-C stops
// everything, the last one first. Each process gets the variables that compose.yaml gives it, and no others;
// test/topology.test.ts keeps this table and compose.yaml in step.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { numberOf } from '../examples/payment-reconciler/settings.mjs'

const EXAMPLE = fileURLToPath(new URL('../examples/payment-reconciler/', import.meta.url))
const LEASEHOLD = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url))
const DIRECTORY = '.leasehold'
const MOST_REPLICAS = 100
const RESTART_AFTER_MS = 1_000

const WORKER = ['LEASEHOLD_PORT', 'LEASEHOLD_LEASE_MS', 'LEASEHOLD_LOG_LEVEL']
const EVENTS = ['events', 'all']
const PASSWORDS = ['API', 'REAPER', 'RECONCILER', 'RELAY', 'DISPATCHER', 'SYNC'].map(
  (name) => `${name}_PASSWORD`,
)

/** What runs besides PostgreSQL, in the order of its start: with which database role, and with which variables. */
export const SERVICES = [
  {
    name: 'migrate',
    command: ['node', 'migrate.mjs'],
    once: true,
    environment: PASSWORDS,
    profiles: [],
  },
  {
    name: 'api',
    command: ['node', 'server.mjs'],
    role: { name: 'payments_api', password: 'API_PASSWORD' },
    environment: ['HOST', 'PORT'],
    profiles: [],
  },
  {
    name: 'reaper',
    command: ['leasehold', 'work', '--only', 'reaper'],
    role: { name: 'payments_reaper', password: 'REAPER_PASSWORD' },
    environment: WORKER,
    profiles: [],
  },
  {
    name: 'reconciler',
    command: ['leasehold', 'work', '--only', 'reconcile'],
    role: { name: 'payments_reconciler', password: 'RECONCILER_PASSWORD' },
    environment: [
      ...WORKER,
      ...['POLL_MS', 'BATCH', 'CONCURRENCY', 'EVERY_MS', 'TIMEOUT_MS'].map((name) => `RECONCILE_${name}`),
      'CHAIN_LATENCY_MS',
      'CHAIN_BLOCK_MS',
    ],
    replicas: { variable: 'RECONCILERS', byDefault: 2 },
    profiles: [],
  },
  {
    name: 'relay',
    command: ['leasehold', 'work', '--only', 'outbox'],
    role: { name: 'payments_relay', password: 'RELAY_PASSWORD' },
    environment: WORKER,
    profiles: EVENTS,
  },
  {
    name: 'dispatcher',
    command: ['leasehold', 'work', '--only', 'webhooks'],
    role: { name: 'payments_dispatcher', password: 'DISPATCHER_PASSWORD' },
    environment: [...WORKER, 'LEASEHOLD_SECRET_KEY'],
    profiles: EVENTS,
  },
  {
    name: 'sync',
    command: ['leasehold', 'work', '--only', 'sync'],
    role: { name: 'payments_sync', password: 'SYNC_PASSWORD' },
    environment: WORKER,
    profiles: ['sync', 'all'],
  },
]

/** Those that run with these profiles. */
export function chosen(profiles) {
  return SERVICES.filter((service) => isChosen(service, profiles))
}

function isChosen({ profiles: of }, profiles) {
  return of.length === 0 || of.some((profile) => profiles.includes(profile))
}

/** Where a service's program is on this machine. */
export function argumentsOf([program, ...args]) {
  return program === 'leasehold' ? [LEASEHOLD, ...args] : args
}

/** What every process of this machine needs to run at all. */
const SYSTEM = ['PATH', 'HOME', 'TMPDIR', 'TEMP', 'SystemRoot', 'LANG', 'TZ']

/** The variables of one service: those of compose.yaml, and the URL of the database with its own role. */
export function environmentOf({ environment, role }, values) {
  const url = new URL(values.DATABASE_URL)
  if (role) {
    url.username = role.name
    url.password = values[role.password]
  }
  const names = [...SYSTEM, ...environment].filter((name) => values[name] !== undefined)
  return { ...Object.fromEntries(names.map((name) => [name, values[name]])), DATABASE_URL: url.href }
}

class Topology {
  #values
  #running = new Map()
  #stopping = false

  constructor(values) {
    this.#values = values
  }

  async start(service) {
    if (service.once) {
      const { code } = await this.#spawn(service.name, service)
      if (code !== 0) throw new Error(`${service.name} has failed`)
      return
    }
    const count = service.replicas
      ? numberOf(service.replicas.variable, service.replicas.byDefault, { most: MOST_REPLICAS })
      : 1
    for (let n = 1; n <= count; n += 1) void this.#keep(`${service.name}-${n}`, service)
  }

  /** One that ends although nobody asked it to is started again, as `restart: unless-stopped` does. */
  async #keep(name, service) {
    while (!this.#stopping) {
      const { code, signal } = await this.#spawn(name, service)
      if (this.#stopping) return
      say(name, `ended with ${signal ?? code}, and is started again`)
      await delay(RESTART_AFTER_MS)
    }
  }

  async #spawn(name, service) {
    const child = spawn(process.execPath, argumentsOf(service.command), {
      cwd: EXAMPLE,
      env: environmentOf(service, this.#values),
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#running.set(name, child)
    say(name, `started as process ${child.pid}`)
    for (const stream of [child.stdout, child.stderr])
      createInterface({ input: stream }).on('line', (line) => say(name, line))
    const [code, signal] = await once(child, 'close')
    this.#running.delete(name)
    return { code, signal }
  }

  async stop() {
    this.#stopping = true
    for (const [, child] of [...this.#running].toReversed()) {
      const closed = once(child, 'close')
      child.kill('SIGTERM')
      await closed
    }
  }
}

function say(name, line) {
  if (line.trim() !== '') process.stdout.write(`${name} | ${line}\n`)
}

async function run(profiles) {
  const { DATABASE_URL, LEASEHOLD_SECRET_KEY } = process.env
  const told = new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, resolve)
  })
  const { embeddedSecretKey, startEmbedded } = await import('../dist/embedded/index.js')
  const server = DATABASE_URL ? undefined : await startEmbedded({ directory: DIRECTORY })
  const topology = new Topology({
    ...process.env,
    DATABASE_URL: DATABASE_URL || server.url,
    // The dispatcher needs a key; an embedded server has one that stays.
    LEASEHOLD_SECRET_KEY: LEASEHOLD_SECRET_KEY || (server ? await embeddedSecretKey(DIRECTORY) : ''),
    LEASEHOLD_PORT: '0',
    // Nobody needs to know them: migrate sets them at every start.
    ...Object.fromEntries(PASSWORDS.map((name) => [name, randomBytes(24).toString('hex')])),
  })
  try {
    for (const service of chosen(profiles)) await topology.start(service)
    await told
  } finally {
    await topology.stop()
    await server?.stop()
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await run(process.argv.slice(2))
