/** Who reaches the HTTP API of a real process, where, and with what. */
import { once } from 'node:events'
import { createServer } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useLoginRoles } from '../../test/support/login-roles.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'
import { emptyDirectory } from '../../test/support/server.ts'
import { createKey } from '../operations/api-keys.ts'
import { openDatabase } from '../postgres/index.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()
const logins = useLoginRoles(database)

function leasehold(cwd: string, args: readonly string[], env: Record<string, string> = {}): TestProcess {
  const environment = { DATABASE_URL: '', LEASEHOLD_PORT: '', LEASEHOLD_SECRET_KEY: '', ...env }
  return spawnNode('bin/leasehold.cjs', args, { cwd, env: environment })
}

/** The address that a process prints when it is up. */
async function addressOf(process: TestProcess): Promise<string> {
  const line = await process.line((text) => /^ +HTTP +http/.test(text))
  return /http:\S+/.exec(line)?.[0] ?? ''
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  return typeof address === 'object' && address !== null ? address.port : 0
}

async function keyWith(role: 'read' | 'admin', name: string): Promise<string> {
  const db = openDatabase({ url: database.url })
  try {
    return (await createKey(db, { name, role }, { principal: 'test' })).key
  } finally {
    await db.close()
  }
}

it('serve answers those who have a key, on a login role that may do nothing else', async () => {
  const directory = await emptyDirectory()
  const process = leasehold(directory, ['serve', '--port', '0'], { DATABASE_URL: logins.api.url })
  const url = await addressOf(process)
  const key = await keyWith('read', 'serve')
  expect((await fetch(`${url}/api/v1/overview`)).status).toBe(401)
  const overview = await fetch(`${url}/api/v1/overview`, { headers: { authorization: `Bearer ${key}` } })
  expect(overview.status).toBe(200)
  expect(await overview.json()).toMatchObject({ outbox: { pending: { count: 0 } } })
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  const { stdout, stderr } = process.output()
  expect(stdout + stderr).not.toContain(key)
})

it('serve without any key warns that nobody can use it', async () => {
  const db = openDatabase({ url: database.url })
  await db.query({ text: 'delete from leasehold.api_keys' })
  await db.close()
  const process = leasehold(await emptyDirectory(), ['serve', '--port', '0'], {
    DATABASE_URL: logins.api.url,
  })
  await addressOf(process)
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(process.output().stderr).toContain('create one with `leasehold keys create`')
})

it('serve with a login role that cannot become the roles of the API answers what to grant', async () => {
  const process = leasehold(await emptyDirectory(), ['serve', '--port', '0'], {
    DATABASE_URL: logins.reader.url,
  })
  const url = await addressOf(process)
  const answer = await fetch(`${url}/api/v1/overview`, { headers: { authorization: 'Bearer lhk_x' } })
  expect(answer.status).toBe(401)
  const shaped = `lhk_${'0'.repeat(32)}_${'a'.repeat(43)}`
  const refused = await fetch(`${url}/api/v1/overview`, { headers: { authorization: `Bearer ${shaped}` } })
  expect(refused.status).toBe(503)
  expect(await refused.json()).toMatchObject({
    code: 'PERMISSION_DENIED',
    remedy: expect.stringContaining('GRANT leasehold_api TO'),
  })
  await process.kill('SIGTERM')
})

it('serve and up with a database of others refuse a port in use: a key must not go to another program', async () => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  onTestFinished(() => void taken.close())
  const address = taken.address()
  const port = String(typeof address === 'object' && address !== null ? address.port : 0)
  for (const command of ['serve', 'up']) {
    const process = leasehold(await emptyDirectory(), [command, '--port', port], {
      DATABASE_URL: database.url,
    })
    expect(await process.exited).toMatchObject({ code: 1 })
    expect(process.output().stderr).toContain('the port is in use')
    expect(process.output().stderr).not.toContain('DATABASE_CLOSED')
  }
})

it('probes and metrics are served on an address of their own, and nothing else there', async () => {
  const port = await freePort()
  const args = ['serve', '--port', '0', '--metrics-host', '0.0.0.0', '--metrics-port', String(port)]
  const process = leasehold(await emptyDirectory(), args, { DATABASE_URL: logins.api.url })
  await addressOf(process)
  for (const path of ['/livez', '/readyz', '/metrics'])
    expect((await fetch(`http://127.0.0.1:${port}${path}`)).status, path).toBe(200)
  for (const path of ['/', '/api/v1/overview', '/api/v1/openapi.json'])
    expect((await fetch(`http://127.0.0.1:${port}${path}`)).status, path).toBe(404)
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('up on the embedded server needs no key on loopback, but refuses a wrong one and pages of other sites', async () => {
  const process = leasehold(await emptyDirectory(), ['up', '--port', '0'])
  const url = await addressOf(process)
  const written = await fetch(`${url}/api/v1/outbox/events`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ type: 'order.paid', payload: {} }),
  })
  expect(written.status).toBe(201)
  const wrong = await fetch(`${url}/api/v1/overview`, { headers: { authorization: 'Bearer lhk_wrong' } })
  expect(wrong.status).toBe(401)
  const foreign = await fetch(`${url}/api/v1/outbox/events`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', origin: 'https://evil.example' },
    body: JSON.stringify({ type: 'order.paid', payload: {} }),
  })
  expect(foreign.status).toBe(403)
  const live = await fetch(`${url}/api/v1/live`)
  const reader = live.body?.getReader()
  expect(new TextDecoder().decode((await reader?.read())?.value)).toContain('retry:')
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('up with a database of others needs keys on loopback too', async () => {
  const process = leasehold(await emptyDirectory(), ['up', '--port', '0'], { DATABASE_URL: database.url })
  const url = await addressOf(process)
  expect((await fetch(`${url}/api/v1/overview`)).status).toBe(401)
  const key = await keyWith('admin', 'up')
  const answer = await fetch(`${url}/api/v1/keys`, { headers: { authorization: `Bearer ${key}` } })
  expect(answer.status).toBe(200)
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('up beyond loopback needs keys on the embedded server too', async () => {
  const process = leasehold(await emptyDirectory(), ['up', '--host', '0.0.0.0', '--port', '0'])
  const url = (await addressOf(process)).replace('0.0.0.0', '127.0.0.1')
  expect((await fetch(`${url}/api/v1/overview`)).status).toBe(401)
  expect((await fetch(`${url}/livez`)).status).toBe(200)
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})
