import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { withBuckets } from '../../test/support/buckets.ts'
import { nodesOf, type PlanNode } from '../../test/support/statement-plans.ts'
import { useDatabase } from '../../test/support/database.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/index.ts'
import { chunkTable } from '../sync/table.ts'
import { webhookTable } from '../webhooks/table.ts'
import { backlog, heldUpKeyCounts, oldestPending, pendingAge, pendingCount, pendingRows } from './backlog.ts'
import { leaseTable, openLeaseStore, type LeaseTable } from './index.ts'
import { inspectTable } from './inspect.ts'
import { tableSql } from './table-sql.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())

async function run(text: string): Promise<void> {
  await db.query({ text })
}

/** Not claimed in the order of its moments, and without a bucket. */
const letters = leaseTable({
  table: 'public.letters',
  lease: { owner: 'owner', until: 'until', token: 'token' },
  claimable: 'not sent',
  availableAt: 'available_at',
  order: ['id'],
  attempts: { max: 3, expiries: false, error: false },
  outcomes: { sent: { sent: 'true' }, dead: { sent: 'true' } },
})

beforeAll(async () =>
  run(`create table public.letters (
  id int generated always as identity primary key, sent boolean not null default false,
  available_at timestamptz, owner text, until timestamptz, token bigint not null default 0,
  attempts int not null default 0);
create index on public.letters (id) where not sent;
create index on public.letters (id) where owner is not null`),
)

describe('the age of the oldest pending row', () => {
  async function ageAfter(change: string): Promise<number | undefined> {
    await run('delete from public.letters')
    await run(change)
    return pendingAge(letters)(db)
  }

  it('the age is that of the row that has waited longest since it was due', async () => {
    const age = await ageAfter(`insert into public.letters (available_at)
      values (now() - interval '10 s'), (now() - interval '500 s'), (now() + interval '900 s')`)
    expect(age).toBeGreaterThanOrEqual(500)
    expect(age).toBeLessThan(600)
  })

  it('the age is 0 when no row could be claimed: settled, leased, not yet due, or out of attempts', async () => {
    const age = await ageAfter(`insert into public.letters (available_at, sent, owner, until, attempts) values
      (now() - interval '500 s', true, null, null, 0),
      (now() - interval '500 s', false, 'w', now() + interval '500 s', 0),
      (now() + interval '500 s', false, null, null, 0),
      (now() - interval '500 s', false, 'w', now() - interval '100 s', 2)`)
    expect(age).toBe(0)
  })

  it('a row whose lease has expired counts, where such a row can be claimed', async () => {
    const age = await ageAfter(`insert into public.letters (available_at, owner, until)
      values (now() - interval '500 s', 'w', now() - interval '1 s')`)
    expect(age).toBeGreaterThanOrEqual(500)
  })

  it('a table without a time column has no age', async () => {
    const { availableAt: _, ...timeless } = letters
    expect(await pendingAge({ ...timeless, availableAt: undefined })(db)).toBeUndefined()
  })

  it('a table that does not exist is an error', async () => {
    await expect(pendingAge({ ...letters, name: 'nowhere' })(db)).rejects.toThrow('public.nowhere')
  })
})

describe('the backlog of the outbox', () => {
  beforeEach(async () => run('truncate leasehold.outbox restart identity'))

  async function write(values: string): Promise<void> {
    await run(`insert into leasehold.outbox (event_type, payload, ordering_key, available_at, bucket, expiries)
select 'a', '{}', key, now() + due * interval '1 s', bucket, expiries from (values ${values}) as v (key, due, bucket, expiries)`)
  }

  const age = pendingAge(outboxTable())

  it('an event that is queued after a blocked head does not count, however long it has waited', async () => {
    await write(`('k', 3600, 0, 0), ('k', -500, 0, 0), ('other', -20, 0, 0)`)
    expect(await age(db)).toBeLessThan(60)
    expect(await pendingCount(db, outboxTable())).toEqual({ pending: 1, leased: 0, most: 10_000 })
  })

  it('a key of which an event is in flight has none to claim, even when a late commit has become its head', async () => {
    await write(`('k', -500, 0, 0), ('k', -400, 0, 0)`)
    const store = await openLeaseStore(db, outboxTable(), { owner: 'w' })
    await store.claim({ limit: 1, leaseMs: 60_000, ids: ['1'] })
    expect(await pendingCount(db, outboxTable())).toMatchObject({ pending: 0, leased: 1 })
    await run('update leasehold.outbox set id = 3 where id = 1')
    expect(await pendingCount(db, outboxTable())).toMatchObject({ pending: 0, leased: 1 })
    expect(await age(db)).toBe(0)
  })

  it('suspects, keyed and unkeyed events of every bucket count', async () => {
    await withBuckets(db, 8)
    await write(
      // The bucket of c is 0, and that of d is 7.
      `(null, -10, 0, 0), (null, -900, 0, 2), ('c', -20, 0, 0), (null, -30, 7, 0), ('d', -40, 7, 3)`,
    )
    expect(await pendingCount(db, outboxTable())).toMatchObject({ pending: 5 })
    expect(await age(db)).toBeGreaterThanOrEqual(900)
    expect(await oldestPending(db, outboxTable())).toMatchObject({ bucket: 0, id: '2' })
    await run('delete from leasehold.outbox where expiries = 2')
    expect(await age(db)).toBeGreaterThanOrEqual(40)
    expect(await age(db)).toBeLessThan(100)
  })

  it('pending and leased events are counted up to a bound', async () => {
    await write(
      Array.from({ length: 30 }, (_, n) => `(${n % 2 === 0 ? 'null' : `'k${n}'`}, 0, 0, 0)`).join(', '),
    )
    const store = await openLeaseStore(db, outboxTable(), { owner: 'w' })
    await store.claim({ limit: 8, leaseMs: 60_000 })
    expect(await pendingCount(db, outboxTable())).toEqual({ pending: 22, leased: 8, most: 10_000 })
    expect(await pendingRows(outboxTable())(db)).toBe(22)
    expect(await pendingCount(db, outboxTable(), 5)).toEqual({ pending: 5, leased: 5, most: 5 })
  })
})

describe('ordering keys that are held up', () => {
  const heldUp = heldUpKeyCounts(outboxTable())
  beforeEach(async () => run('truncate leasehold.outbox restart identity'))

  async function write(values: string): Promise<void> {
    await run(`insert into leasehold.outbox (event_type, payload, ordering_key, status, attempts, parked, available_at, dead_at)
select 'a', '{}', key, case when parked then 'DEAD' else 'PENDING' end, attempts, parked,
  now() + interval '1 hour' * attempts, case when parked then now() end
from (values ${values}) as v (key, attempts, parked)`)
  }

  it('a key is blocked while its head waits for its retry and others wait for it, and parked until an operator decides', async () => {
    await write(`('blocked', 1, false), ('blocked', 0, false), ('blocked', 0, false),
      ('alone', 1, false), ('fine', 0, false), ('fine', 0, false), (null, 1, false), (null, 0, false),
      ('parked', 1, true), ('parked', 0, false), ('parked alone', 1, true)`)
    expect(await heldUp(db)).toEqual({ blocked: 1, parked: 2 })
  })

  it('a head that is being tried once more is not reported as parked', async () => {
    await write(`('k', 1, false), ('k', 0, false)`)
    const store = await openLeaseStore(db, outboxTable(), { owner: 'w' })
    await run('update leasehold.outbox set available_at = now()')
    await store.claim({ limit: 1, leaseMs: 60_000, ids: ['1'] })
    expect(await heldUp(db)).toEqual({ blocked: 0, parked: 0 })
  })

  it('the keys of every bucket count', async () => {
    await withBuckets(db, 8)
    // The bucket of c is 0, and that of d is 7.
    await run(`insert into leasehold.outbox (event_type, payload, ordering_key, attempts, bucket)
select 'a', '{}', key, attempts, bucket from (values ('c', 1, 0), ('c', 0, 0), ('d', 1, 7), ('d', 0, 7)) as v (key, attempts, bucket)`)
    expect(await heldUp(db)).toEqual({ blocked: 2, parked: 0 })
    await run('truncate leasehold.outbox')
  })

  it('in a table with groups, the same key of two groups is two keys', async () => {
    await run('truncate leasehold.webhook_outbox')
    const { rows } = await db.query<{ id: string }>({
      text: `insert into leasehold.webhook_endpoints (url, secret)
select 'https://example.com/', 's' from generate_series(1, 2) returning id`,
    })
    const [a = '', b = ''] = rows.map(({ id }) => id)
    await run(`insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key, attempts)
select endpoint, 'a', '{}', 'k', attempts from (values
  ('${a}'::uuid, 1), ('${a}', 0), ('${b}', 2), ('${b}', 0), ('${b}', 0)) as v (endpoint, attempts)`)
    expect(await heldUpKeyCounts(webhookTable())(db)).toEqual({ blocked: 2, parked: 0 })
    await run('truncate leasehold.webhook_outbox')
  })

  it('a leased head of a table of your own is not parked, and one that nobody can claim is', async () => {
    await run(`create table public.tickets (
  id int primary key, customer text, state text not null, owner text, until timestamptz, token bigint not null default 0);
create index on public.tickets (customer, id) where state <> 'closed';
insert into public.tickets (id, customer, state, owner, until) values
  (1, 'x', 'running', 'w', now() + interval '1 hour'), (2, 'x', 'open', null, null),
  (3, 'y', 'on hold', null, null), (4, 'y', 'open', null, null)`)
    const tickets = leaseTable({
      table: 'public.tickets',
      lease: { owner: 'owner', until: 'until', token: 'token' },
      claimable: "state = 'open'",
      order: ['id'],
      leased: "state = 'running'",
      ordering: { key: 'customer', unfinished: "state <> 'closed'" },
    })
    expect(await heldUpKeyCounts(tickets)(db)).toEqual({ blocked: 0, parked: 1 })
  })
})

describe('the backlog of a table with groups', () => {
  it('the rows and ordering keys of every group are counted', async () => {
    const { rows } = await db.query<{ id: string }>({
      text: `insert into leasehold.webhook_endpoints (url, secret)
select 'https://example.com/', 's' from generate_series(1, 2) returning id`,
    })
    const [a = '', b = ''] = rows.map(({ id }) => id)
    await run(`insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key, next_attempt_at)
select endpoint, 'a', '{}', key, now() + due * interval '1 s' from (values
  ('${a}'::uuid, null, -10), ('${a}', 'k', 100), ('${a}', 'k', -800), ('${b}', 'k', -300), ('${b}', null, -5)
) as v (endpoint, key, due)`)
    expect(await pendingCount(db, webhookTable())).toMatchObject({ pending: 3 })
    const age = await pendingAge(webhookTable())(db)
    expect(age).toBeGreaterThanOrEqual(300)
    expect(age).toBeLessThan(400)
  })
})

it.each<[string, LeaseTable, readonly string[]]>([
  ['outbox', outboxTable(), ['outbox_pending', 'outbox_suspects', 'outbox_keys', 'outbox_in_flight']],
  [
    'webhook_outbox',
    webhookTable(),
    ['webhook_outbox_pending', 'webhook_outbox_suspects', 'webhook_outbox_keys', 'webhook_outbox_in_flight'],
  ],
  ['sync_checkpoints', chunkTable(), ['sync_checkpoints_open', 'sync_checkpoints_suspects']],
])('the backlog of %s is read along its indexes, in their order', async (_, table, indexes) => {
  const inspection = await inspectTable(db, table)
  if (inspection.found !== 'table') throw new Error('no table')
  const { text, parameters } = backlog(tableSql(table, inspection.shape), inspection.shape)
  const values: Readonly<Record<string, number>> = { bucket: 0, scanned: 1, limit: 100, steps: 10 }
  const nodes = await db.transaction(async (tx) => {
    await tx.query({ text: 'set local enable_seqscan = off' })
    await tx.query({ text: 'set local enable_bitmapscan = off' })
    const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
      text: `explain (format json) ${text}`,
      values: parameters.map((name) => values[name]),
    })
    return nodesOf(rows[0]?.['QUERY PLAN'][0].Plan ?? { 'Node Type': 'nothing' })
  })
  const used = new Set(nodes.flatMap((node) => node['Index Name'] ?? []))
  expect([...used].toSorted()).toEqual(indexes.toSorted())
  // Only what was found is sorted.
  const scans = nodes.find((node) => node['Node Type'] === 'Limit')
  expect(scans && nodesOf(scans).map((node) => node['Node Type'])).not.toContain('Sort')
})
