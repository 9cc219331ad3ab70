/** What holds for every route of the API, whatever it does. A new route is tested here without a line of its own. */
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { KEY_ROLES, mayDo } from '../../operations/roles.ts'
import { sampleBody, samplePath } from '../../../test/support/api-samples.ts'
import { type KeyName, useApi } from '../../../test/support/api.ts'
import { ROUTES } from './resources/index.ts'
import type { Route } from './route.ts'

let clients = 0
// Each request comes from another client, so that those without a key do not use up the attempts of one.
const { send } = useApi({ clientAddress: () => `client ${(clients += 1)}` })

const all = ROUTES.map((route) => ({ name: `${route.method} ${route.path}`, route }))
const closed = all.filter(({ route }) => !route.isOpen)
const withBody = all.filter(({ route }) => route.body !== undefined)
const writing = all.filter(({ route }) => route.method !== 'GET')

async function sendSample(route: Route, key: KeyName | null = 'admin') {
  return send(route.method, samplePath(route), { key, body: sampleBody(route) })
}

/** The fields that an answer names. */
function fieldsIn({ errors }: { readonly errors?: readonly { readonly field: string }[] }): string[] {
  return (errors ?? []).map(({ field }) => field)
}

describe('every route', () => {
  it.each(closed)('$name needs a key', async ({ route }) => {
    const refused = await sendSample(route, null)
    expect(refused).toMatchObject({ status: 401, body: { code: 'KEY_INVALID' } })
    expect(refused.headers.get('www-authenticate')).toBe('Bearer')
  })

  const tooLow = closed.flatMap(({ name, route }) =>
    KEY_ROLES.filter((role) => !mayDo(role, route.role)).map((role) => ({ name, role, route })),
  )
  it.each(tooLow)('$name is refused to the role $role', async ({ route, role }) => {
    expect(await sendSample(route, role)).toMatchObject({ status: 403, body: { code: 'ROLE_TOO_LOW' } })
  })

  const limited = closed.filter(({ route }) => !route.forTenants)
  it.each(limited)('$name is refused to a key of a tenant', async ({ route }) => {
    for (const key of ['tenantRead', 'tenantOperate'] as const)
      expect(await sendSample(route, key)).toMatchObject({ status: 403, body: { code: 'ROLE_TOO_LOW' } })
  })

  const ofTenants = closed.filter(({ route }) => route.forTenants && route.role !== 'read')
  it.each(ofTenants)('$name is refused to a key of a tenant that may only read', async ({ route }) => {
    expect(await sendSample(route, 'tenantRead')).toMatchObject({ status: 403 })
  })

  const byId = all.filter(({ route }) => route.path.includes('{id}'))
  it.each(byId)('$name answers 404 where nothing has the id', async ({ route }) => {
    const { status, body } = await sendSample(route)
    expect({ status, code: body.code }).toEqual({ status: 404, code: expect.stringMatching(/_NOT_FOUND$/) })
    expect(body.detail).toContain(
      samplePath(route)
        .split('/')
        .find((part) => /\d/.test(part)) ?? 'sample',
    )
  })

  it.each(all)('$name refuses an unknown parameter, and names it', async ({ route }) => {
    const path = `${samplePath(route)}?nonsense=1`
    const { status, body } = await send(route.method, path, { body: sampleBody(route) })
    expect({ status, fields: fieldsIn(body) }).toEqual({ status: 422, fields: ['query.nonsense'] })
  })

  const objects = writing.filter(({ route }) => !(route.body instanceof z.ZodRecord))
  it.each(objects)('$name refuses an unknown field, and names it', async ({ route }) => {
    const body = { ...Object(sampleBody(route)), nonsense: 1 }
    const refused = await send(route.method, samplePath(route), { body })
    expect({ status: refused.status, fields: fieldsIn(refused.body) }).toEqual({
      status: 422,
      fields: ['body.nonsense'],
    })
  })

  it.each(writing)('$name refuses a body that is not JSON', async ({ route }) => {
    const refused = await send(route.method, samplePath(route), { body: '{"a":' })
    expect({ status: refused.status, fields: fieldsIn(refused.body) }).toEqual({
      status: 422,
      fields: ['body'],
    })
  })

  it.each(writing)('$name refuses a body of another type', async ({ route }) => {
    const body = JSON.stringify(sampleBody(route) ?? {})
    const refused = await send(route.method, samplePath(route), {
      body,
      headers: { 'content-type': 'text/plain' },
    })
    expect({ status: refused.status, fields: fieldsIn(refused.body) }).toEqual({
      status: 422,
      fields: ['header.content-type'],
    })
  })

  it.each(withBody)(
    '$name refuses a request without a body, and names what is missing',
    async ({ route }) => {
      const refused = await send(route.method, samplePath(route))
      expect(refused.status).toBe(422)
      expect(fieldsIn(refused.body)[0]).toMatch(/^body/)
    },
  )

  it.each(writing)('$name refuses a body of more than 1 MiB', async ({ route }) => {
    const refused = await send(route.method, samplePath(route), { body: ' '.repeat(1_048_577) })
    expect(refused).toMatchObject({ status: 413, body: { code: 'BODY_TOO_LARGE' } })
  })
})

const paths = [...new Set(ROUTES.map(({ path }) => path))].map((path) => ({ path }))
it.each(paths)('$path names the methods that it has to a client that uses another one', async ({ path }) => {
  const routes = ROUTES.filter((route) => route.path === path)
  const [first] = routes
  if (first === undefined) throw new Error('there is a route')
  const sample = samplePath(first)
  for (const method of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
    const answers = ROUTES.some(
      (route) =>
        route.method === method && new RegExp(`^${route.path.replaceAll(/\{\w+\}/g, '[^/]+')}$`).test(sample),
    )
    if (answers) continue
    const refused = await send(method, sample)
    expect(refused, `${method} ${sample}`).toMatchObject({ status: 405, body: { code: 'ROUTE_NOT_FOUND' } })
    expect(refused.headers.get('allow')?.split(', ')).toEqual(
      expect.arrayContaining(routes.map((route) => route.method)),
    )
  }
})

it('an address that does not exist is answered 404', async () => {
  for (const path of ['', '/', '/nonsense', '/outbox', '/outbox/events/1/nonsense', '/../etc', '/%2e%2e'])
    expect(await send('GET', path), path).toMatchObject({ status: 404, body: { code: 'ROUTE_NOT_FOUND' } })
})
