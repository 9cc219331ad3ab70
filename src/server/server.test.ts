import { once } from 'node:events'
import { request } from 'node:http'
import { connect, createServer } from 'node:net'
import { text } from 'node:stream/consumers'
import { expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { type Check, createHealth, databaseAnswers, migrationsCurrent } from '../observe/health.ts'
import { openDatabase } from '../postgres/index.ts'
import { type HttpServer, type ServerOptions, startServer } from './server.ts'

const database = useDatabase()

async function start(
  checks: readonly Check[] = [],
  options: Partial<ServerOptions> = {},
): Promise<HttpServer> {
  const server = await startServer({
    version: '1.2.3',
    health: createHealth(checks),
    host: '127.0.0.1',
    port: 0,
    whenTaken: 'refuse',
    onError: (error) => {
      throw error
    },
    ...options,
  })
  onTestFinished(async () => server.stop())
  return server
}

/** With a Host header of our choice, which `fetch` does not allow. */
async function get(server: HttpServer, path: string, host?: string) {
  const sent = request(`${server.url}${path}`, {
    agent: false,
    ...(host === undefined ? {} : { headers: { host } }),
  })
  sent.end()
  const [response] = await once(sent, 'response')
  const body = await text(response)
  return { status: Number(response.statusCode), type: String(response.headers['content-type']), body }
}

it('/readyz is 200 when the database answers and is migrated, and lists each check when asked', async () => {
  const db = openDatabase({ url: database.url })
  onTestFinished(async () => db.close())
  const server = await start([databaseAnswers(db), migrationsCurrent(db, 'leasehold')])
  const short = await get(server, '/readyz')
  expect(short.status).toBe(200)
  expect(JSON.parse(short.body)).toEqual({ status: 'ready', failed: [] })
  const verbose = await get(server, '/readyz?verbose')
  expect(JSON.parse(verbose.body)).toMatchObject({
    status: 'ready',
    checks: [
      { name: 'database', ok: true },
      { name: 'migrations', ok: true },
    ],
  })
})

it('/readyz is 503 when the schema is not migrated, and says what to do', async () => {
  const db = openDatabase({ url: database.url })
  onTestFinished(async () => db.close())
  const server = await start([databaseAnswers(db), migrationsCurrent(db, 'nowhere')])
  const { status, body } = await get(server, '/readyz?verbose')
  expect(status).toBe(503)
  expect(JSON.parse(body)).toMatchObject({ status: 'not ready', failed: ['migrations'] })
  expect(body).toContain('leasehold migrate')
})

it('while the database is unavailable /readyz is 503 and /livez is 200; /readyz recovers with the database', async () => {
  const proxy = await startProxy(database.url)
  onTestFinished(async () => proxy.close())
  const db = openDatabase({ url: proxy.url })
  onTestFinished(async () => db.close())
  const server = await start([databaseAnswers(db)])
  expect((await get(server, '/readyz')).status).toBe(200)
  await proxy.refuse()
  proxy.cut()
  expect((await get(server, '/readyz')).status).toBe(503)
  expect((await get(server, '/livez')).status).toBe(200)
  await proxy.accept()
  expect((await get(server, '/readyz')).status).toBe(200)
})

it('/metrics answers the given text with the content type of Prometheus; without a text it is a 404', async () => {
  const server = await start([], { metrics: async () => 'leasehold_in_flight 4\n' })
  expect(await get(server, '/metrics')).toEqual({
    status: 200,
    type: 'text/plain; version=0.0.4; charset=utf-8',
    body: 'leasehold_in_flight 4\n',
  })
  expect((await get(server, '/metrics', 'evil.example')).status).toBe(403)
  expect((await get(await start(), '/metrics')).status).toBe(404)
})

it('/ is a page with the version; an unknown address is a 404 in JSON', async () => {
  const server = await start()
  const page = await get(server, '/')
  expect(page).toMatchObject({ status: 200, type: expect.stringContaining('text/html') })
  expect(page.body).toContain('Leasehold 1.2.3')
  const missing = await get(server, '/api/v1/nothing')
  expect(missing).toMatchObject({ status: 404, type: expect.stringContaining('application/json') })
  expect(JSON.parse(missing.body)).toEqual({ error: 'There is no GET /api/v1/nothing.' })
})

it('a request with another Host header is refused, against DNS rebinding', async () => {
  const server = await start()
  for (const host of ['localhost', '127.0.0.1', '[::1]', 'LOCALHOST']) {
    expect((await get(server, '/livez', `${host}:${server.port}`)).status).toBe(200)
  }
  for (const host of [
    'evil.example',
    `evil.example:${server.port}`,
    'localhost',
    `127.0.0.1:${server.port + 1}`,
  ]) {
    expect((await get(server, '/livez', host)).status).toBe(403)
  }
})

it('beyond loopback the server answers health checks and metrics under any name, and nothing else', async () => {
  const server = await start([], { host: '0.0.0.0', metrics: async () => 'rows 1' })
  for (const path of ['/livez', '/readyz', '/metrics']) {
    expect((await get(server, path, 'worker-3.internal:8080')).status).toBe(200)
  }
  expect((await get(server, '/', 'worker-3.internal:8080')).status).toBe(404)
})

it('an address that this machine does not have is refused', async () => {
  await expect(start([], { host: '192.0.2.1' })).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringContaining('192.0.2.1'),
  })
})

it('connections are limited: one too many takes the place of the first that waits for its client', async () => {
  const server = await start()
  const open = Array.from({ length: 256 }, () => connect(server.port, '127.0.0.1'))
  onTestFinished(() => {
    for (const socket of open) socket.destroy()
  })
  await Promise.all(open.map(async (socket) => once(socket, 'connect')))
  const closed = Promise.race(open.map(async (socket, n) => once(socket.resume(), 'close').then(() => n)))
  expect((await get(server, '/livez')).status).toBe(200)
  expect(await closed).toBe(0)
})

it('a port in use is refused with its number, or replaced by a free port', async () => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  onTestFinished(() => void taken.close())
  const address = taken.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  await expect(start([], { port })).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringContaining(`127.0.0.1:${port}`),
  })
  const server = await start([], { port, whenTaken: 'anyPort' })
  expect(server.port).not.toBe(port)
  expect((await get(server, '/livez')).status).toBe(200)
})

it('stop() closes idle connections and requests that never finish, and may be called twice', async () => {
  const server = await start()
  const idle = connect(server.port, '127.0.0.1')
  idle.write(`GET /livez HTTP/1.1\r\nHost: 127.0.0.1:${server.port}\r\n\r\n`)
  await once(idle, 'data')
  const unfinished = connect(server.port, '127.0.0.1')
  await once(unfinished, 'connect')
  unfinished.write('GET /livez HTTP/1.1\r\n')
  const ended = Promise.all([once(idle.resume(), 'close'), once(unfinished.resume(), 'close')])
  await Promise.all([server.stop(), server.stop()])
  await ended
  await expect(fetch(`${server.url}/livez`)).rejects.toThrow('fetch failed')
})

it('connections that send nothing, or only a part of a request, keep nobody from /livez', async () => {
  const server = await start()
  const sockets = Array.from({ length: 300 }, (_, n) => {
    const socket = connect(server.port, '127.0.0.1')
    // Those that the server closes may be reset.
    socket.on('error', () => undefined)
    if (n % 3 === 1) socket.write('GET /livez HTTP/1.1\r\nHost: ')
    if (n % 3 === 2)
      socket.write(`POST /livez HTTP/1.1\r\nHost: localhost:${server.port}\r\nContent-Length: 9\r\n\r\n`)
    return socket
  })
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
  })
  await Promise.all(
    sockets.map(async (socket) => Promise.race([once(socket, 'connect'), once(socket, 'close')])),
  )
  for (let n = 0; n < 20; n += 1) expect((await get(server, '/livez')).status).toBe(200)
})

it('a connection that does not read its answer keeps nobody from /livez', async () => {
  const asked: unknown[] = []
  const server = await start([], {
    // After the first one no answer comes, so that no other connection waits for its client.
    metrics: async () => (asked.push({}) === 1 ? 'x'.repeat(16_000_000) : new Promise(() => undefined)),
  })
  const sockets = Array.from({ length: 256 }, () =>
    connect(server.port, '127.0.0.1').on('error', () => undefined),
  )
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
  })
  for (const [n, socket] of sockets.entries()) {
    socket.write(`GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:${server.port}\r\n\r\n`)
    if (n === 0) await once(socket, 'readable')
  }
  await expect.poll(() => asked.length).toBe(256)
  for (let n = 0; n < 20; n += 1) expect((await get(server, '/livez')).status).toBe(200)
})
