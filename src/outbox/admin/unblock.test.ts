import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries, makeEvents, outboxStates } from '../../../test/support/outbox-rows.ts'
import { openLeaseStore } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { outboxTable } from '../table.ts'
import { unblock } from './unblock.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

const REQUEST = { orderingKey: 'k', principal: 'ada', reason: 'booked by hand' }
const KEY = { key: `'k'` }

async function claimed(): Promise<string[]> {
  const store = await openLeaseStore(db, outboxTable(), { owner: 'w' })
  const { claimed: rows } = await store.claim({ limit: 10, leaseMs: 60_000 })
  return rows.map(({ lease }) => lease.id)
}

it('a key with a parked event goes on without it; the event stays dead, and the audit says who decided so', async () => {
  await makeEvents(db, 1, { ...KEY, status: 'DEAD', parked: true, error: 'refused' })
  await makeEvents(db, 1, KEY)
  expect(await claimed()).toEqual([])
  expect(await unblock(db, REQUEST)).toEqual({ parked: 1, failing: 0 })
  expect((await outboxStates(db))[0]).toMatchObject({ status: 'DEAD', parked: false, last_error: 'refused' })
  expect(await auditEntries(db)).toMatchObject([
    {
      principal: 'ada',
      action: 'outbox.unblock',
      target: 'k',
      details: { reason: REQUEST.reason, replay: false },
    },
  ])
  expect(await claimed()).toEqual(['2'])
})

it('LIFE-08: a head that keeps failing is dead by the decision of an operator, under a token of its own', async () => {
  await makeEvents(db, 1, { ...KEY, attempts: 3, error: 'timeout' })
  await makeEvents(db, 1, KEY)
  await db.query({
    text: `update leasehold.outbox set available_at = now() + interval '1 hour' where id = 1`,
  })
  expect(await unblock(db, REQUEST)).toEqual({ parked: 0, failing: 1 })
  const [first] = await outboxStates(db)
  expect(first).toMatchObject({ status: 'DEAD', parked: false, attempts: 3, lock_token: '1' })
  expect(first?.last_error).toBe('timeout (given up by ada: booked by hand)')
  expect(first?.dead_at).toBeInstanceOf(Date)
  expect(await claimed()).toEqual(['2'])
})

it('with replay the event is published first: a parked one comes back, a failing one is due at once', async () => {
  await makeEvents(db, 1, { ...KEY, status: 'DEAD', parked: true, attempts: 25, expiries: 2 })
  await makeEvents(db, 1, { key: `'other'`, attempts: 3, error: 'timeout' })
  await db.query({
    text: `update leasehold.outbox set available_at = now() + interval '1 hour' where id = 2`,
  })
  expect(await unblock(db, { ...REQUEST, replay: true })).toEqual({ parked: 1, failing: 0 })
  expect(await unblock(db, { ...REQUEST, orderingKey: 'other', replay: true })).toEqual({
    parked: 0,
    failing: 1,
  })
  for (const row of await outboxStates(db))
    expect(row).toMatchObject({
      status: 'PENDING',
      attempts: 0,
      expiries: 0,
      last_error: null,
      dead_at: null,
    })
  expect((await claimed()).toSorted()).toEqual(['1', '2'])
})

it.each([
  ['that nothing holds up', {}],
  ['whose head has not failed', { attempts: 0 }],
  ['whose head is being tried', { attempts: 2, status: 'CLAIMED' as const }],
])('a key %s is left as it is', async (_, made) => {
  await makeEvents(db, 1, { ...KEY, ...made })
  await makeEvents(db, 1, { ...KEY, attempts: 2 })
  const before = await outboxStates(db)
  expect(await unblock(db, REQUEST)).toEqual({ parked: 0, failing: 0 })
  expect(await outboxStates(db)).toEqual(before)
  expect(await auditEntries(db)).toEqual([])
})

it('a key of which a later event is in flight is left as it is: at most one is claimed, by an operator too', async () => {
  await makeEvents(db, 1, { ...KEY, attempts: 2 })
  await makeEvents(db, 1, { ...KEY, status: 'CLAIMED' })
  expect(await unblock(db, REQUEST)).toEqual({ parked: 0, failing: 0 })
})

it.each([['orderingKey'], ['principal'], ['reason']])('a request without %s is refused', async (field) => {
  await expect(unblock(db, { ...REQUEST, [field]: ' ' })).rejects.toThrow(`${field} is " "`)
})
