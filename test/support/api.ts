/** The HTTP API on the database of a test file, with a key of each kind. Every answer is checked against its schema. */
import { afterAll, beforeAll, expect } from 'vitest'
import { createKey } from '../../src/operations/api-keys.ts'
import type { KeyRole } from '../../src/operations/roles.ts'
import { type Database, openDatabase } from '../../src/postgres/index.ts'
import { type Api, type ApiOptions, createApi } from '../../src/server/api/api.ts'
import { ROUTES } from '../../src/server/api/resources/index.ts'
import { useDatabase } from './database.ts'
import { useLoginRoles } from './login-roles.ts'
import { SECRET_KEY } from './webhook-endpoints.ts'

export const BASE = '/api/v1'

export type KeyName = KeyRole | 'tenantRead' | 'tenantOperate' | 'otherTenant'

export interface Sent {
  readonly key?: KeyName | null
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
}

export interface Received {
  readonly status: number
  readonly headers: Headers
  // oxlint-disable-next-line typescript/no-explicit-any -- tests read what they expect
  readonly body: any
}

export const TENANT = 'acme'
export const OTHER_TENANT = 'globex'

export interface TestApi {
  readonly url: string
  /** Of the login role that serves the API. */
  readonly loginUrl: string
  /** As the owner of the schema. */
  readonly db: Database
  readonly api: () => Api
  readonly keys: Readonly<Record<KeyName, string>>
  readonly send: (method: string, path: string, sent?: Sent) => Promise<Received>
}

/** Errors of the server fail the test that meets them. */
export function useApi(options: Partial<ApiOptions> = {}): TestApi {
  const database = useDatabase()
  const logins = useLoginRoles(database)
  const db = openDatabase({ url: database.url })
  const own = openDatabase({ url: logins.api.url })
  const keys: Record<string, string> = {}
  const errors: unknown[] = []
  let api: Api
  beforeAll(async () => {
    for (const [name, role, tenant] of [
      ['read', 'read', undefined],
      ['operate', 'operate', undefined],
      ['admin', 'admin', undefined],
      ['tenantRead', 'read', TENANT],
      ['tenantOperate', 'operate', TENANT],
      ['otherTenant', 'operate', OTHER_TENANT],
    ] as const) {
      const created = await createKey(db, { name, role, tenant }, { principal: 'test' })
      keys[name] = created.key
    }
    api = createApi({
      db: own,
      requestsPerSecond: 100_000,
      burst: 100_000,
      webhooks: { secretKey: SECRET_KEY },
      onError: (error) => void errors.push(error),
      ...options,
    })
  })
  afterAll(async () => {
    await api.stop()
    await Promise.all([db.close(), own.close()])
    expect(errors, 'errors of the server').toEqual([])
  })

  async function send(method: string, path: string, sent: Sent = {}): Promise<Received> {
    const { key = 'admin', body } = sent
    const response = await api.fetch(
      new Request(`http://localhost${BASE}${path}`, {
        method,
        headers: {
          ...(key === null ? {} : { authorization: `Bearer ${keys[key]}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...sent.headers,
        },
        ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      }),
    )
    const text = await response.text()
    const received = {
      status: response.status,
      headers: response.headers,
      body: text === '' ? undefined : JSON.parse(text),
    }
    checkAnswer(method, path, received)
    return received
  }

  return {
    url: database.url,
    loginUrl: logins.api.url,
    db,
    api: () => api,
    keys: keys as Record<KeyName, string>,
    send,
  }
}

/** The route that answers, and whether the answer is what the document says. */
function checkAnswer(method: string, path: string, { status, headers, body }: Received): void {
  if (status >= 400) {
    expect(headers.get('content-type')).toBe('application/problem+json')
    expect(body).toMatchObject({
      status,
      code: expect.any(String),
      detail: expect.any(String),
      title: expect.any(String),
    })
    return
  }
  const [bare = ''] = path.split('?')
  const route = ROUTES.find(
    (each) =>
      each.method === method && new RegExp(`^${each.path.replaceAll(/\{\w+\}/g, '[^/]+')}$`).test(bare),
  )
  if (route === undefined || status === 204) return
  expect(status).toBe(route.status)
  const parsed = route.answer.safeParse(body)
  expect(parsed.error?.issues ?? [], `${method} ${path}`).toEqual([])
}
