import { once } from 'node:events'
import { Client } from 'pg'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase } from '../../../test/support/database.ts'
import {
  type AuditEntry,
  auditEntries,
  makeEvents,
  type OutboxState,
  outboxStates,
} from '../../../test/support/outbox-rows.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import { replay, type ReplayOptions } from './replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

const WHO = { principal: 'ada', reason: 'the broker was down' }
const DEAD = { status: 'DEAD' } as const

async function rows(): Promise<OutboxState[]> {
  return outboxStates(db)
}

async function audit(): Promise<AuditEntry[]> {
  return auditEntries(db)
}

async function countOf(status: string): Promise<number> {
  return (await rows()).filter((row) => row.status === status).length
}

describe('what is replayed', () => {
  it('LIFE-09: a published and a dead event become PENDING; attempts are reset, the token never', async () => {
    const [published = ''] = await makeEvents(db, 1, { status: 'PUBLISHED', attempts: 3, agoMs: 60_000 })
    const [dead = ''] = await makeEvents(db, 1, {
      status: 'DEAD',
      attempts: 25,
      expiries: 2,
      error: 'no route',
      key: `'k'`,
      parked: true,
    })
    const before = await rows()
    expect(await replay(db, { ids: [published, dead], ...WHO })).toMatchObject({
      matched: 2,
      changed: 2,
      counts: { published: 1, dead: 1 },
      finished: true,
      firstId: published,
      lastId: dead,
    })
    const after = await rows()
    for (const [n, row] of after.entries()) {
      expect(row).toMatchObject({ status: 'PENDING', attempts: 0, last_error: null, published_at: null })
      expect(row).toMatchObject({
        parked: false,
        expiries: 0,
        dead_at: null,
        lock_token: '1',
        created: before[n]?.created,
      })
      expect(row.due).not.toBeNull()
    }
  })

  it('LIFE-10: PENDING and CLAIMED events are not replayed, even when they are named', async () => {
    const [pending = ''] = await makeEvents(db, 1)
    const [claimed = ''] = await makeEvents(db, 1, { status: 'CLAIMED' })
    const before = await rows()
    expect(await replay(db, { ids: [pending, claimed], ...WHO })).toMatchObject({ matched: 0, changed: 0 })
    expect(await rows()).toEqual(before)
    expect(await audit()).toEqual([])
    await expect(replay(db, { filter: { status: 'PENDING' }, ...WHO })).rejects.toThrow(
      /status is "PENDING".*unfinished/,
    )
  })

  it('events are named by event id or by number, and only those that also match the filter are replayed', async () => {
    const ids = await makeEvents(db, 3, { status: 'DEAD' })
    const { rows: found } = await db.query<{ event_id: string }>({
      text: 'select event_id from leasehold.outbox where id = 2',
    })
    const named = [ids[0] ?? '', found[0]?.event_id ?? '']
    expect(await replay(db, { ids: named, filter: { type: 'other' }, ...WHO })).toMatchObject({ changed: 0 })
    expect(await replay(db, { ids: named, ...WHO })).toMatchObject({ changed: 2 })
    expect((await rows()).map(({ status }) => status)).toEqual(['PENDING', 'PENDING', 'DEAD'])
  })

  it.each([
    ['type', { type: 'order.paid' }, 4],
    ['ordering key', { orderingKey: 'b' }, 2],
    ['status', { status: 'PUBLISHED' as const }, 1],
    ['time range', { from: new Date(Date.now() - 5_000_000), to: new Date(Date.now() - 1_000_000) }, 3],
    ['error text, in any case and with any sign', { error: '100% OF_' }, 3],
    ['all of them together', { type: 'order.paid', orderingKey: 'a', error: 'lost 1000' }, 0],
  ])('a filter by %s replays the matching events and no others', async (_, filter, expected) => {
    await makeEvents(db, 3, { status: 'DEAD', key: `'a'`, error: 'lost 100% of_it', agoMs: 3_600_000 })
    await makeEvents(db, 1, { status: 'PUBLISHED' })
    await makeEvents(db, 2, { status: 'DEAD', type: 'order.sent', key: `'b'`, error: 'lost 1000 of it' })
    const options = { filter, dryRun: true } satisfies ReplayOptions
    expect(await replay(db, options)).toMatchObject({ matched: expected, changed: 0 })
    expect(await replay(db, { filter, ...WHO })).toMatchObject({
      matched: expected,
      changed: expected,
    })
    expect(await countOf('PENDING')).toBe(expected)
  })

  it('at most the limit is replayed, the oldest first', async () => {
    await makeEvents(db, 5, DEAD)
    expect(await replay(db, { filter: DEAD, limit: 2, ...WHO })).toMatchObject({
      matched: 2,
      changed: 2,
      lastId: '2',
    })
    expect(await audit()).toHaveLength(1)
  })

  it('a replay wakes the relays', async () => {
    await makeEvents(db, 1, DEAD)
    const client = new Client({ connectionString: database.url })
    await client.connect()
    onTestFinished(async () => client.end())
    await client.query('listen leasehold_wake')
    const heard = once(client, 'notification')
    await replay(db, { filter: DEAD, ...WHO })
    expect(await heard).toMatchObject([{ payload: 'outbox' }])
  })
})

it('a replay that is stopped before it begins changes nothing', async () => {
  await makeEvents(db, 1, DEAD)
  const signal = AbortSignal.abort()
  expect(await replay(db, { filter: DEAD, ...WHO, signal })).toMatchObject({ finished: false, changed: 0 })
  expect(await countOf('DEAD')).toBe(1)
})

it('an event that is published once more while the replay runs is not replayed a second time', async () => {
  await makeEvents(db, 2_500, { status: 'PUBLISHED' })
  const republish = async (): Promise<void> => {
    await db.query({
      text: `update leasehold.outbox set status = 'CLAIMED', claimed_at = now(), claimed_by = 'x',
  locked_until = now(), lock_token = lock_token + 1 where status = 'PENDING'`,
    })
    await db.query({
      text: `update leasehold.outbox set status = 'PUBLISHED', published_at = now(), claimed_at = null,
  claimed_by = null, locked_until = null where status = 'CLAIMED'`,
    })
  }
  // Written before, and published for the first time only after the replay has begun: it was not finished then.
  await makeEvents(db, 10)
  const done = await replay(db, { filter: { status: 'PUBLISHED' }, ...WHO, onProgress: republish })
  expect(done).toMatchObject({ matched: 2_500, changed: 2_500 })
  expect((await rows()).map(({ lock_token }) => lock_token)).toEqual([
    ...Array.from({ length: 2_500 }, () => '2'),
    ...Array.from({ length: 10 }, () => '1'),
  ])
})

it('a rare match far down a large table is found by statements that each read a bounded number of rows', async () => {
  await makeEvents(db, 55_000, { status: 'PUBLISHED' })
  const [rare = ''] = await makeEvents(db, 1, { status: 'PUBLISHED', type: 'rare' })
  const options = { filter: { type: 'rare' }, ...WHO }
  expect(await replay(db, { ...options, dryRun: true })).toMatchObject({
    matched: 1,
    counts: { published: 1 },
  })
  expect(await replay(db, options)).toMatchObject({ changed: 1, firstId: rare, lastId: rare })
})

it.each([
  ['published or dead ones', { type: 'rare' }],
  ['published ones', { type: 'rare', status: 'PUBLISHED' as const }],
])(
  'among many pending events, a replay of %s reads a bounded number of rows in each statement',
  async (_, filter) => {
    await makeEvents(db, 55_000)
    await makeEvents(db, 1, { status: 'PUBLISHED', type: 'rare' })
    let counts = 0
    const watched: Database = {
      ...db,
      query: async (statement) => {
        if (statement.text.includes('leasehold:outbox.replay count')) counts += 1
        return db.query(statement)
      },
    }
    expect(await replay(watched, { filter, dryRun: true })).toMatchObject({ matched: 1 })
    // One statement reads 50,000 rows at most.
    expect(counts).toBe(2)
    expect(await replay(db, { filter, ...WHO })).toMatchObject({ changed: 1 })
  },
)

it('events in every bucket are replayed', async () => {
  await makeEvents(db, 4, DEAD)
  await withBuckets(db, 3)
  await db.query({ text: 'update leasehold.outbox set bucket = id % 3' })
  expect(await replay(db, { filter: DEAD, ...WHO })).toMatchObject({
    matched: 4,
    changed: 4,
    finished: true,
  })
  expect(await countOf('PENDING')).toBe(4)
})

describe('a replay is refused', () => {
  it.each<[string, ReplayOptions, RegExp]>([
    ['with nothing to choose by', { ...WHO }, /filter is \{\}.*Give ids/],
    ['without a reason', { filter: DEAD, principal: 'ada' }, /reason is missing.*Say why/],
    ['with an empty reason', { filter: DEAD, principal: 'ada', reason: ' ' }, /reason is " "/],
    ['without a principal', { filter: DEAD, reason: 'x' }, /principal is missing/],
    ['at no rate', { filter: DEAD, rate: 0, ...WHO }, /rate is 0\..*above 0/],
    ['with an id that is none', { ids: ['12x'], ...WHO }, /id is "12x".*uuid/],
    [
      'with a number that no id can be',
      { ids: ['9223372036854775808'], ...WHO },
      /id is "9223372036854775808"/,
    ],
    [
      'for a period that ends before it begins',
      { filter: { from: new Date(2), to: new Date(1) }, ...WHO },
      /to is "1970-01-01T00:00:00\.001Z".*later than from/,
    ],
  ])('%s', async (_, options, message) => {
    await makeEvents(db, 1, DEAD)
    await expect(replay(db, options)).rejects.toThrow(message)
    expect(await countOf('DEAD')).toBe(1)
  })
})
