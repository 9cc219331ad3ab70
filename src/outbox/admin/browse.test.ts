import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { Client } from 'pg'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import type { Statement } from '../../postgres/queryable.ts'
import { countByStatus, oldestPending } from './counts.ts'
import { keysHeldUp } from './held-up-keys.ts'
import { listEvents, showEvent } from './browse.ts'
import type { EventFilter } from './filter.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox restart identity' })
})

async function sql(text: string): Promise<void> {
  await db.query({ text })
}

describe('listEvents', () => {
  it('the order is that of numbers, and pages of several buckets fit together', async () => {
    await makeEvents(db, 300)
    await withBuckets(db, 3)
    await sql('update leasehold.outbox set bucket = id % 3')
    const seen: string[] = []
    for (let before: string | undefined; ;) {
      const { events, next } = await listEvents(
        db,
        {},
        { limit: 10, ...(before === undefined ? {} : { before }) },
      )
      seen.push(...events.map(({ id }) => id))
      if (next === null) break
      before = next
    }
    expect(seen).toEqual(Array.from({ length: 300 }, (_, n) => String(300 - n)))
  })

  it('an event that a replay moves to another bucket is listed once', async () => {
    await makeEvents(db, 2, { status: 'DEAD', key: `'d'` })
    await withBuckets(db, 3)
    // The bucket of d is 1. One of the events is moved before its bucket is read, and one after.
    await sql('update leasehold.outbox set bucket = id - 1 + id / 2')
    let statements = 0
    const moving: Database = {
      ...db,
      transaction: async (work, options) =>
        db.transaction(
          async (tx) =>
            work({
              ...tx,
              query: async <Row extends object>(statement: Statement) => {
                const answer = await tx.query<Row>(statement)
                if (statement.text.includes('with page as')) statements += 1
                if (statements === 1)
                  await sql(`update leasehold.outbox set status = 'PENDING', dead_at = null`)
                return answer
              },
            }),
          options,
        ),
    }
    const { events } = await listEvents(moving)
    expect(events.map(({ id }) => id)).toEqual(['2', '1'])
  })

  it('with maxScanned a search reads so many rows for a page, and goes on where it stopped', async () => {
    await makeEvents(db, 1, { status: 'PUBLISHED', type: 'rare' })
    await makeEvents(db, 250, { status: 'PUBLISHED', type: 'common' })
    await makeEvents(db, 1, { status: 'DEAD', type: 'rare' })
    const pages: string[][] = []
    let before: string | undefined
    do {
      const { events, next } = await listEvents(db, { type: 'rare' }, { maxScanned: 100, before })
      pages.push(events.map(({ id }) => id))
      before = next ?? undefined
    } while (before !== undefined)
    expect(pages).toEqual([['252'], [], ['1']])
    // An index leads to these.
    expect(await listEvents(db, { type: 'rare', status: 'DEAD' }, { maxScanned: 1 })).toMatchObject({
      next: null,
    })
  })

  it('a query that takes too long is stopped, and the error says what to do', async () => {
    await makeEvents(db, 1)
    const client = new Client({ connectionString: database.url })
    await client.connect()
    onTestFinished(async () => client.end())
    await client.query('begin')
    await client.query('lock table leasehold.outbox in access exclusive mode')
    await expect(listEvents(db, {}, { timeoutMs: 200 })).rejects.toThrow(
      /Listing the events was stopped after 200 ms.*Choose fewer/,
    )
    await client.query('rollback')
  })

  it.each([
    [{}, { limit: 0 }, /limit is 0\./],
    [{}, { before: '-1' }, /before is "-1"/],
    [{ ids: ['x'] }, {}, /id is "x"/],
    [{ type: 'a\0b' }, {}, /type is "a\\u0000b"/],
    [{ from: new Date(Number.NaN) }, {}, /from is Invalid Date/],
  ])('%j with %j is refused before the database is asked', async (filter, page, message) => {
    await expect(listEvents(db, filter, page)).rejects.toThrow(message)
  })

  it('a filter is data: what looks like SQL finds nothing and does nothing', async () => {
    await makeEvents(db, 1)
    const nasty = `'; truncate leasehold.outbox; --`
    expect(await listEvents(db, { type: nasty, orderingKey: nasty, error: nasty })).toEqual({
      events: [],
      next: null,
    })
    expect((await listEvents(db)).events).toHaveLength(1)
  })
})

it('the few unfinished events among many published ones are listed without reading those', async () => {
  await makeEvents(db, 3)
  await makeEvents(db, 2, { key: `'k'` })
  await makeEvents(db, 1, { expiries: 3 })
  await makeEvents(db, 1, { status: 'CLAIMED', key: `'k'` })
  await makeEvents(db, 50_000, { status: 'PUBLISHED' })
  await sql('vacuum analyze leasehold.outbox')
  const before = await rowsRead()
  const own = openDatabase({ url: database.url })
  const ids = async (filter: EventFilter): Promise<string[]> =>
    (await listEvents(own, filter)).events.map(({ id }) => id)
  expect(await ids({ status: 'PENDING' })).toEqual(['6', '5', '4', '3', '2', '1'])
  expect(await ids({ status: 'CLAIMED' })).toEqual(['7'])
  expect(await ids({ status: ['CLAIMED', 'PENDING'], orderingKey: 'k' })).toEqual(['7', '5', '4'])
  // A session reports its statistics at the latest when it ends.
  await own.close()
  expect((await rowsRead()) - before).toBeLessThan(1_000)
})

/** Rows of the outbox that were read, through an index or not. */
async function rowsRead(): Promise<number> {
  const { rows } = await db.query<{ read: number }>({
    text: `select pg_stat_force_next_flush(), (seq_tup_read + idx_tup_fetch)::float8 as read
from pg_stat_user_tables where schemaname = 'leasehold' and relname = 'outbox'`,
  })
  return rows[0]?.read ?? 0
}

describe('showEvent', () => {
  it('an event waits for the one in flight of its key, whatever their numbers', async () => {
    await makeEvents(db, 1, { key: `'k'` })
    await makeEvents(db, 1, { key: `'k'`, status: 'CLAIMED', attempts: 2 })
    expect((await showEvent(db, '1')).waitsFor).toMatchObject({ id: '2', status: 'CLAIMED', attempts: 2 })
    expect((await showEvent(db, '2')).waitsFor).toBeNull()
  })

  it('the token is a bigint', async () => {
    await makeEvents(db, 1, { status: 'DEAD' })
    expect((await showEvent(db, '1')).token).toBe(1n)
  })
})

describe('countByStatus', () => {
  it('countByStatus counts exactly the events in each state, also keyed events and suspects', async () => {
    await makeEvents(db, 5, { key: `'k'` })
    await makeEvents(db, 3)
    await makeEvents(db, 1, { expiries: 2 })
    await makeEvents(db, 3, { status: 'CLAIMED' })
    await makeEvents(db, 2, { status: 'PUBLISHED' })
    await makeEvents(db, 1, { status: 'DEAD' })
    expect(await countByStatus(db)).toEqual({
      PENDING: { count: 9, exact: true },
      CLAIMED: { count: 3, exact: true },
      PUBLISHED: { count: 2, exact: true },
      DEAD: { count: 1, exact: true },
    })
  })

  it('a large table is estimated, and says so, without being read', async () => {
    await makeEvents(db, 110_000, { status: 'PUBLISHED' })
    await makeEvents(db, 7)
    await sql('vacuum analyze leasehold.outbox')
    // What this session itself has read: the sums of other sessions arrive whenever they like.
    let scans: unknown
    const session = openDatabase({ url: database.url, maxConnections: 1 })
    const own: Database = {
      ...session,
      transaction: async (work, options) =>
        session.transaction(async (tx) => {
          const result = await work(tx)
          const { rows } = await tx.query<{ scans: string }>({
            text: `select seq_scan as scans from pg_stat_xact_user_tables
where schemaname = 'leasehold' and relname = 'outbox'`,
          })
          scans = rows[0]?.scans
          return result
        }, options),
    }
    const counts = await countByStatus(own)
    await session.close()
    expect(scans).toBe('0')
    expect(counts.PENDING).toEqual({ count: 7, exact: true })
    expect(counts.PUBLISHED.exact).toBe(false)
    expect(counts.PUBLISHED.count).toBeGreaterThan(100_000)
    expect(counts.PUBLISHED.count).toBeLessThan(120_000)
  })
})

describe('oldestPending', () => {
  it('the oldest pending event is the one that could have been claimed for the longest time', async () => {
    expect(await oldestPending(db)).toBeUndefined()
    await makeEvents(db, 3)
    await sql(`update leasehold.outbox set available_at = now() - interval '1 hour' where id = 2`)
    await sql(
      `update leasehold.outbox set available_at = now() + interval '1 hour', created_at = now() - interval '1 day' where id = 3`,
    )
    const oldest = await oldestPending(db)
    expect(oldest).toMatchObject({ id: '2', type: 'order.paid', orderingKey: null })
    expect(oldest?.waitingMs).toBeGreaterThanOrEqual(3_600_000)
    expect(oldest?.waitingMs).toBeLessThan(3_700_000)
  })
})

describe('keysHeldUp', () => {
  it('held up are parked keys, and keys whose head has failed while others wait, but not a key that only waits its turn', async () => {
    await makeEvents(db, 1, {
      status: 'DEAD',
      parked: true,
      key: `'parked'`,
      attempts: 1,
      error: 'no receiver',
    })
    await makeEvents(db, 3, { key: `'parked'` })
    await makeEvents(db, 1, { key: `'blocked'`, attempts: 7 })
    await makeEvents(db, 1_200, { key: `'blocked'` })
    await makeEvents(db, 1, { key: `'trying'`, attempts: 2, status: 'CLAIMED' })
    await makeEvents(db, 1, { key: `'trying'` })
    await makeEvents(db, 1, { key: `'failing alone'`, attempts: 3 })
    await makeEvents(db, 5, { key: `'in order'` })
    await makeEvents(db, 1, { status: 'DEAD', key: `'dead, not parked'` })
    await makeEvents(db, 2, { key: `'dead, not parked'` })
    const { keys, more, partial } = await keysHeldUp(db)
    expect({ more, partial }).toEqual({ more: false, partial: false })
    expect(keys).toEqual([
      expect.objectContaining({
        orderingKey: 'parked',
        state: 'parked',
        id: '1',
        waiting: 3,
        lastError: 'no receiver',
      }),
      expect.objectContaining({
        orderingKey: 'blocked',
        state: 'blocked',
        id: '5',
        attempts: 7,
        waiting: 1_000,
      }),
      expect.objectContaining({
        orderingKey: 'trying',
        state: 'blocked',
        attempts: 2,
        waiting: 1,
        availableAt: null,
      }),
    ])
  })

  it('no more than asked for, and whether there are', async () => {
    await makeEvents(db, 5, { status: 'DEAD', parked: true, key: `'key ' || n` })
    expect(await keysHeldUp(db, { limit: 5 })).toMatchObject({ more: false })
    const { keys, more } = await keysHeldUp(db, { limit: 3 })
    expect({ shown: keys.length, more }).toEqual({ shown: 3, more: true })
  })
})
