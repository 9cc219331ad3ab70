/** Every request that reads ends by its own timeout, whatever it has to wait for. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { samplePath } from '../../../test/support/api-samples.ts'
import { useApi } from '../../../test/support/api.ts'
import { openDatabase } from '../../postgres/index.ts'
import { ROUTES } from './resources/index.ts'

const errors: unknown[] = []
const { db, url, loginUrl, send } = useApi({
  statementTimeoutMs: 100,
  onError: (error) => void errors.push(error),
})

const holder = openDatabase({ url, maxConnections: 1 })
let release = (): void => undefined
let held: Promise<unknown>

/** Nobody can read a table of the schema, except the keys, without which there is no request. */
beforeAll(async () => {
  const { rows } = await db.query<{ tables: string }>({
    text: `select string_agg(oid::regclass::text, ', ') as tables from pg_class
where relnamespace = 'leasehold'::regnamespace and relkind = 'r' and relname <> 'api_keys'`,
  })
  await new Promise<void>((locked, failed) => {
    held = holder.transaction(async (tx) => {
      await tx.query({ text: `lock table ${rows[0]?.tables} in access exclusive mode` })
      const released = new Promise<void>((resolve) => (release = resolve))
      locked()
      await released
    })
    held.catch(failed)
  })
})
afterAll(async () => {
  release()
  await held
  await holder.close()
})

/** These read no table that is locked. */
const OTHERS: ReadonlySet<string> = new Set(['/session', '/live', '/keys', '/tables', '/history'])

const reading = ROUTES.filter(({ method }) => method === 'GET').map((route) => ({ path: route.path, route }))

/** These say what they could not read, and why. */
const explaining = reading.filter(({ path }) => /explain$|^\/doctor$/.test(path))

const failing = reading.filter((each) => !OTHERS.has(each.path) && !explaining.includes(each))

it.each(failing)('GET $path ends with 503 QUERY_TIMEOUT while its tables are locked', async ({ route }) => {
  const { status, body, headers } = await send('GET', samplePath(route))
  expect({ status, code: body.code }).toEqual({ status: 503, code: 'QUERY_TIMEOUT' })
  expect(Number(headers.get('retry-after'))).toBeGreaterThanOrEqual(1)
  expect(errors.splice(0)).toMatchObject([{ code: 'QUERY_TIMEOUT' }])
})

it.each(explaining)('GET $path is answered while its tables are locked', async ({ route }) => {
  const { status } = await send('GET', samplePath(route))
  // The sample names a table that the API does not know.
  expect(status).toBe(route.path.startsWith('/tables/') ? 404 : 200)
  expect(errors).toEqual([])
})

it('nothing of these requests is left running', async () => {
  await expect
    .poll(async () => {
      const { rows } = await db.query<{ query: string }>({
        text: `select query from pg_stat_activity
where datname = current_database() and usename = $1 and state <> 'idle'`,
        values: [new URL(loginUrl).username],
      })
      return rows
    })
    .toEqual([])
})
