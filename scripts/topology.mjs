// The services of compose.yaml as plain processes of this machine: `npm run build`, then `node scripts/topology.mjs`.
// Without a DATABASE_URL they share an embedded PostgreSQL in .leasehold. RECONCILERS=3 says how many reconcilers there
// are; names after the script choose profiles (`events`, `sync`, `all`). Ctrl-C stops everything, the last one first.
// test/topology.test.ts keeps this table and compose.yaml in step.
import { spawn } from 'node:child_process'
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

/** What runs besides PostgreSQL, in the order of its start. */
export const SERVICES = [
  { name: 'migrate', command: ['node', 'migrate.mjs'], once: true, profiles: [] },
  { name: 'api', command: ['node', 'server.mjs'], profiles: [] },
  { name: 'reaper', command: ['leasehold', 'work', '--only', 'reaper'], profiles: [] },
  {
    name: 'reconciler',
    command: ['leasehold', 'work', '--only', 'reconcile'],
    replicas: { variable: 'RECONCILERS', byDefault: 2 },
    profiles: [],
  },
  { name: 'relay', command: ['leasehold', 'work', '--only', 'outbox'], profiles: ['events', 'all'] },
  { name: 'dispatcher', command: ['leasehold', 'work', '--only', 'webhooks'], profiles: ['events', 'all'] },
  { name: 'sync', command: ['leasehold', 'work', '--only', 'sync'], profiles: ['sync', 'all'] },
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

class Topology {
  #environment
  #running = new Map()
  #stopping = false

  constructor(environment) {
    this.#environment = environment
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

  async #spawn(name, { command }) {
    const child = spawn(process.execPath, argumentsOf(command), {
      cwd: EXAMPLE,
      env: this.#environment,
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
    // The dispatcher needs a key; beside an embedded server there is one that stays.
    LEASEHOLD_SECRET_KEY: LEASEHOLD_SECRET_KEY || (server ? await embeddedSecretKey(DIRECTORY) : ''),
    LEASEHOLD_PORT: '0',
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
