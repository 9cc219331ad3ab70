import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { Client } from 'pg'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { applyRetention, repeatedRetention } from './retention.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.inbox restart identity' })
})

const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
const QUICK = { pauseMs: 0 }

async function remainingIds(): Promise<string[]> {
  const text = 'select id::text as id from leasehold.outbox as o order by o.id'
  return (await db.query<{ id: string }>({ text })).rows.map(({ id }) => id)
}

async function remember(count: number, agoMs: number): Promise<void> {
  await db.query({
    text: `insert into leasehold.inbox (consumer, event_id, processed_at)
select 'billing', gen_random_uuid(), now() - $2 * interval '1 millisecond' from generate_series(1, $1::int)`,
    values: [count, agoMs],
  })
}

describe('by default', () => {
  it('D11: published events are removed 7 days after publication, dead ones 90 days after they died, and nothing else', async () => {
    const old = { agoMs: 1_000 * DAY_MS }
    await makeEvents(db, 3, { ...old, status: 'PUBLISHED', finishedAgoMs: 7 * DAY_MS + 60_000 })
    await makeEvents(db, 2, { ...old, status: 'DEAD', finishedAgoMs: 90 * DAY_MS + 60_000 })
    const retained = [
      ...(await makeEvents(db, 2, { ...old, status: 'PUBLISHED', finishedAgoMs: 7 * DAY_MS - 60_000 })),
      ...(await makeEvents(db, 2, { ...old, status: 'DEAD', finishedAgoMs: 90 * DAY_MS - 60_000 })),
      ...(await makeEvents(db, 2, old)),
      ...(await makeEvents(db, 2, { ...old, status: 'CLAIMED' })),
      ...(await makeEvents(db, 2, { ...old, status: 'DEAD', parked: true, key: `'key ' || n` })),
    ]
    expect(await applyRetention(db, QUICK)).toEqual({ published: 3, dead: 2, inbox: 0 })
    expect(await remainingIds()).toEqual(retained)
    expect(await applyRetention(db, QUICK)).toEqual({ published: 0, dead: 0, inbox: 0 })
  })

  it('the inbox remembers an event for as long as it could be replayed when dead', async () => {
    await remember(2_500, 91 * DAY_MS)
    await remember(5, 89 * DAY_MS)
    expect(await applyRetention(db, QUICK)).toEqual({ published: 0, dead: 0, inbox: 2_500 })
    expect(await applyRetention(db, QUICK)).toMatchObject({ inbox: 0 })
  })
})

it('both times can be chosen, also the dead shorter than the published, and null keeps for ever', async () => {
  await makeEvents(db, 4, { status: 'PUBLISHED', agoMs: 5_000 })
  await makeEvents(db, 3, { status: 'DEAD', agoMs: 5_000 })
  await remember(2, 5_000)
  const keep = { published: 0, dead: 0, inbox: 0 }
  expect(await applyRetention(db, { ...QUICK, publishedMs: null, deadMs: null })).toEqual(keep)
  expect(await applyRetention(db, { ...QUICK, publishedMs: 60_000, deadMs: 1_000 })).toEqual({
    ...keep,
    dead: 3,
  })
  expect(await applyRetention(db, { ...QUICK, publishedMs: 0, deadMs: null })).toEqual({
    ...keep,
    published: 4,
  })
  expect(await applyRetention(db, { ...QUICK, publishedMs: 0, deadMs: 0 })).toEqual({ ...keep, inbox: 2 })
})

it('a round ends where all events of a batch are too young; older ones after them are removed once those have aged', async () => {
  await makeEvents(db, 10, { status: 'PUBLISHED', agoMs: 2 * HOUR_MS })
  await makeEvents(db, 10, { status: 'PUBLISHED' })
  await makeEvents(db, 1, { status: 'PUBLISHED', agoMs: 2 * HOUR_MS })
  // It reads two rows at a time, and ends at the first two young ones.
  expect(await applyRetention(db, { ...QUICK, batch: 2, publishedMs: HOUR_MS })).toMatchObject({
    published: 10,
  })
  expect(await remainingIds()).toHaveLength(11)
  await db.query({ text: `update leasehold.outbox set created_at = now() - interval '90 minutes'` })
  expect(await applyRetention(db, { ...QUICK, publishedMs: HOUR_MS })).toMatchObject({ published: 1 })
})

it('retained rows in between are passed, and every batch starts where the last one ended', async () => {
  const retained = await makeEvents(db, 40, { agoMs: 10_000 })
  await makeEvents(db, 35, { status: 'PUBLISHED', agoMs: 10_000 })
  expect(await applyRetention(db, { ...QUICK, batch: 3, publishedMs: 5_000 })).toMatchObject({
    published: 35,
  })
  expect(await remainingIds()).toEqual(retained)
})

it('a locked row is skipped without waiting, and deleted by the next run', async () => {
  const [first = ''] = await makeEvents(db, 3, { status: 'PUBLISHED', agoMs: 10_000 })
  const client = new Client({ connectionString: database.url })
  await client.connect()
  onTestFinished(async () => client.end())
  await client.query('begin')
  await client.query('select from leasehold.outbox where id = 1 for update')
  expect(await applyRetention(db, { ...QUICK, publishedMs: 5_000 })).toMatchObject({ published: 2 })
  expect(await remainingIds()).toEqual([first])
  await client.query('rollback')
  expect(await applyRetention(db, { ...QUICK, publishedMs: 5_000 })).toMatchObject({ published: 1 })
})

it('a run that is told to stop ends after its batch', async () => {
  await makeEvents(db, 30, { status: 'PUBLISHED', agoMs: 10_000 })
  const controller = new AbortController()
  const stopping = {
    query: async (statement: Parameters<typeof db.query>[0]) => {
      const result = await db.query<never>(statement)
      if (statement.text.includes('delete')) controller.abort()
      return result
    },
  }
  const options = { batch: 10, publishedMs: 5_000, pauseMs: 60_000, signal: controller.signal }
  expect(await applyRetention(stopping, options)).toEqual({ published: 10, dead: 0, inbox: 0 })
})

it('events of every bucket are removed', async () => {
  await makeEvents(db, 9, { status: 'PUBLISHED', agoMs: 10_000 })
  await withBuckets(db, 3)
  await db.query({ text: 'update leasehold.outbox set bucket = id % 3' })
  expect(await applyRetention(db, { ...QUICK, publishedMs: 5_000 })).toMatchObject({ published: 9 })
})

describe('a process that applies retention again and again', () => {
  /** Where the statements that delete have started. */
  function recordingStarts() {
    const starts: unknown[] = []
    const query: typeof db.query = async (statement) => {
      if (statement.text.includes('leasehold:delete finished')) starts.push(statement.values?.[1])
      return db.query(statement)
    }
    return { starts, query }
  }

  it('goes on after the rows that stay, and removes every event in its time', async () => {
    const retention = repeatedRetention({ ...QUICK, batch: 10 })
    const old = { agoMs: 8 * DAY_MS }
    const staying = await makeEvents(db, 25, old)
    await makeEvents(db, 12, { ...old, status: 'PUBLISHED' })
    const young = await makeEvents(db, 5, { status: 'PUBLISHED' })
    expect(await retention(db)).toMatchObject({ published: 12 })
    const recorder = recordingStarts()
    expect(await retention(recorder)).toMatchObject({ published: 0 })
    expect(recorder.starts, 'its first row is young').toEqual([])

    await db.query({
      text: `update leasehold.outbox set created_at = created_at - interval '8 days', published_at = published_at - interval '8 days'
        where id = any ($1)`,
      values: [young],
    })
    expect(await retention(recorder)).toMatchObject({ published: 5 })
    expect(Number(recorder.starts[0])).toBeGreaterThanOrEqual(Number(staying.at(-1)))
    expect(await remainingIds()).toEqual(staying)
  })

  it('starts over after the time of retention, for events that were finished late', async () => {
    const retention = repeatedRetention({ ...QUICK, publishedMs: 0 })
    await makeEvents(db, 3, { agoMs: 10_000 })
    expect(await retention(db)).toMatchObject({ published: 0 })
    await db.query({
      text: `update leasehold.outbox set status = 'CLAIMED', lock_token = 1, claimed_at = now(), claimed_by = 'test', locked_until = now()`,
    })
    await db.query({
      text: `update leasehold.outbox set status = 'PUBLISHED', published_at = now(), claimed_at = null, claimed_by = null, locked_until = null`,
    })
    expect(await retention(db)).toMatchObject({ published: 3 })
  })
})

it.each([1, 16])('a run that finds nothing sends as few statements with %i buckets', async (buckets) => {
  if (buckets > 1) await withBuckets(db, buckets)
  await makeEvents(db, 40, { status: 'PUBLISHED' })
  await makeEvents(db, 40, { status: 'DEAD' })
  if (buckets > 1) await db.query({ text: `update leasehold.outbox set bucket = id % ${buckets}` })
  let statements = 0
  const query: typeof db.query = async (statement) => {
    statements += 1
    return db.query(statement)
  }
  expect(await applyRetention({ query }, QUICK)).toEqual({ published: 0, dead: 0, inbox: 0 })
  // Two each for published and dead events: whether the table is distributed, and which buckets have old ones.
  expect(statements).toBe(5)
})

it('a run never scans the whole outbox or the whole inbox', async () => {
  await makeEvents(db, 20_000, { status: 'PUBLISHED', agoMs: 2 * HOUR_MS })
  await makeEvents(db, 5_000, { status: 'DEAD', agoMs: 2 * HOUR_MS })
  await makeEvents(db, 20_000)
  await remember(20_000, 2 * HOUR_MS)
  await remember(20_000, 0)
  await db.query({ text: 'vacuum analyze leasehold.outbox' })
  await db.query({ text: 'vacuum analyze leasehold.inbox' })
  const before = await sequentialScans()
  const own = openDatabase({ url: database.url })
  const removed = await applyRetention(own, { ...QUICK, publishedMs: HOUR_MS, deadMs: HOUR_MS })
  // A session hands in its statistics at the latest when it ends.
  await own.close()
  expect(removed).toEqual({ published: 20_000, dead: 5_000, inbox: 20_000 })
  expect(await sequentialScans()).toEqual(before)
})

async function sequentialScans(): Promise<unknown> {
  return db.transaction(async (tx) => {
    await tx.query({ text: 'select pg_stat_force_next_flush()' })
    const { rows } = await tx.query({
      text: `select relname, seq_scan from pg_stat_user_tables
where schemaname = 'leasehold' and relname in ('outbox', 'inbox') order by 1`,
    })
    return rows
  })
}

it.each([
  [{ publishedMs: -1 }, /publishedMs is -1\..*milliseconds/],
  [{ deadMs: Number.NaN }, /deadMs is NaN\./],
  [{ batch: 0 }, /batch is 0\..*1 to 10000/],
  [{ pauseMs: -1 }, /pauseMs is -1/],
])('the retention %j is refused', async (options, message) => {
  await expect(applyRetention(db, options)).rejects.toThrow(message)
})
