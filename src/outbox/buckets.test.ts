/** The outbox with several buckets: where events are written, that all of them are published, and in which order. */
import { createHash } from 'node:crypto'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { add, recording, statuses, useRelays, write } from '../../test/support/running-relay.ts'
import { settled } from '../../test/support/running-worker.ts'
import { openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { enqueue } from './enqueue/enqueue.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox restart identity' })
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
  await expect(written).rejects.toThrow('outbox_bucket_is_served')
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
    await expect(written).rejects.toThrow('outbox_bucket_is_served')
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

it('the number is raised while a relay runs, and a key with unfinished events stays where they are', async () => {
  await migrate(db, { buckets: 64 })
  await write(db, 'some key')
  const [before] = await buckets()
  await migrate(db, { buckets: 256 })
  await write(db, 'some key')
  expect(await buckets()).toEqual([before, before])
  const publisher = recording()
  const { events } = await startRelay({ publisher })
  await settled(events, 2)
  await write(db, 'some key')
  await settled(events, 1)
  expect((await buckets())[2]).toBe(await countOf("leasehold.bucket('some key')"))
  await migrate(db, { buckets: 256 })
  expect(await countOf('leasehold.previous_bucket_count()')).toBe(256)
})
