/** What `createApi` is given: its options, and an `authorize` of the user's own. A mistake there gives nobody more rights. */
import { afterAll, describe, expect, it } from 'vitest'
import { useApi } from '../../../test/support/api.ts'
import { openDatabase } from '../../postgres/index.ts'
import { type ApiOptions, createApi } from './api.ts'
import type { Authorize } from './authorize.ts'

const { loginUrl, send } = useApi()

const own = openDatabase({ url: loginUrl })
afterAll(async () => own.close())

it.each<[string, Partial<ApiOptions>]>([
  ['basePath', { basePath: 'api' }],
  ['basePath', { basePath: '/api/' }],
  ['basePath', { basePath: '/' }],
  ['basePath', { basePath: '/:id' }],
  ['statementTimeoutMs', { statementTimeoutMs: 0 }],
  ['statementTimeoutMs', { statementTimeoutMs: Number.NaN }],
  ['statementTimeoutMs', { statementTimeoutMs: 2 ** 40 }],
  ['requestsPerSecond', { requestsPerSecond: 0 }],
  ['burst', { burst: 0 }],
  ['connectionsPerCaller', { connectionsPerCaller: 0 }],
])('createApi refuses a %s that cannot work', (name, options) => {
  expect(() => createApi({ db: own, ...options })).toThrow(
    expect.objectContaining({ code: 'SETTING_INVALID', message: expect.stringContaining(name) }),
  )
})

it('createApi refuses an option that it does not know', () => {
  const mistyped: object = { authorise: () => undefined }
  expect(() => createApi({ db: own, ...mistyped })).toThrow('did you mean authorize?')
})

describe('an authorize of the user', () => {
  const errors: unknown[] = []
  const ask = async (authorize: unknown, path = '/outbox/events'): Promise<number> => {
    const api = createApi({
      db: own,
      authorize: authorize as Authorize,
      onError: (error) => void errors.push(error),
    })
    const { status } = await api.fetch(new Request(`http://localhost/api/v1${path}`))
    await api.stop()
    return status
  }
  const ada = { principal: 'ada', role: 'operate', tenant: null }

  it('decides who is answered', async () => {
    expect(await ask(() => ada)).toBe(200)
    expect(await ask(async () => Promise.resolve(ada))).toBe(200)
    expect(await ask(() => ada, '/keys')).toBe(403)
    expect(await ask(() => undefined)).toBe(401)
    expect(await ask(() => null)).toBe(401)
    expect(errors).toEqual([])
  })

  it.each<[string, object]>([
    ['an unknown role', { ...ada, role: 'root' }],
    ['no role', { principal: 'ada', tenant: null }],
    ['no principal', { role: 'read', tenant: null }],
    ['an empty principal', { ...ada, principal: ' ' }],
    ['a principal that cannot be stored', { ...ada, principal: 'a\0b' }],
    ['a tenant that was forgotten', { principal: 'ada', role: 'read' }],
    ['a name that could be that of another tenant', { principal: 'eu/ada', role: 'read', tenant: 'acme' }],
    ['an empty tenant', { ...ada, tenant: '' }],
    ['a tenant that cannot be stored', { ...ada, tenant: '\ud800' }],
    ['an admin of a tenant', { ...ada, role: 'admin', tenant: 'acme' }],
  ])('that returns %s is an error of the server', async (_, caller) => {
    expect(await ask(() => caller)).toBe(500)
    expect(errors.splice(0)).toMatchObject([
      { message: expect.stringContaining('authorize returned a caller') },
    ])
  })

  it('that throws is an error of the server', async () => {
    const fail = (): never => {
      throw new Error('no session store')
    }
    expect(await ask(fail)).toBe(500)
    expect(errors.splice(0)).toMatchObject([{ message: 'no session store' }])
  })
})

describe('a field is named where it is', () => {
  it.each([
    [
      'in the filter of a change',
      'body.filter.to',
      { filter: { from: '2026-03-02T00:00:00Z', to: '2026-03-01T00:00:00Z' } },
    ],
    ['beside the filter', 'body.rate', { filter: { type: 'a' }, rate: 0.000_000_1 }],
    ['as the reason', 'body.reason', { filter: { type: 'a' }, reason: '   ' }],
  ])('%s', async (_, field, more) => {
    const body = { action: 'replay', reason: 'test', ...more }
    expect(await send('POST', '/outbox/events/changes', { body })).toMatchObject({
      status: 422,
      body: { errors: [{ field }] },
    })
  })

  it('in the query', async () => {
    const path = '/outbox/events?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z'
    expect((await send('GET', path)).body.errors).toMatchObject([{ field: 'query.to' }])
  })

  it('in a key that is created', async () => {
    const body = { name: ' spaces ', role: 'read' }
    expect((await send('POST', '/keys', { body })).body.errors).toMatchObject([{ field: 'body.name' }])
  })
})

it('a body that is not UTF-8 is refused, and not changed silently', async () => {
  const response = await createApi({
    db: own,
    withoutKey: { principal: 'local', role: 'admin', tenant: null },
  }).fetch(
    new Request('http://localhost/api/v1/outbox/events', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: Buffer.from('{"type":"a","payload":"\xe4"}', 'latin1'),
    }),
  )
  expect(response.status).toBe(422)
  await expect(response.json()).resolves.toMatchObject({
    errors: [{ field: 'body', detail: 'is not valid UTF-8' }],
  })
})

it('clients that always send JSON may send an empty object where there is no body', async () => {
  const id = '00000000-0000-4000-8000-000000000001'
  expect((await send('POST', `/changes/${id}/cancel`, { body: {} })).status).toBe(404)
  expect((await send('POST', `/changes/${id}/cancel`, { body: [] })).status).toBe(422)
})
