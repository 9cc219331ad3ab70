import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { LeaseholdError } from '../../errors.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { RECONNECT_MS } from './dead-workers.ts'
import { createOwnersWatch } from './living-owners.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
/** The server seems to have been up for long, although the test run may just have started it. */
const OLD_SERVER: Queryable = {
  query: async ({ text, values = [] }) =>
    db.query({ text: text.replace('pg_postmaster_start_time()', "'-infinity'::timestamptz"), values }),
}

beforeEach(async () => db.query({ text: 'truncate leasehold.workers' }))
afterAll(async () => db.close())

it('D10: owners live that were heard of lately; after an outage also those that can return, and nobody takes their rows until then', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, last_seen_at, died_at, stopped_at) values
      ('heard', 'h', 1, '1', '{}', now(), null, null),
      ('silent', 'h', 2, '1', '{}', now() - interval '1 hour', null, null),
      ('dead', 'h', 3, '1', '{}', now(), now(), null),
      ('stopped', 'h', 4, '1', '{}', now(), null, now())`,
  })
  let now = 0
  const watch = createOwnersWatch(OLD_SERVER, 'leasehold', { monotonicNow: () => now })
  expect(await watch.find()).toEqual({ owners: ['heard'], graceMs: RECONNECT_MS })
  watch.lost()
  now += RECONNECT_MS - 1
  const { owners, graceMs } = await watch.find()
  expect([new Set(owners), graceMs]).toEqual([new Set(['heard', 'silent']), Infinity])
  now += 1
  expect(await watch.find()).toEqual({ owners: ['heard'], graceMs: RECONNECT_MS })
})

it('D10: a statement about owners that takes too long shows an outage', async () => {
  let isSlow = true
  const slow: Queryable = {
    query: async (statement) => {
      if (isSlow) throw new LeaseholdError('QUERY_TIMEOUT', 'too slow', { remedy: '' })
      return OLD_SERVER.query(statement)
    },
  }
  const watch = createOwnersWatch(slow, 'leasehold')
  await expect(watch.find()).rejects.toThrow('too slow')
  isSlow = false
  expect(await watch.find()).toEqual({ owners: [], graceMs: Infinity })
})
