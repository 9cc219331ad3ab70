/** Live updates: what a client receives, and how a connection ends. */
import { createServer, type Server } from 'node:http'
import { once } from 'node:events'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { createKey, revokeKey } from '../../operations/api-keys.ts'
import { BASE, useApi } from '../../../test/support/api.ts'
import { openDatabase } from '../../postgres/index.ts'
import { type Api, createApi } from './api.ts'
import { toNodeHandler } from './node.ts'

const { send, db, keys, api, loginUrl } = useApi()

interface LiveEvent {
  readonly id: string
  readonly overview: { readonly outbox: { readonly pending: { readonly count: number } } }
}

/** A client of server-sent events. */
class Client {
  readonly response: Response
  readonly #reader: ReadableStreamDefaultReader<string>
  #text = ''

  constructor(response: Response) {
    this.response = response
    if (response.body === null) throw new Error('the response has a body')
    this.#reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  }

  /** The next event; undefined: the stream has ended. */
  async next(): Promise<LiveEvent | undefined> {
    for (;;) {
      const end = this.#text.indexOf('\n\n')
      if (end >= 0) {
        const block = this.#text.slice(0, end)
        this.#text = this.#text.slice(end + 2)
        const [, id, data] = /^id: (.+)\nevent: overview\ndata: (.+)$/.exec(block) ?? []
        if (id === undefined || data === undefined) continue
        return { id, overview: JSON.parse(data) }
      }
      const { done, value } = await this.#reader.read()
      if (done) return undefined
      this.#text += value
    }
  }

  /** The first event with so many events that wait. */
  async untilPending(count: number): Promise<LiveEvent> {
    for (;;) {
      const event = await this.next()
      if (event === undefined) throw new Error('the stream has ended')
      if (event.overview.outbox.pending.count === count) return event
    }
  }

  async untilEnd(): Promise<void> {
    while ((await this.next()) !== undefined);
  }

  async leave(): Promise<void> {
    await this.#reader.cancel()
  }
}

const clients: Client[] = []
afterEach(async () => {
  for (const client of clients.splice(0)) await client.leave().catch(() => undefined)
})

async function listen(
  from: Api,
  key: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<Client> {
  const response = await from.fetch(
    new Request(`http://localhost${BASE}/live`, { headers: { authorization: `Bearer ${key}`, ...headers } }),
  )
  expect(response.status).toBe(200)
  const client = new Client(response)
  clients.push(client)
  return client
}

async function write(): Promise<void> {
  const written = await send('POST', '/outbox/events', { body: { type: 'a', payload: 1 } })
  expect(written.status).toBe(201)
}

it('a client receives the overview at once, and another one when an event was written', async () => {
  const client = await listen(api(), keys.read)
  expect(client.response.headers.get('content-type')).toBe('text/event-stream')
  expect(client.response.headers.get('cache-control')).toBe('no-store')
  const first = await client.next()
  const pending = first?.overview.outbox.pending.count ?? 0
  await write()
  const second = await client.untilPending(pending + 1)
  expect(second.id).not.toBe(first?.id)
  // It is what the other route answers.
  const { body } = await send('GET', '/overview')
  expect(Object.keys(second.overview)).toEqual(Object.keys(body))
})

it('a client that returns with the newest Last-Event-ID gets nothing twice, and with an older one the newest', async () => {
  const keeper = await listen(api(), keys.read)
  const first = await keeper.next()
  const pending = first?.overview.outbox.pending.count ?? 0
  await write()
  const newest = await keeper.untilPending(pending + 1)
  const behind = await listen(api(), keys.read, { 'last-event-id': first?.id ?? '' })
  const got = await behind.next()
  expect(got?.overview.outbox.pending.count).toBe(pending + 1)
  expect(got?.id).not.toBe(first?.id)
  const upToDate = await listen(api(), keys.read, { 'last-event-id': got?.id ?? newest.id })
  await write()
  expect((await upToDate.untilPending(pending + 2)).id).not.toBe(newest.id)
})

it('the stream ends when the key is revoked', async () => {
  const created = await createKey(db, { name: 'live', role: 'read' }, { principal: 'test' })
  const client = await listen(api(), created.key)
  expect(await client.next()).toBeDefined()
  await revokeKey(db, created.id, { principal: 'test' })
  await client.untilEnd()
})

it('only a key that sees everything may listen', async () => {
  expect((await send('GET', '/live', { key: null })).status).toBe(401)
  expect((await send('GET', '/live', { key: 'tenantRead' })).status).toBe(403)
  expect((await send('GET', '/live?nonsense=1')).status).toBe(422)
})

it('a caller with twenty streams gets no other, and does not keep out the others', async () => {
  const path = new Request(`http://localhost${BASE}/live`, {
    headers: { authorization: `Bearer ${keys.read}` },
  })
  for (let n = 0; n < 20; n += 1) await listen(api(), keys.read)
  const refused = await api().fetch(path)
  expect(refused.status).toBe(429)
  await expect(refused.json()).resolves.toMatchObject({ code: 'TOO_MANY_REQUESTS' })
  await listen(api(), keys.operate)
  await clients[0]?.leave()
  await listen(api(), keys.read)
})

it('the stream ends when the server stops, and a new one is refused', async () => {
  const own = openDatabase({ url: loginUrl })
  const stopping = createApi({ db: own, onError: () => undefined })
  try {
    const client = await listen(stopping, keys.read)
    expect(await client.next()).toBeDefined()
    await stopping.stop()
    await client.untilEnd()
    const refused = await stopping.fetch(
      new Request(`http://localhost${BASE}/live`, { headers: { authorization: `Bearer ${keys.read}` } }),
    )
    expect(refused.status).toBe(503)
  } finally {
    await own.close()
  }
})

let server: Server
let url = ''
beforeAll(async () => {
  server = createServer((request, response) => toNodeHandler(api())(request, response))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  url = `http://127.0.0.1:${typeof address === 'object' && address !== null ? address.port : 0}${BASE}/live`
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
})

it('a hundred clients may listen; one more is refused, until one of them goes away', async () => {
  // Twenty of each.
  const callers: string[] = []
  for (let n = 0; n < 6; n += 1)
    callers.push((await createKey(db, { name: `screen ${n}`, role: 'read' }, { principal: 'test' })).key)
  // A response that nothing refers to may be collected, and its connection is closed then.
  const held: Response[] = []
  const connect = async (signal?: AbortSignal): Promise<Response> => {
    const opened = held.filter(({ status }) => status === 200).length
    const headers = { authorization: `Bearer ${callers[Math.floor(opened / 20)]}` }
    const response = await fetch(url, { headers, ...(signal === undefined ? {} : { signal }) })
    held.push(response)
    return response
  }
  const leaving = new AbortController()
  const others = new AbortController()
  try {
    const last = await connect(leaving.signal)
    expect(last.status).toBe(200)
    for (let n = 0; n < 99; n += 1) expect((await connect(others.signal)).status).toBe(200)
    // A HEAD request opens no stream.
    expect(
      (await fetch(url, { method: 'HEAD', headers: { authorization: `Bearer ${callers[5]}` } })).status,
    ).toBe(200)
    const refused = await connect()
    expect(refused.status).toBe(429)
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
    leaving.abort()
    // The server hears of it when the connection is closed.
    await expect
      .poll(async () => {
        const response = await connect(others.signal)
        if (response.status !== 200) await response.text()
        return response.status
      })
      .toBe(200)
    // The HEAD request took no place: the next one is refused again.
    const full = await connect()
    expect(full.status).toBe(429)
    expect(held.filter(({ status }) => status === 200)).toHaveLength(101)
  } finally {
    others.abort()
    leaving.abort()
  }
  await expect
    .poll(async () => {
      const probe = new AbortController()
      const { status } = await connect(probe.signal)
      probe.abort()
      return status
    })
    .toBe(200)
})
