/** A generated client (openapi-typescript, openapi-fetch) uses the API over HTTP, with nothing but the document. */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import createClient, { type Client } from 'openapi-fetch'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { paths } from '../../../test/fixtures/openapi.d.ts'
import { BASE, useApi } from '../../../test/support/api.ts'
import { toNodeHandler } from './node.ts'

const { api, keys, db } = useApi()

let server: Server
let url = ''
let client: Client<paths>

beforeAll(async () => {
  server = createServer(toNodeHandler({ fetch: async (request, env) => api().fetch(request, env) }))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  url = `http://127.0.0.1:${typeof address === 'object' && address !== null ? address.port : 0}${BASE}`
  client = withKey(keys.admin)
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
})

function withKey(key: string): Client<paths> {
  return createClient<paths>({ baseUrl: url, headers: { authorization: `Bearer ${key}` } })
}

async function write(type: string, payload: unknown = {}): Promise<string> {
  const { data, error } = await client.POST('/outbox/events', { body: { type, payload } })
  expect(error).toBeUndefined()
  return data?.id ?? ''
}

it('writes an event, shows it, gives it up and replays it', async () => {
  const id = await write('order.paid', { amount: '19.90' })
  const shown = await client.GET('/outbox/events/{id}', { params: { path: { id } } })
  expect(shown.data).toMatchObject({
    id,
    type: 'order.paid',
    status: 'PENDING',
    payload: { amount: '19.90' },
  })
  const params = { path: { id } }
  const body = { reason: 'a test' }
  const refused = await client.POST('/outbox/events/{id}/replay', { params, body })
  expect(refused.response.status).toBe(409)
  expect(refused.error).toMatchObject({ code: 'STATE_CONFLICT' })
  const given = await client.POST('/outbox/events/{id}/give-up', { params, body })
  expect(given.data?.status).toBe('DEAD')
  const replayed = await client.POST('/outbox/events/{id}/replay', { params, body })
  expect(replayed.data?.status).toBe('PENDING')
})

it('repeats a request with its Idempotency-Key', async () => {
  const options = {
    params: { header: { 'Idempotency-Key': 'generated' } },
    body: { type: 'idempotent', payload: 1 },
  }
  const first = await client.POST('/outbox/events', options)
  const second = await client.POST('/outbox/events', options)
  expect(second.data).toEqual(first.data)
  expect(second.response.headers.get('idempotency-replayed')).toBe('true')
})

it('lists page after page, with several values of a filter', async () => {
  for (let n = 0; n < 5; n += 1) await write('paged')
  const seen: string[] = []
  let cursor: string | undefined
  let pages = 0
  do {
    const query = { type: 'paged', status: ['PENDING' as const, 'DEAD' as const], limit: 2 }
    const { data } = await client.GET('/outbox/events', {
      params: { query: cursor === undefined ? query : { ...query, cursor } },
    })
    seen.push(...(data?.items.map(({ id }) => id) ?? []))
    cursor = data?.next ?? undefined
    pages += 1
  } while (cursor !== undefined)
  expect(pages).toBe(3)
  expect(seen).toHaveLength(5)
  expect(seen.map(Number)).toEqual(seen.map(Number).toSorted((a, b) => b - a))
  expect(new Set(seen).size).toBe(5)
})

it('is told which field is wrong', async () => {
  const { error, response } = await client.GET('/outbox/events', {
    params: { query: { limit: 5_000, cursor: 'nonsense' } },
  })
  expect(response.status).toBe(422)
  expect(error?.errors?.map(({ field }) => field)).toEqual(['query.limit', 'query.cursor'])
  const wrong = await client.GET('/outbox/events', { params: { query: { cursor: 'nonsense' } } })
  expect(wrong.error?.errors?.map(({ field }) => field)).toEqual(['query.cursor'])
})

it('previews a change, runs it in the background with progress, and cancels another', async () => {
  const four = async (type: string): Promise<string[]> =>
    Promise.all([1, 2, 3, 4].map(async () => write(type)))
  const body = { action: 'give-up' as const, ids: await four('bulk') }
  const preview = await client.POST('/outbox/events/changes/preview', { body })
  expect(preview.data).toMatchObject({ matched: 4 })
  const started = await client.POST('/outbox/events/changes', { body: { ...body, reason: 'a test' } })
  expect(started.response.status).toBe(202)
  expect(started.data).toMatchObject({
    state: 'running',
    principal: 'admin',
    action: 'outbox.giveUp',
    isBackground: true,
  })
  const params = { path: { id: started.data?.id ?? '' } }
  await expect
    .poll(async () => (await client.GET('/changes/{id}', { params })).data)
    .toMatchObject({ state: 'finished', matched: 4, changed: 4 })

  // One row in a day: it is not finished before it is cancelled.
  const slow = await client.POST('/outbox/events/changes', {
    body: { action: 'give-up', ids: await four('slow'), rate: 0.00002, reason: 'a test' },
  })
  const slowly = { path: { id: slow.data?.id ?? '' } }
  await expect.poll(async () => (await client.GET('/changes/{id}', { params: slowly })).data?.changed).toBe(1)
  const cancelled = await client.POST('/changes/{id}/cancel', { params: slowly })
  expect(cancelled.data).toMatchObject({ state: 'cancelled', changed: 1, matched: 4 })
  const { data } = await client.GET('/changes', { params: { query: { limit: 10 } } })
  expect(data?.items.slice(0, 2).map(({ state }) => state)).toEqual(['cancelled', 'finished'])
  const again = await client.POST('/changes/{id}/cancel', { params: slowly })
  expect(again.error).toMatchObject({ code: 'STATE_CONFLICT' })
})

it('creates, uses, lists and revokes a key', async () => {
  const created = await client.POST('/keys', { body: { name: 'generated', role: 'read' } })
  expect(created.response.status).toBe(201)
  const own = withKey(created.data?.key ?? '')
  expect((await own.GET('/session')).data).toMatchObject({
    principal: 'generated',
    role: 'read',
    tenant: null,
  })
  expect((await own.GET('/keys')).response.status).toBe(403)
  const { data } = await client.GET('/keys')
  expect(data?.items[0]).toMatchObject({ name: 'generated', revokedAt: null })
  const revoked = await client.DELETE('/keys/{id}', { params: { path: { id: created.data?.id ?? '' } } })
  expect(revoked.data?.revokedBy).toBe('admin')
  expect((await own.GET('/session')).response.status).toBe(401)
})

it('pauses a worker and lets it go on, and is told which setting is wrong', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, declared)
values ('w1', 'h', 1, '0', '{outbox}', '{"outbox": {}}')`,
  })
  expect((await client.GET('/workers/{id}', { params: { path: { id: 'w1' } } })).data).toMatchObject({
    host: 'h',
  })
  const params = { path: { name: 'outbox' } }
  const paused = await client.PATCH('/settings/{name}', { params, body: { paused: true } })
  expect(paused.data).toMatchObject({ paused: true })
  const { data } = await client.GET('/settings')
  expect(data?.items).toMatchObject([{ name: 'outbox', value: { paused: true }, changedBy: 'admin' }])
  const resumed = await client.PATCH('/settings/{name}', { params, body: { paused: null } })
  expect(resumed.data?.['paused']).not.toBe(true)
  const wrong = await client.PATCH('/settings/{name}', { params, body: { nonsense: 1 } })
  expect(wrong.response.status).toBe(422)
  expect(wrong.error?.detail).toContain('nonsense')
  const refused = await client.PATCH('/settings/{name}', { params, body: { concurrency: 0, leaseMs: 3 } })
  expect(refused.error?.errors).toMatchObject([
    { field: 'body.leaseMs', detail: expect.stringContaining('must be a number of milliseconds from 250') },
    { field: 'body.concurrency', detail: expect.stringContaining('is 0, but must be a whole number from 1') },
  ])
  const late = await client.PATCH('/settings/{name}', { params, body: { heartbeatMs: 20_000 } })
  expect(late.error?.errors).toMatchObject([
    { field: 'body.heartbeatMs', detail: expect.stringContaining('less than a third of leaseMs') },
  ])
})

it('shows the settings that a worker runs with: those it was started with, those that are stored, and defaults', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, declared)
values ('w2', 'h', 1, '0', '{mail}', '{"mail": {"concurrency": 3, "batch": 7, "groups": ["a"]}}')`,
  })
  const params = { path: { name: 'mail' } }
  await client.PATCH('/settings/{name}', { params, body: { concurrency: 4, leaseMs: 60_000 } })
  const { data } = await client.GET('/workers/{id}', { params: { path: { id: 'w2' } } })
  expect(data?.settings['mail']).toMatchObject({
    concurrency: 4,
    batch: 7,
    leaseMs: 60_000,
    heartbeatMs: 18_000,
    prefetch: 2_000,
    paused: false,
  })
})

it('reads the audit, with who did what', async () => {
  const { data } = await client.GET('/audit', { params: { query: { action: 'keys.*' } } })
  expect(data?.items.map(({ action, principal }) => [action, principal])).toEqual(
    expect.arrayContaining([
      ['keys.revoke', 'admin'],
      ['keys.create', 'admin'],
    ]),
  )
})

it('reads the overview, the workers, and the keys that are held up', async () => {
  expect((await client.GET('/overview')).data?.outbox.pending.count).toBeGreaterThan(0)
  expect((await client.GET('/workers')).data?.items).toMatchObject([{ id: 'w1' }, { id: 'w2' }])
  expect((await client.GET('/outbox/keys')).data).toMatchObject({ items: [] })
})

it('every part of the API is described', async () => {
  const response = await fetch(`${url}/openapi.json`)
  expect(response.status).toBe(200)
  const document: unknown = await response.json()
  expect(document).toMatchObject({ openapi: '3.1.0', servers: [{ url: BASE }] })
})
