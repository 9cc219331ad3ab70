import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries, makeEvents, outboxStates } from '../../../test/support/outbox-rows.ts'
import { recording, useRelays, write } from '../../../test/support/running-relay.ts'
import { settled } from '../../../test/support/running-worker.ts'
import { openDatabase } from '../../postgres/database.ts'
import { done, Events, retry } from '../../worker/index.ts'
import { retryNow } from './retry-now.ts'

const { url } = useDatabase()
const db = openDatabase({ url, maxConnections: 4 })
const startRelay = useRelays(url)
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' }))
afterAll(async () => db.close())

const WHO = { principal: 'ada', reason: 'the broker is back' }

/** Pending events that are due in an hour. */
async function makeWaiting(count: number, made: Parameters<typeof makeEvents>[2] = {}): Promise<string[]> {
  const ids = await makeEvents(db, count, made)
  await db.query({
    text: "update leasehold.outbox set available_at = now() + interval '1 hour' where id = any ($1::bigint[])",
    values: [ids],
  })
  return ids
}

async function idsDue(): Promise<string[]> {
  const text =
    "select id::text as id from leasehold.outbox where status = 'PENDING' and available_at <= now() order by outbox.id"
  return (await db.query<{ id: string }>({ text })).rows.map(({ id }) => id)
}

it('an event that waits for its next attempt is due at once; nothing else of it changes, and the audit says who and why', async () => {
  const [id = ''] = await makeWaiting(1, { attempts: 3, expiries: 1, error: 'timeout' })
  const [before] = await outboxStates(db)
  expect(await retryNow(db, { ids: [id], ...WHO })).toMatchObject({ matched: 1, changed: 1, skipped: [] })
  const [after] = await outboxStates(db)
  expect(after).toEqual({ ...before, due: expect.any(Number) })
  expect(await idsDue()).toEqual([id])
  expect(await auditEntries(db)).toMatchObject([
    { principal: 'ada', action: 'outbox.retry', target: id, details: { reason: WHO.reason, changed: 1 } },
  ])
})

it('a running relay that would wait for an hour publishes the event, and its attempts are not reset', async () => {
  await write(db, null)
  let broken = true
  const publisher = recording(() => (broken ? retry({ error: 'no', delayMs: 3_600_000 }) : done()))
  const events = new Events()
  const failed = settled(events, 1)
  await startRelay({ publisher, settings: { pollMs: 3_600_000 } }, { events })
  await failed
  broken = false
  const published = settled(events, 1)
  expect(await retryNow(db, { filter: { error: 'no' }, ...WHO })).toMatchObject({ changed: 1 })
  await published
  expect(publisher.published.map(({ attempt }) => attempt)).toEqual([1, 2])
})

describe('by filter', () => {
  it('events at which no attempt has failed stay as they are: they were written for a later time', async () => {
    const [failed = ''] = await makeWaiting(1, { attempts: 1 })
    const [later = ''] = await makeWaiting(1)
    const filter = { status: 'PENDING' } as const
    expect(await retryNow(db, { filter, dryRun: true })).toMatchObject({ matched: 1, changed: 0 })
    expect(await retryNow(db, { filter, ...WHO })).toMatchObject({ changed: 1 })
    expect(await idsDue()).toEqual([failed])
    expect(await retryNow(db, { ids: [later], ...WHO })).toMatchObject({ changed: 1 })
    expect(await idsDue()).toEqual([failed, later])
  })

  it.each(['CLAIMED', 'PUBLISHED', 'DEAD'] as const)('the status %s is refused', async (status) => {
    await expect(retryNow(db, { filter: { status }, ...WHO })).rejects.toThrow(
      `status is "${status}". Only PENDING events`,
    )
  })
})

it('what is due, in flight, finished or unknown is left alone, with the reason', async () => {
  const [due = ''] = await makeEvents(db, 1)
  const [claimed = ''] = await makeEvents(db, 1, { status: 'CLAIMED' })
  const [published = ''] = await makeEvents(db, 1, { status: 'PUBLISHED' })
  const before = await outboxStates(db)
  expect(await retryNow(db, { ids: [due, claimed, published, '99'], ...WHO })).toMatchObject({
    changed: 0,
    skipped: [
      { id: due, why: expect.stringMatching(/^it is due already/) },
      { id: claimed, why: 'it is in flight: test publishes it at this moment' },
      { id: published, why: 'it is PUBLISHED; a replay publishes it once more' },
      { id: '99', why: 'there is no such event' },
    ],
  })
  expect(await outboxStates(db)).toEqual(before)
  expect(await auditEntries(db)).toEqual([])
})
