/** The outbox with several buckets: where events are written, that all of them are published, and in which order. */
import { createHash } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import type { Client } from 'pg'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { backToOneBucket, raise } from '../../test/support/buckets.ts'
import { backendOf, blocked, openSession, useDatabase } from '../../test/support/database.ts'
import { auditEntries, makeEvents } from '../../test/support/outbox-rows.ts'
import { add, recording, statuses, useRelays, write } from '../../test/support/running-relay.ts'
import { settled } from '../../test/support/running-worker.ts'
import { openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { replay } from './admin/replay.ts'
import { unblock } from './admin/unblock.ts'
import { enqueue } from './enqueue/enqueue.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)

beforeEach(async () => {
  await backToOneBucket(db)
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})
afterAll(async () => db.close())

async function buckets(where = 'true'): Promise<number[]> {
  const { rows } = await db.query<{ bucket: number }>({
    text: `select bucket from leasehold.outbox where ${where} order by id`,
  })
  return rows.map(({ bucket }) => bucket)
}

async function countOf(sql: string): Promise<unknown> {
  const { rows } = await db.query<{ value: unknown }>({ text: `select ${sql} as value` })
  return rows[0]?.value
}

it('with one bucket, an event in another one is refused', async () => {
  const written = add(db, "(event_type, payload, bucket) values ('a', '{}', 3)")
  await expect(written).rejects.toThrow('the bucket of event 1 is 3, and must be from 0 to 0')
  expect(await countOf('leasehold.bucket_count()')).toBe(1)
})

describe('with 64 buckets', () => {
  beforeEach(async () => {
    await migrate(db, { buckets: 64 })
  })

  it('events are placed by their ordering key, also by a plain INSERT, and others know the bucket of a key', async () => {
    await enqueue(db, { type: 'a', payload: 1, orderingKey: 'customer 7' })
    await add(db, "(event_type, payload, ordering_key) values ('b', '{}', 'customer 7')")
    const digest = createHash('sha256').update('customer 7').digest('hex').slice(0, 7)
    const expected = Number.parseInt(digest, 16) % 64
    expect(await buckets()).toEqual([expected, expected])
    expect(await countOf("leasehold.bucket('customer 7')")).toBe(expected)
  })

  it('the bucket of a key is its SHA-256, so that other programs can compute it', async () => {
    const alphabet = [
      'a',
      'Z',
      '0',
      ' ',
      "'",
      '\\',
      '\n',
      'é',
      'e\u0301',
      'ß',
      '鍵',
      'ي',
      '🔑',
      '👩‍🚀',
      '\u{10ffff}',
    ]
    const keys = Array.from(
      { length: 2_000 },
      (_, n) =>
        `${n}${Array.from({ length: n % 40 }, (__, i) => alphabet[(n + i * i) % alphabet.length]).join('')}`,
    )
    const { rows } = await db.query<{ bucket: number }>({
      text: 'select leasehold.bucket(key) as bucket from unnest($1::text[]) with ordinality as k (key, n) order by n',
      values: [keys],
    })
    const sha256 = (key: string): string => createHash('sha256').update(key, 'utf8').digest('hex')
    expect(rows.map(({ bucket }) => bucket)).toEqual(
      keys.map((key) => Number.parseInt(sha256(key).slice(0, 7), 16) % 64),
    )
    expect(new Set(rows.map(({ bucket }) => bucket)).size).toBe(64)
  })

  it('events without a key are spread evenly', async () => {
    await add(db, "(event_type, payload) select 'a', '{}' from generate_series(1, 640)")
    const counts = new Map<number, number>()
    for (const bucket of await buckets()) counts.set(bucket, (counts.get(bucket) ?? 0) + 1)
    expect([counts.size, Math.min(...counts.values()), Math.max(...counts.values())]).toEqual([64, 10, 10])
  })

  it('an event id that is given twice is written once', async () => {
    const event = { type: 'a', payload: 1, eventId: '01890000-0000-7000-8000-0000000000aa' }
    await enqueue(db, event)
    await enqueue(db, event)
    expect(await buckets()).toHaveLength(1)
  })

  it('the number of buckets is not lowered, and an event in a bucket that does not exist is refused', async () => {
    await expect(migrate(db, { buckets: 8 })).rejects.toThrow(/There are 64 buckets.*cannot be lowered to 8/)
    const written = add(db, "(event_type, payload, bucket) values ('a', '{}', 64)")
    await expect(written).rejects.toThrow('is 64, and must be from 0 to 63')
  })

  it('a relay publishes the events of all buckets, and those of a key in their order', async () => {
    await add(
      db,
      "(event_type, payload, ordering_key) select 'a', to_jsonb(n), case when n % 3 > 0 then 'key ' || n % 50 end from generate_series(1, 3000) as n",
    )
    const publisher = recording()
    const { events } = await startRelay({ publisher })
    await settled(events, 3_000)
    expect(await statuses(db)).toEqual({ PUBLISHED: 3_000 })
    const byKey = new Map<string, number[]>()
    for (const { orderingKey, payload } of publisher.published) {
      if (orderingKey === undefined || orderingKey === null) continue
      byKey.set(orderingKey, [...(byKey.get(orderingKey) ?? []), Number(payload)])
    }
    expect(byKey.size).toBe(50)
    for (const numbers of byKey.values()) expect(numbers).toEqual(numbers.toSorted((a, b) => a - b))
  })
})

/** Its bucket is 38 of 64 and 230 of 256. */
const KEY = 'some key'
const WHO = { principal: 'ada', reason: 'the broker was down' }

/** Writes an event of the key in the transaction of a session. */
async function writeIn(session: Client): Promise<void> {
  await session.query(
    "insert into leasehold.outbox (event_type, payload, ordering_key) values ('a', '{}', $1)",
    [KEY],
  )
}

/** Claims and finishes these events, as a relay does. */
async function finish(status: 'PUBLISHED' | 'DEAD', ...ids: readonly number[]): Promise<void> {
  const claim = `status = 'CLAIMED', claimed_at = now(), claimed_by = 'test', locked_until = now(), lock_token = lock_token + 1`
  const settle = `status = '${status}', claimed_at = null, claimed_by = null, locked_until = null,
    ${status === 'DEAD' ? 'dead_at' : 'published_at'} = now()`
  for (const set of [claim, settle]) {
    await db.query({ text: `update leasehold.outbox set ${set} where id = any ($1)`, values: [ids] })
  }
}

it('the number is raised while a relay runs, and a key with unfinished events stays where they are', async () => {
  await migrate(db, { buckets: 64 })
  await write(db, KEY)
  await migrate(db, { buckets: 256 })
  await write(db, KEY)
  expect(await buckets()).toEqual([38, 38])
  const publisher = recording()
  const { events } = await startRelay({ publisher })
  await settled(events, 2)
  await write(db, KEY)
  await settled(events, 1)
  expect(await buckets()).toEqual([38, 38, 230])
  await migrate(db, { buckets: 256 })
  expect(await countOf('leasehold.previous_bucket_count()')).toBe(256)
})

describe('raising the number from 64 to 256', () => {
  beforeEach(async () => {
    await migrate(db, { buckets: 64 })
  })

  it('waits for transactions that have written, so that the events of a key stay together', async () => {
    const late = await openSession(url)
    await late.query('begin')
    await writeIn(late)
    const { gaveWay, raised } = raise(db, 256)
    await Promise.race([gaveWay, raised])
    await write(db, KEY)
    await late.query('commit')
    await raised
    await write(db, KEY)
    expect(await countOf('leasehold.bucket_count()')).toBe(256)
    expect(await buckets()).toEqual([38, 38, 38])
  })

  it('forgets the number before only when no transaction is open that may have followed unfinished events', async () => {
    await write(db, KEY)
    await migrate(db, { buckets: 256 })
    const late = await openSession(url)
    await late.query('begin')
    await writeIn(late)
    await finish('PUBLISHED', 1)
    const { gaveWay, raised } = raise(db, 256)
    await Promise.race([gaveWay, raised])
    await late.query('commit')
    await raised
    await write(db, KEY)
    expect(await buckets()).toEqual([38, 38, 38])
    expect(await countOf('leasehold.previous_bucket_count()')).toBe(64)
  })

  it('is the same for two processes that do so at once', async () => {
    const [first, second] = [await openSession(url), await openSession(url)]
    await first.query('begin')
    await first.query('call leasehold.raise_bucket_count(256)')
    const pid = await backendOf(second)
    const raised = second.query('call leasehold.raise_bucket_count(256)')
    await blocked(db, pid)
    await first.query('commit')
    await raised
    expect(await countOf('leasehold.bucket_count()')).toBe(256)
  })

  it('stops nobody if there is nothing to change', async () => {
    const writer = await openSession(url)
    await writer.query('begin')
    await writeIn(writer)
    await migrate(db, { buckets: 64, lockTimeoutMs: 50, attempts: 1 })
    await writer.query('commit')
    await migrate(db, { buckets: 256 })
    await writer.query('begin')
    await writeIn(writer)
    // Events are unfinished that were written before: the number before them is not forgotten yet.
    await migrate(db, { buckets: 256, lockTimeoutMs: 50, attempts: 1 })
    await expect(migrate(db, { buckets: 512, lockTimeoutMs: 50, attempts: 1 })).rejects.toThrow(
      /Rows are unfinished that were written before the number of buckets was raised to 256/,
    )
  })

  it('is refused in a transaction that would not see what is written while it waits', async () => {
    const session = await openSession(url)
    await session.query('begin isolation level repeatable read')
    await expect(session.query('call leasehold.raise_bucket_count(256)')).rejects.toMatchObject({
      message: expect.stringContaining('repeatable read'),
      hint: 'Raise the number of buckets in a READ COMMITTED transaction.',
    })
  })

  // Each is planned on its own: a plan that depends on a function which is replaced is made anew as a whole.
  it.each([
    ["leasehold.bucket('some key')", 38, 230],
    ['leasehold.bucket($1::text)', 38, 230],
    ['leasehold.bucket_count()', 64, 256],
  ])('reaches sessions that have planned %s before', async (expression, before, after) => {
    const session = await openSession(url)
    await session.query('set plan_cache_mode = force_generic_plan')
    await session.query(`create function pg_temp.planned(text) returns int language plpgsql as
      $$ begin return ${expression}; end $$`)
    const both = async (): Promise<unknown[]> => {
      const prepared = { name: 'prepared', text: `select ${expression} as value`, values: [KEY] }
      const planned = { name: 'planned', text: 'select pg_temp.planned($1) as value', values: [KEY] }
      if (!expression.includes('$1')) prepared.values = []
      const answers = [await session.query<{ value: number }>(prepared), await session.query(planned)]
      return answers.map(({ rows }) => rows[0]?.value)
    }
    for (let i = 0; i < 7; i += 1) expect(await both()).toEqual([before, before])
    await migrate(db, { buckets: 256 })
    expect(await both()).toEqual([after, after])
  })

  it('reaches sessions that have written with a prepared statement before', async () => {
    const session = await openSession(url)
    const writeKey = async (key: string): Promise<void> => {
      const text = "insert into leasehold.outbox (event_type, payload, ordering_key) values ('a', '{}', $1)"
      await session.query({ name: 'write', text, values: [key] })
    }
    for (let i = 0; i < 7; i += 1) await writeKey('e')
    await migrate(db, { buckets: 256 })
    await writeKey('e')
    await writeKey(KEY)
    expect((await buckets()).slice(-3)).toEqual([55, 55, 230])
  })

  it('reads no finished event to know whether rows of the number before are unfinished', async () => {
    await makeEvents(db, 20_000, { status: 'PUBLISHED', key: `'key ' || n % 1000` })
    await makeEvents(db, 2_000, { key: `'key ' || n % 1000` })
    await db.query({ text: 'analyze leasehold.outbox' })
    const remove = async (where: string): Promise<void> => {
      await db.query({ text: `delete from leasehold.outbox where published_at is null and ${where}` })
    }
    await remove('id <> 22000')
    await migrate(db, { buckets: 256 })
    await remove('true')
    expect(await countOf('leasehold.previous_bucket_count()')).toBe(64)
    // The counts are those of the session, which has done nothing before.
    const session = await openSession(url)
    await session.query('begin')
    await session.query('select leasehold.has_rows_of_previous_buckets()')
    const { rows } = await session.query(`select relname, seq_scan::int, idx_scan > 0 as by_index
      from pg_stat_xact_user_tables
      where schemaname = 'leasehold' and relname in ('outbox', 'webhook_outbox') order by relname`)
    expect(rows).toEqual([
      { relname: 'outbox', seq_scan: 0, by_index: true },
      { relname: 'webhook_outbox', seq_scan: 0, by_index: true },
    ])
  })
})

it('where all unfinished events stay where they are, the number before is forgotten at once', async () => {
  await makeEvents(db, 10, { status: 'PUBLISHED', key: `'key ' || n` })
  await migrate(db, { buckets: 64 })
  await write(db, 'h')
  // The bucket of h is 2 of 64 and of 256.
  await migrate(db, { buckets: 256 })
  expect(await countOf('leasehold.previous_bucket_count()')).toBe(256)
  await write(db, KEY)
  await migrate(db, { buckets: 300 })
  expect(await countOf('leasehold.previous_bucket_count()')).toBe(256)
})

describe('after the number was raised from 64 to 256', () => {
  beforeEach(async () => {
    await migrate(db, { buckets: 64 })
  })

  it('writers of a key wait for each other, as long as its events may be in two buckets', async () => {
    await write(db, KEY)
    await migrate(db, { buckets: 256 })
    const [second, third] = [await openSession(url), await openSession(url)]
    await second.query('begin')
    await writeIn(second)
    await finish('PUBLISHED', 1)
    const pid = await backendOf(third)
    const written = writeIn(third)
    await Promise.race([written, blocked(db, pid)])
    await second.query('commit')
    await written
    expect(await buckets()).toEqual([38, 38, 38])
  })

  it.each(['PUBLISHED', 'DEAD'] as const)(
    'a %s event that is replayed is published before the events of its key that wait in another bucket',
    async (status) => {
      await write(db, KEY)
      await finish(status, 1)
      await migrate(db, { buckets: 256 })
      await write(db, KEY, KEY)
      expect(await buckets()).toEqual([38, 230, 230])
      const replayed = await replay(db, { ids: ['1'], ...WHO })
      expect(replayed).toMatchObject({ matched: 1, changed: 1, finished: true, skipped: [] })
      expect(await buckets()).toEqual([230, 230, 230])
      const publisher = recording()
      const { events } = await startRelay({ publisher })
      await settled(events, 3)
      expect(publisher.published.map(({ id }) => id)).toEqual(['1', '2', '3'])
      const again = await replay(db, { ids: ['1', '2'], dryRun: true })
      expect(again).toMatchObject({ matched: 2, skipped: [] })
    },
  )

  it('an event that is replayed stays where unfinished events of its key are', async () => {
    await write(db, KEY, KEY)
    await finish('PUBLISHED', 1)
    await migrate(db, { buckets: 256 })
    expect(await replay(db, { ids: ['1'], ...WHO })).toMatchObject({ changed: 1 })
    await write(db, KEY)
    expect(await buckets()).toEqual([38, 38, 38])
  })

  it('a parked event keeps the events of its key in its bucket, also when it is replayed', async () => {
    await write(db, KEY)
    await finish('DEAD', 1)
    await db.query({ text: 'update leasehold.outbox set parked = true' })
    await migrate(db, { buckets: 256 })
    await write(db, KEY)
    expect(await unblock(db, { orderingKey: KEY, replay: true, ...WHO })).toEqual({ parked: 1, failing: 0 })
    expect(await buckets()).toEqual([38, 38])
    expect(await statuses(db)).toEqual({ PENDING: 2 })
  })

  it('events that a replay moves are replayed once, and those without a key are not moved', async () => {
    await makeEvents(db, 1_500, { status: 'DEAD', key: `case when n > 100 then 'key ' || n % 300 end` })
    const before = await buckets('ordering_key is null')
    await migrate(db, { buckets: 256 })
    const replayed = await replay(db, { filter: { status: 'DEAD' }, ...WHO })
    expect(replayed).toMatchObject({
      matched: 1_500,
      changed: 1_500,
      finished: true,
      firstId: '1',
      lastId: '1500',
    })
    expect(await statuses(db)).toEqual({ PENDING: 1_500 })
    expect(await buckets('ordering_key is null')).toEqual(before)
    expect(await buckets('bucket <> leasehold.bucket(ordering_key)')).toEqual([])
    const last = (await auditEntries(db)).at(-1)
    expect(last).toMatchObject({ action: 'outbox.replay', details: { changed: 1_500 } })
    expect(await replay(db, { filter: { status: 'DEAD' }, ...WHO })).toMatchObject({ matched: 0, changed: 0 })
  })

  it('the roles of producers and operators are sufficient', async () => {
    await write(db, KEY, KEY)
    await finish('DEAD', 1)
    await migrate(db, { buckets: 256 })
    const session = await openSession(url)
    await session.query('set role leasehold_producer')
    await session.query('select leasehold.enqueue($1, $2, $3, event_id => $4)', ['a', '{}', KEY, EVENT_ID])
    await session.query('set role leasehold_operator')
    await session.query("update leasehold.outbox set status = 'PENDING', dead_at = null where id = 1")
    expect(await buckets()).toEqual([38, 38, 38])
  })

  const EVENT_ID = '01890000-0000-7000-8000-0000000000aa'
  const DUPLICATE = `(event_id, event_type, payload, ordering_key) values ('${EVENT_ID}', 'a', '{}', $key)`

  it.each([
    ['without a key', 'null'],
    ['with a key', `'${KEY}'`],
  ])('an event id that was given before is found: an event %s is not written twice', async (_, key) => {
    const duplicate = DUPLICATE.replace('$key', key)
    await add(db, duplicate)
    await finish('PUBLISHED', 1)
    const [bucket] = await buckets()
    await migrate(db, { buckets: 256 })
    await add(db, `${duplicate} on conflict do nothing`)
    await expect(add(db, duplicate)).rejects.toThrow('outbox_event_id')
    await add(
      db,
      `(bucket, ${duplicate.slice(1).replace('values (', 'values (230, ')} on conflict do nothing`,
    )
    expect(await buckets()).toEqual([bucket])
    expect(await enqueue(db, { type: 'a', payload: 1, eventId: EVENT_ID })).toMatchObject({
      id: '1',
      duplicate: true,
    })
  })

  it.each([
    ['without a key', 'null'],
    ['with a key', `'${KEY}'`],
  ])('two transactions that write one event id at once agree on its bucket: %s', async (_, key) => {
    await migrate(db, { buckets: 256 })
    const duplicate = `insert into leasehold.outbox ${DUPLICATE.replace('$key', key)} on conflict do nothing`
    const [first, second] = [await openSession(url), await openSession(url)]
    await first.query('begin')
    await first.query(duplicate)
    const pid = await backendOf(second)
    const written = second.query(duplicate)
    await blocked(db, pid)
    await first.query('commit')
    expect((await written).rowCount).toBe(0)
    expect(await buckets()).toHaveLength(1)
  })

  it('an event id that was written twice is found', async () => {
    await migrate(db, { buckets: 256 })
    const session = await openSession(url)
    await session.query('set session_replication_role = replica')
    const values = [3, 2].map((bucket) => `('${EVENT_ID}', 'a', '{}', ${bucket})`)
    await session.query(
      `insert into leasehold.outbox (event_id, event_type, payload, bucket) values ${values.join(', ')}`,
    )
    expect(await countOf(`leasehold.find_event('${EVENT_ID}')::int`)).toBe(1)
  })

  it('an event in another bucket than those of its key is refused, unless it is replicated or finished', async () => {
    await write(db, KEY)
    await migrate(db, { buckets: 256 })
    const inBucket = (bucket: string, key = KEY): string =>
      `(bucket, event_type, payload, ordering_key) values (${bucket}, 'order.paid', '{}', '${key}')`
    await expect(add(db, inBucket('5'))).rejects.toMatchObject({
      message: 'the bucket of a order.paid event with the ordering_key "some key" is 5, and must be 38',
      column: 'bucket',
      hint: 'Leave bucket out, or write leasehold.bucket(ordering_key).',
    })
    // The remedy holds for a key with unfinished events too.
    await add(db, inBucket(`leasehold.bucket('${KEY}')`))
    await add(db, inBucket('38'))
    await add(db, inBucket("leasehold.bucket('another')", 'another'))
    expect(await buckets(`ordering_key = '${KEY}'`)).toEqual([38, 38, 38])
    expect(await buckets("ordering_key = 'another'")).toEqual([await countOf("leasehold.bucket('another')")])
    await add(db, "(bucket, event_type, payload) values (5, 'a', '{}')")
    await add(
      db,
      `(bucket, event_type, payload, ordering_key, status, published_at) values (5, 'a', '{}', '${KEY}', 'PUBLISHED', now())`,
    )
    const applying = await openSession(url)
    await applying.query('set session_replication_role = replica')
    await applying.query(`insert into leasehold.outbox ${inBucket('5')}`)
    expect(await buckets('bucket = 5')).toHaveLength(3)
  })
})

it('LIFE-13: no key has unfinished events in two buckets while the number is raised under load and events are replayed', async () => {
  const producers = openDatabase({ url, maxConnections: 8 })
  onTestFinished(async () => producers.close())
  /** Publishes without regard to the order: the number can be raised when no event is in a bucket of the number before. */
  const publishing = await openSession(url)
  await publishing.query('set session_replication_role = replica')
  const running = new Set([1, 2, 3, 4, 5, 6, 7, 8])

  // Transactions overlap each other and the changes of the number. The pauses are the scenario; nothing is asserted about them.
  async function produce(producer: number): Promise<void> {
    for (let i = 0; i < 60; i += 1) {
      const rollBack = Math.random() < 0.1
      const written = producers.transaction(async (tx) => {
        await tx.query({
          text: `insert into leasehold.outbox (event_type, payload, ordering_key) values ('a', '{}', $1)`,
          values: [`key ${Math.floor(Math.random() * 8)}`],
        })
        await pause(Math.random() * 40)
        if (rollBack) throw new Error('rolled back')
      })
      await written.catch((error: unknown) => {
        if (!rollBack) throw error
      })
    }
    running.delete(producer)
  }

  const unfinished = "status in ('PENDING', 'CLAIMED')"
  const split: string[] = []
  const refusals: string[] = []
  let count = 1
  async function raiseAndReplay(): Promise<void> {
    for (; running.size > 0; await pause(30)) {
      await db.query({
        text: `update leasehold.outbox set status = 'PENDING', published_at = null, published_by = null, claimed_at = null
          where status = 'PUBLISHED' and id in (select id from leasehold.outbox order by random() limit 5)`,
      })
      const { rows } = await db.query<{ key: string }>({
        text: `select ordering_key as key from leasehold.outbox where ${unfinished}
          group by ordering_key having count(distinct bucket) > 1`,
      })
      split.push(...rows.map(({ key }) => key))
      await publishing.query(
        `update leasehold.outbox set status = 'PUBLISHED', published_at = now()
          where ${unfinished} and (bucket <> leasehold.bucket(ordering_key) or random() < 0.7)`,
      )
      await migrate(db, { buckets: count + 1, lockTimeoutMs: 500 }).then(
        () => (count += 1),
        (error: unknown) => refusals.push(String(error)),
      )
    }
  }

  await Promise.all([raiseAndReplay(), ...Array.from(running, produce)])
  expect(split).toEqual([])
  expect(count).toBeGreaterThan(1)
  expect(refusals.filter((refusal) => !refusal.includes('Rows are unfinished'))).toEqual([])
}, 120_000)
