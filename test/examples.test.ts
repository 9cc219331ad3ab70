/** Each example runs as a process of its own, does what its README says, and stops in order. */
import { readdir } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { findProgram } from './support/brokers/broker.ts'
import { useCommandLine } from './support/command-line.ts'
import { useDatabase } from './support/database.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { projectFile } from './support/project-files.ts'
import { emptyDirectory, serversOf } from './support/server.ts'

const { spawnNode } = useProcesses()

/** The URL that the process prints. */
async function urlOf(process: TestProcess): Promise<string> {
  const line = await process.line((text) => text.includes('http://127.0.0.1:'))
  return /http:\/\/127\.0\.0\.1:\d+/.exec(line)?.[0] ?? ''
}

async function post(url: string, body: object): Promise<Response> {
  const headers = { 'content-type': 'application/json' }
  return fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
}

/** A service whose orders are confirmed by the handler of their event. */
async function confirmsOrders(process: TestProcess): Promise<void> {
  const url = await urlOf(process)
  expect((await fetch(`${url}/orders/1`)).status).toBe(404)
  const placed = await post(`${url}/orders`, { item: 'tea' })
  expect([placed.status, await placed.json()]).toEqual([201, { id: '1', item: 'tea' }])
  await process.line((line) => line === 'order 1 is confirmed')
  await expect((await fetch(`${url}/orders/1`)).json()).resolves.toMatchObject({
    item: 'tea',
    confirmed_at: expect.any(String),
  })
  // The transaction fails, so there is no order and no event.
  expect((await post(`${url}/orders`, {})).status).toBe(500)
  expect((await fetch(`${url}/orders/2`)).status).toBe(404)
}

/** A program with one order that is placed, and one that is rolled back. */
async function placesOneOrder(process: TestProcess): Promise<void> {
  await process.line((line) => line === 'order 1 is confirmed')
  await process.line((line) => line === 'not placed, and no event: coffee is sold out')
  expect(process.output().stdout.match(/is confirmed/g)).toHaveLength(1)
}

interface Example {
  readonly name: string
  readonly observe: (process: TestProcess) => Promise<void>
  readonly env?: Readonly<Record<string, string>>
  /** The program that it starts. */
  readonly needs?: string
}

const EXAMPLES: readonly Example[] = [
  { name: 'express', observe: confirmsOrders },
  { name: 'fastify', observe: confirmsOrders },
  { name: 'drizzle', observe: placesOneOrder },
  { name: 'kysely', observe: placesOneOrder },
  {
    name: 'own-table',
    async observe(process) {
      await process.line((line) => line === 'job 1: https://a.example/')
      await process.line((line) => line === 'job 2: https://b.example/')
    },
  },
  {
    name: 'outbox-nats',
    needs: 'nats-server',
    async observe(process) {
      await process.line((line) => line === 'order 1 is confirmed')
      await process.line((line) => line === 'order 2 is confirmed')
      await process.line((line) => line === 'order 2 has arrived before')
    },
  },
  {
    name: 'webhooks-sender-receiver',
    async observe(process) {
      await process.line((line) => line === 'steady received order.placed {"order":"1"}')
      await process.line((line) => line === 'flaky received order.placed {"order":"1"}')
      const { stdout } = process.output()
      expect(stdout).toMatch(/has failed for good\nflaky is back: 1 delivery was replayed\n/)
      expect(stdout).not.toContain('refused')
    },
  },
  {
    name: 'embed-dashboard',
    env: { ADMIN_PASSWORD: 'correct horse' },
    async observe(process) {
      const url = await urlOf(process)
      const ask = async (path: string, cookie = ''): Promise<Response> =>
        fetch(`${url}${path}`, { headers: { cookie }, redirect: 'manual' })
      const logIn = async (password: string): Promise<Response> =>
        fetch(`${url}/login`, {
          method: 'POST',
          body: new URLSearchParams({ password }),
          redirect: 'manual',
        })
      expect((await ask('/admin/leasehold')).headers.get('location')).toBe('/login')
      expect((await ask('/admin/leasehold/api/v1/overview', 'session=forged')).status).toBe(303)
      expect((await logIn('wrong')).status).toBe(401)
      const cookie = (await logIn('correct horse')).headers.get('set-cookie')?.split(';')[0] ?? ''
      expect(await (await ask('/admin/leasehold', cookie)).text()).toContain('<title>example · Leasehold')
      const session = await ask('/admin/leasehold/api/v1/session', cookie)
      await expect(session.json()).resolves.toMatchObject({ principal: 'admin', role: 'operate' })
      const events = await ask('/admin/leasehold/api/v1/outbox/events', cookie)
      await expect(events.json()).resolves.toMatchObject({ items: [{ type: 'order.placed' }] })
    },
  },
  {
    name: 'payment-reconciler',
    env: { RECONCILE_EVERY_MS: '20', CHAIN_LATENCY_MS: '1', CHAIN_BLOCK_MS: '50' },
    async observe(process) {
      const url = await urlOf(process)
      const created = await post(`${url}/payment-requests`, { amount: 500, expiresInMs: 1 })
      const { id } = (await created.json()) as { id: string }
      const status = async (): Promise<string> => {
        const found = await fetch(`${url}/payment-requests/${id}`)
        return ((await found.json()) as { status: string }).status
      }
      // Whether it is paid is up to the simulated chain; after its expiry it is settled either way.
      await expect.poll(status).toMatch(/confirmed|expired/)
    },
  },
]

describe.each(EXAMPLES)('examples/$name', ({ name, observe, env, needs }) => {
  const { url } = useDatabase()

  it('runs, and stops in order on SIGTERM', async ({ skip }) => {
    if (needs !== undefined && (await findProgram(needs)) === undefined) {
      if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') throw new Error(`${needs} is not installed`)
      skip(`${needs} is not installed`)
    }
    const running = spawnNode(`examples/${name}/main.mjs`, [], {
      env: { DATABASE_URL: url, PORT: '0', ...env },
    })
    await observe(running)
    expect(await running.kill(), running.output().stderr).toEqual({ code: 0, signal: null })
  })
})

describe('the launcher', () => {
  it('starts an example on an embedded server of its own, and stops both', async () => {
    const directory = await emptyDirectory()
    const launcher = spawnNode('scripts/example.mjs', ['own-table'], {
      cwd: directory,
      env: { DATABASE_URL: '' },
    })
    await launcher.line((line) => line === 'job 2: https://b.example/')
    expect(await serversOf(directory)).toHaveLength(1)
    expect(await launcher.kill('SIGINT'), launcher.output().stderr).toEqual({ code: 0, signal: null })
    expect(await serversOf(directory)).toEqual([])
  })

  it('lists every example with one sentence, and each is started by a test', async () => {
    const launcher = spawnNode('scripts/example.mjs')
    expect(await launcher.exited).toEqual({ code: 0, signal: null })
    const listed = launcher.output().stdout.split('\n\n')[0]?.split('\n') ?? []
    const tests = (await readdir(new URL('.', import.meta.url))).filter((file) => file.endsWith('.test.ts'))
    const text = (await Promise.all(tests.map(async (file) => projectFile(`test/${file}`)))).join('\n')
    expect(listed.length).toBeGreaterThan(EXAMPLES.length)
    for (const line of listed) {
      expect(line).toMatch(/^[a-z-]+ {2,}[A-Z].*\.$/)
      const name = line.split(' ')[0] ?? ''
      expect(text.includes(`'${name}'`) || text.includes(`examples/${name}/main.mjs`), name).toBe(true)
    }
  })

  it('names the examples when there is none of the given name', async () => {
    const launcher = spawnNode('scripts/example.mjs', ['../test'])
    expect(await launcher.exited).toEqual({ code: 2, signal: null })
    expect(launcher.output().stderr).toContain('There is no example "../test". The examples are: ')
  })
})

describe('examples/own-table/lease.sql', () => {
  const { db, call } = useCommandLine('lease', 'add')

  it('is what `leasehold lease add` prints for the table, as the README says', async () => {
    await db.query({ text: await projectFile('examples/own-table/jobs.sql') })
    const claimable = "status = 'waiting'"
    expect(await projectFile('examples/own-table/README.md')).toContain(
      `leasehold lease add --table public.jobs --claimable "${claimable}"`,
    )
    const { stdout } = await call(['--table', 'public.jobs', '--claimable', claimable, '--dry-run'])
    expect(stdout).toBe(await projectFile('examples/own-table/lease.sql'))
  })
})
