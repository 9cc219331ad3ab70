/**
 * A blocked key with 100,000 events. The bench measures how fast other keys are; this test counts the rows and index
 * entries that the database has to touch for them, which does not depend on the load of the machine.
 */
import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { recording, statuses, useRelays } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'
import { done, Events, retry } from '../worker/index.ts'
import { createOutbox } from './enqueue/enqueue.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
const { enqueue } = createOutbox()
afterAll(async () => db.close())

const [BLOCKED, OTHERS, KEYS] = [100_000, 10_000, 500]

interface Touched {
  readonly read: number
  readonly written: number
}

async function touched(): Promise<Touched> {
  const { rows } = await db.query<Touched>({
    text: `select
      (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'outbox')::float8 as read,
      (select n_tup_upd from pg_stat_user_tables where relname = 'outbox')::float8 as written`,
  })
  return rows[0] ?? { read: 0, written: 0 }
}

async function drain(): Promise<Touched> {
  await db.query({ text: 'vacuum analyze leasehold.outbox' })
  const others = Array.from({ length: OTHERS }, (_, n) => ({
    type: 'good',
    payload: { n },
    orderingKey: `key ${n % KEYS}`,
  }))
  await enqueue(db, others)
  const before = await touched()
  const events = new Events()
  let published = 0
  const all = events.next('settled', ({ outcome, ids }) => {
    if (outcome === 'done') published += ids.length
    return published === OTHERS
  })
  const publisher = recording(({ type }) =>
    type === 'good' ? done() : retry({ error: 'no', delayMs: 3_600_000 }),
  )
  const { runtime } = await startRelay({ publisher }, { events })
  await all
  // The statistics of a session are told at its end, at the latest.
  await runtime.stop()
  const after = await touched()
  return { read: after.read - before.read, written: after.written - before.written }
}

it('LIFE-13: a blocked key with 100,000 waiting events does not delay other keys', async () => {
  // A snapshot of autovacuum would keep dead index entries, which would be read and counted here.
  await db.query({ text: 'alter table leasehold.outbox set (autovacuum_enabled = off)' })
  await drain()
  const alone = await drain()
  for (let n = 0; n < BLOCKED; n += 10_000) {
    await enqueue(
      db,
      Array.from({ length: 10_000 }, (_, i) => ({
        type: 'bad',
        payload: { n: n + i },
        orderingKey: 'poison',
      })),
    )
  }
  // The first event of the key fails, and the others wait for it.
  await drain()
  const withBlockedKey = await drain()
  // How much is read varies with the size of the claims, which are smaller on a busy machine. There are at least 15 of
  // them: if each read the events of the blocked key, that would be more than 15 times BLOCKED.
  expect(withBlockedKey.read - alone.read).toBeLessThan(10 * BLOCKED)
  expect(withBlockedKey.written).toBeLessThan(alone.written * 1.5)
  expect(await statuses(db)).toEqual({ PUBLISHED: 4 * OTHERS, PENDING: BLOCKED })
})
