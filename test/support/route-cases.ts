/** What every route of the HTTP API has to do, as tests: one case for each route. */
import { describe, expect, it } from 'vitest'
import { ROUTES } from '../../src/server/api/resources/index.ts'
import type { Route } from '../../src/server/api/route.ts'
import type { KeyName, Received, Sent, TestApi } from './api.ts'

export interface Request {
  readonly path: string
  readonly body?: unknown
}

export interface RouteCase {
  /** `POST /webhooks/endpoints/{id}/enable` */
  readonly route: string
  /** Prepares what the request concerns, and returns the request, what it is answered, and what is true afterwards. */
  readonly happy: () => Promise<
    Request & { readonly answer?: object; readonly afterwards?: (received: Received) => Promise<void> }
  >
  /** Requests that are refused with 422, by the field that the problem names. */
  readonly invalid?: () => Promise<readonly (Partial<Request> & { readonly field: string })[]>
  /** A path of something that does not exist. */
  readonly missing?: string
  /** A request that the state does not allow. */
  readonly conflict?: () => Promise<Request & { readonly detail: string }>
}

/** For `useApi`: each request without a key comes from an address of its own, because failed attempts are limited. */
export const clientAddress = (request: globalThis.Request): string =>
  request.headers.get('x-client') ?? 'tests'

let keys = 0

/** The tests of one route. `changes` lists everything that a request could change. */
export function testRoute(api: TestApi, given: RouteCase, changes: () => Promise<unknown>): void {
  const { send } = api
  const { method, role, forTenants, secrets, status } = routeNamed(given.route)
  const lowest = role === 'read' ? 'read' : role === 'operate' ? 'operate' : 'admin'
  const request = async (made: Request, sent: Sent): Promise<Received> =>
    send(method, made.path, made.body === undefined ? sent : { body: made.body, ...sent })
  const unchanged = async (act: () => Promise<Received>): Promise<Received> => {
    const before = await changes()
    const received = await act()
    expect(await changes(), 'nothing was changed').toEqual(before)
    return received
  }

  describe(`the route ${given.route}`, () => {
    it(`answers a key with the role ${lowest}`, async () => {
      const { answer = {}, afterwards, ...made } = await given.happy()
      const received = await request(made, { key: lowest })
      expect(received).toMatchObject({ status, ...(status === 204 ? {} : { body: answer }) })
      await afterwards?.(received)
    })

    it.each(method === 'POST' ? ['once'] : [])('is executed %s for an Idempotency-Key', async () => {
      const { path, body, afterwards } = await given.happy()
      const headers = { 'idempotency-key': `key-${(keys += 1)}` }
      const first = await request({ path, body }, { key: lowest, headers })
      // A change in the background ends first.
      await afterwards?.(first)
      const repeated = await unchanged(async () => request({ path, body }, { key: lowest, headers }))
      expect(repeated.status).toBe(status)
      expect(repeated.headers.get('idempotency-replayed')).toBe('true')
      const shown = Object.entries<unknown>(first.body).filter(([name]) => !secrets.includes(name))
      expect(repeated.body).toEqual(Object.fromEntries(shown))
    })

    it('refuses a request without a key, and one whose key may not do that', async () => {
      const { path, body } = await given.happy()
      expect(
        await unchanged(async () =>
          request({ path, body }, { key: null, headers: { 'x-client': given.route } }),
        ),
      ).toMatchObject({
        status: 401,
        body: { code: 'KEY_INVALID' },
      })
      const tooLow: KeyName[] = [
        ...(role === 'read' ? [] : (['read', 'tenantRead'] as const)),
        ...(forTenants ? [] : (['tenantOperate'] as const)),
      ]
      for (const key of tooLow) {
        expect(await unchanged(async () => request({ path, body }, { key })), key).toMatchObject({
          status: 403,
          body: { code: 'ROLE_TOO_LOW' },
        })
      }
    })

    it.each(present(given.invalid))(
      'refuses invalid input, names the field and changes nothing',
      async (invalid) => {
        const { path, body } = await given.happy()
        for (const { field, ...wrong } of await invalid()) {
          const made = { path, body, ...wrong }
          const received = await unchanged(async () => request(made, { key: lowest }))
          expect(received.status, JSON.stringify(wrong)).toBe(422)
          const named = (received.body.errors ?? []).map((problem: { field: string }) => problem.field)
          expect(named, JSON.stringify(wrong)).toSatisfy((fields: string[]) =>
            fields.some((name) => isOrIsIn(name, field)),
          )
        }
      },
    )

    const others = forTenants ? ', and to that of another tenant' : ''
    it.each(present(given.missing))(`answers 404 to an unknown id${others}`, async (missing) => {
      const { path, body } = await given.happy()
      const requests: readonly (Request & { readonly key: KeyName })[] = [
        { path: missing, body, key: lowest },
        ...(forTenants ? [{ path, body, key: 'otherTenant' } as const] : []),
      ]
      for (const { key, ...made } of requests) {
        const received = await unchanged(async () => request(made, { key }))
        expect(received, `${key} ${made.path}`).toMatchObject({
          status: 404,
          body: { code: expect.stringMatching(/_NOT_FOUND$/) },
        })
      }
    })

    it.each(present(given.conflict))('answers 409 where the state does not allow it', async (conflict) => {
      const { detail, ...made } = await conflict()
      expect(await unchanged(async () => request(made, { key: lowest }))).toMatchObject({
        status: 409,
        body: { code: 'STATE_CONFLICT', detail: expect.stringContaining(detail) },
      })
    })
  })
}

/** Every one of these routes has a case. */
export function testAllHaveCases(routes: readonly Route[], cases: readonly RouteCase[]): void {
  it('every route has a case', () => {
    const all = routes.map(({ method, path }) => `${method} ${path}`)
    expect(cases.map(({ route }) => route).toSorted()).toEqual(all.toSorted())
  })
}

/** `id` and `path.id`; `query` and `query.unknown`. */
function isOrIsIn(name: string, field: string): boolean {
  return name === field || name.endsWith(`.${field}`) || name.startsWith(`${field}.`)
}

function present<Value>(value: Value | undefined): Value[] {
  return value === undefined ? [] : [value]
}

function routeNamed(name: string): Route {
  const found = ROUTES.find(({ method, path }) => `${method} ${path}` === name)
  if (found === undefined) throw new Error(`There is no route ${name}.`)
  return found
}
