/**
 * compose.yaml cannot be run here, but what it says can: scripts/topology.mjs starts the same services as plain processes,
 * and these tests keep the two in step.
 */
import { existsSync } from 'node:fs'
import { afterAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { argumentsOf, chosen, environmentOf, SERVICES } from '../scripts/topology.mjs'
import { declaredWork } from '../src/cli/work.ts'
import { SHUTDOWN_OVERHEAD_MS } from '../src/cli/worker-process.ts'
import { loadSettings } from '../src/config/load.ts'
import { openDatabase } from '../src/postgres/index.ts'
import type { WorkDeclaration } from '../src/worker/index.ts'
import { workerSettings } from '../src/worker/settings.ts'
import { callLeasehold } from './support/command-line.ts'
import { composeServices, projectFile } from './support/project-files.ts'
import { useDatabase } from './support/database.ts'
import { addRequests, EXAMPLE, openRequests, statuses } from './support/payment-example.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { emptyDirectory, serversOf } from './support/server.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()
const db = openDatabase({ url: database.url })
const compose = await composeServices()
const POLL = { timeout: 120_000, interval: 100 }
const PATIENCE = 300_000
afterAll(async () => {
  // Roles belong to the whole server.
  for (const { role } of SERVICES) {
    if (role === undefined) continue
    const { rows } = await db.query({ text: 'select from pg_roles where rolname = $1', values: [role.name] })
    if (rows.length > 0) await db.query({ text: `drop owned by ${role.name}; drop role ${role.name}` })
  }
  await db.close()
})

describe('REC-14: compose.yaml', () => {
  it('compose.yaml has PostgreSQL and the services of the topology, with the same commands, profiles and replicas', () => {
    const { postgres, ...services } = compose
    expect(postgres?.image).toMatch(/^postgres:\d+$/)
    expect(Object.keys(services)).toEqual(SERVICES.map(({ name }) => name))
    for (const { name, command, profiles, replicas } of SERVICES) {
      const service = services[name]
      expect(service?.command, name).toEqual(command)
      expect(service?.profiles ?? [], name).toEqual(profiles)
      const scaled = replicas === undefined ? undefined : `\${${replicas.variable}:-${replicas.byDefault}}`
      expect(service?.deploy?.replicas, name).toBe(scaled)
    }
  })

  it('REC-02: compose.yaml has a separate reconciler by default, and an API that does not reconcile', () => {
    expect(chosen([]).map(({ name }) => name)).toEqual(['migrate', 'api', 'reaper', 'reconciler'])
    expect(compose['api']?.environment).not.toHaveProperty('RECONCILER')
  })

  it('migrations run once and first; every other service waits for them, is restarted, and has a health check', () => {
    expect(compose['migrate']).toMatchObject({
      // The server may be restarted meanwhile. A wrong password ends it, after some attempts.
      restart: 'on-failure:10',
      depends_on: { postgres: { condition: 'service_healthy' } },
      healthcheck: { disable: true },
    })
    // While it creates the database, PostgreSQL listens on its socket alone.
    expect(compose['postgres']?.healthcheck?.test?.join(' ')).toMatch(/pg_isready --host 127\.0\.0\.1/)
    for (const { name } of SERVICES.filter(({ once }) => once !== true)) {
      expect(compose[name], name).toMatchObject({
        restart: 'unless-stopped',
        depends_on: { migrate: { condition: 'service_completed_successfully' } },
        healthcheck: { test: ['CMD', 'node', 'healthy.mjs'] },
        environment: { DATABASE_URL: expect.stringContaining('@postgres:5432/') as string },
      })
    }
  })

  it('every service but the migration has a database role and a password of its own, without a default', async () => {
    for (const { name, role, profiles } of SERVICES) {
      const user = role === undefined ? 'leasehold' : role.name
      const password = role === undefined ? 'POSTGRES_PASSWORD' : role.password
      // A service whose profile is off demands nothing.
      const demand = profiles.length === 0 ? ':\\?[^}]+' : ':-'
      expect(compose[name]?.environment?.['DATABASE_URL'], name).toMatch(
        new RegExp(`^postgresql://${user}:\\$\\{${password}${demand}\\}@postgres:5432/leasehold$`),
      )
    }
    expect(new Set(SERVICES.flatMap(({ role }) => role?.name ?? [])).size).toBe(SERVICES.length - 1)
    expect(new Set(SERVICES.flatMap(({ role }) => role?.password ?? [])).size).toBe(SERVICES.length - 1)
    const text = await projectFile('compose.yaml')
    expect([...text.matchAll(/\$\{\w*PASSWORD\w*(?!\w|:\?|:-\})/g)]).toEqual([])
  })

  it('a plain `docker compose up` needs no variable of a service whose profile is off', () => {
    // Compose interpolates all services, whatever the profile.
    const demanded = (names: readonly string[]): Set<string> =>
      new Set(
        names.flatMap((name) =>
          [...JSON.stringify(compose[name]).matchAll(/\$\{(\w+):\?/g)].map(([, variable = '']) => variable),
        ),
      )
    const plain = ['postgres', ...chosen([]).map(({ name }) => name)]
    expect(demanded(Object.keys(compose))).toEqual(demanded(plain))
    expect(demanded(plain)).toEqual(
      new Set(['POSTGRES_PASSWORD', 'API_PASSWORD', 'REAPER_PASSWORD', 'RECONCILER_PASSWORD']),
    )
  })

  it('a process of the topology gets the variables that compose.yaml gives it, and no others', () => {
    const values = Object.fromEntries(
      SERVICES.flatMap(({ name }) => Object.keys(compose[name]?.environment ?? {})).map((name) => [
        name,
        'x',
      ]),
    )
    for (const service of SERVICES) {
      const { [service.name]: { environment = {} } = {} } = compose
      expect([...service.environment, 'DATABASE_URL'].sort(), service.name).toEqual(
        Object.keys(environment).sort(),
      )
      const given = environmentOf(service, {
        ...values,
        DATABASE_URL: 'postgresql://owner:secret@h/d',
        OTHER: 'y',
      })
      expect(Object.keys(given).sort(), service.name).toEqual(Object.keys(environment).sort())
      expect(given['DATABASE_URL']).toBe(
        `postgresql://${service.role === undefined ? 'owner:secret' : `${service.role.name}:x`}@h/d`,
      )
    }
  })

  it('every stop grace period is longer than a stop in order may take', async () => {
    const workers = await declaredWorkers()
    for (const { name, command } of SERVICES.filter(({ once }) => once !== true)) {
      const [, , , only] = command
      const timeouts = workers
        .filter(({ name: worker, role = worker }) => role === only || worker === only)
        .map(({ settings }) => workerSettings(settings).shutdownTimeoutMs)
      const longest = Math.max(workerSettings({}).shutdownTimeoutMs, ...timeouts)
      const [, seconds] =
        /^(?:\$\{STOP_GRACE_PERIOD:-)?(\d+)s\}?$/.exec(compose[name]?.stop_grace_period ?? '') ?? []
      expect(Number(seconds) * 1_000, name).toBeGreaterThan(longest + SHUTDOWN_OVERHEAD_MS)
    }
  })

  it('compose.yaml sets only environment variables that are read', async () => {
    const documented = await projectFile('docs/reference/settings.md')
    const own = await Promise.all(
      ['payments', 'chain', 'server', 'settings', 'accounts'].map(async (name) =>
        projectFile(`examples/payment-reconciler/${name}.mjs`),
      ),
    )
    const names = new Set(
      SERVICES.flatMap(({ name }) => Object.keys(compose[name]?.environment ?? {})).filter(
        (name) => name !== 'LEASEHOLD_SECRET_KEY',
      ),
    )
    expect([...names].filter((name) => ![documented, ...own].some((text) => text.includes(name)))).toEqual([])
  })

  it('the working directories in compose.yaml exist in the image of the Dockerfile', async () => {
    const dockerfile = await projectFile('Dockerfile')
    const ignored = (await projectFile('.dockerignore')).split('\n')
    const copied = [...dockerfile.matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, files = '']) =>
      files.split(' '),
    )
    expect(copied).toEqual(
      expect.arrayContaining(['src', 'migrations', 'examples/payment-reconciler', 'package.json']),
    )
    for (const file of copied) {
      expect(existsSync(new URL(`../${file}`, import.meta.url)), file).toBe(true)
      expect(ignored, file).toContain(`!${file}`)
    }
    for (const { name } of SERVICES)
      expect(compose[name]?.working_dir).toBe('/app/examples/payment-reconciler')
    expect(dockerfile).toContain('WORKDIR /app')
    expect(dockerfile).toContain('/usr/local/bin/leasehold')
  })

  it('the scripts in compose.yaml exist', () => {
    const scripts = SERVICES.filter(({ command: [program] }) => program === 'node')
    expect(scripts).toHaveLength(2)
    for (const { command } of scripts) expect(existsSync(`${EXAMPLE}/${argumentsOf(command)[0]}`)).toBe(true)
  })

  const calls = SERVICES.filter(({ command: [program] }) => program === 'leasehold')
  it.each(calls)('the command of the service $name exists', async ({ command }) => {
    const [, ...args] = argumentsOf(command)
    const help = await callLeasehold([...args, '--help'], { workingDirectory: EXAMPLE })
    expect(help).toMatchObject({ code: 0, stdout: expect.stringContaining('--only') as unknown })
  })
})

/** The workers of the example's config file, and the dispatcher. */
async function declaredWorkers(): Promise<readonly WorkDeclaration<never>[]> {
  // The config file of the example reads it.
  vi.stubEnv('DATABASE_URL', database.url)
  onTestFinished(() => void vi.unstubAllEnvs())
  const { settings } = await loadSettings({
    flags: {},
    environment: { DATABASE_URL: database.url },
    workingDirectory: EXAMPLE,
    terminal: false,
  })
  return (await declaredWork(settings)).declared
}

interface Running {
  readonly process: TestProcess
  /** The HTTP address of one of the processes. */
  readonly http: (name: string) => Promise<string>
}

function topology(args: readonly string[], env: Record<string, string>, cwd: string = EXAMPLE): Running {
  const process = spawnNode('scripts/topology.mjs', args, {
    cwd,
    env: {
      PORT: '0',
      CHAIN_LATENCY_MS: '1',
      CHAIN_BLOCK_MS: '1',
      RECONCILE_EVERY_MS: '50',
      RECONCILE_POLL_MS: '50',
      ...env,
    },
  })
  onTestFinished(async () => void (await process.kill('SIGTERM')))
  const http = async (name: string): Promise<string> => {
    const line = await process.line((text) => text.startsWith(`${name} |   HTTP`))
    return line.split(/\s+/).at(-1) ?? ''
  }
  return { process, http }
}

async function health(http: string): Promise<number | null> {
  const asking = spawnNode('examples/payment-reconciler/healthy.mjs', [], {
    env: { PORT: new URL(http).port },
  })
  return (await asking.exited).code
}

it(
  'REC-14: the topology runs as processes with the requested number of reconcilers, and replaces one that dies',
  async () => {
    const { process: running, http } = topology(['all'], {
      DATABASE_URL: database.url,
      RECONCILERS: '3',
      LEASEHOLD_SECRET_KEY: Buffer.alloc(32, 7).toString('base64'),
      LEASEHOLD_LEASE_MS: '3000',
    })
    const names = ['api-1', 'reaper-1', 'reconciler-1', 'reconciler-2', 'reconciler-3']
    for (const name of [...names, 'relay-1', 'dispatcher-1', 'sync-1']) {
      const address = await http(name)
      await vi.waitFor(async () => expect(await health(address), name).toBe(0), POLL)
    }
    expect(running.output().stdout).not.toContain('reconciler-4')

    await addRequests(db, 300)
    const line = await running.line((text) => text.startsWith('reconciler-2 | started as process'))
    // The process id that the topology, a child of this test, printed for its own child.
    process.kill(Number(line.split(' ').at(-1)), 'SIGKILL')
    await running.line((text) => text === 'reconciler-2 | ended with SIGKILL, and is started again')
    const api = await http('api-1')
    const made = await fetch(`${api}/payment-requests`, {
      method: 'POST',
      body: '{"amount": 5, "expiresInMs": 0}',
    })
    expect(made.status).toBe(201)
    expect((await fetch(`${api}/blocks`, { method: 'POST', body: '{"from": 1, "to": 250}' })).status).toBe(
      202,
    )
    await vi.waitFor(async () => expect(await openRequests(db)).toBe(0), POLL)
    const { confirmed = 0, expired = 0 } = await statuses(db)
    expect(confirmed + expired).toBe(301)
    const count = async (text: string): Promise<unknown> =>
      (await db.query<{ count: number }>({ text })).rows[0]?.count
    await vi.waitFor(
      async () => expect(await count('select count(*)::int as count from app.blocks')).toBe(250),
      POLL,
    )
    const waiting = "select count(*)::int as count from leasehold.outbox where status <> 'PUBLISHED'"
    await vi.waitFor(async () => expect(await count(waiting)).toBe(0), POLL)
    expect(await running.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  },
  PATIENCE,
)

it(
  'without a database URL the topology starts an embedded server, and stops it at the end',
  async () => {
    const directory = await emptyDirectory()
    const { process: running, http } = topology([], { DATABASE_URL: '', RECONCILERS: '1' }, directory)
    const api = await http('api-1')
    const made = await fetch(`${api}/payment-requests`, {
      method: 'POST',
      body: '{"amount": 5, "expiresInMs": 0}',
    })
    const { id } = (await made.json()) as { id: string }
    const status = async (): Promise<unknown> =>
      ((await (await fetch(`${api}/payment-requests/${id}`)).json()) as { status: string }).status
    await vi.waitFor(async () => expect(['confirmed', 'expired']).toContain(await status()), POLL)
    expect(await running.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(await serversOf(directory)).toEqual([])
  },
  PATIENCE,
)

it('the health check fails if nothing answers', async () => {
  expect(await health('http://127.0.0.1:9')).toBe(1)
})
