import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { events, specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { startProxy, type Proxy } from '../../test/support/proxy.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { rowId, type Lease } from './lease.ts'
import { inspectTable } from './inspect.ts'
import { leaseStatements } from './sql.ts'
import { openLeaseStore, type LeaseStore } from './store.ts'
import { leaseTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const subject = subjectOf(db, events)
const LEASE = { leaseMs: 60_000 }

interface EventRow {
  readonly id: string
  readonly attempts: number
  readonly last_error: string | null
}

async function openStore(owner = 'worker', on: Database = db): Promise<LeaseStore<EventRow>> {
  return openLeaseStore<EventRow>(on, events.table, { owner })
}

async function claimed(store: LeaseStore<EventRow>, limit: number): Promise<Lease[]> {
  return (await store.claim({ limit, ...LEASE })).claimed.map(({ lease }) => lease)
}

beforeAll(async () => subject.create())
beforeEach(async () => subject.empty())
afterAll(async () => db.close())

describe('one statement is one round trip', () => {
  let proxy: Proxy
  let counted: Database
  beforeAll(async () => {
    proxy = await startProxy(url)
    counted = openDatabase({ url: proxy.url, maxConnections: 1 })
  })
  afterAll(async () => {
    await counted.close()
    await proxy.close()
  })

  async function roundTrips(work: () => Promise<unknown>): Promise<number> {
    const before = proxy.roundTrips
    await work()
    return proxy.roundTrips - before
  }

  it('claim, renew, settle, release and reap of 200 rows take one round trip each', async () => {
    await subject.insert(200)
    const store = await openStore('worker', counted)
    let leases: Lease[] = []
    expect(await roundTrips(async () => (leases = await claimed(store, 200)))).toBe(1)
    expect(leases).toHaveLength(200)
    expect(await roundTrips(async () => store.renew(leases, 60_000))).toBe(1)
    const args = leases.map(({ id }) => ({ error: `row ${id}`, delay_ms: 0 }))
    expect(await roundTrips(async () => store.settle('done', leases.slice(0, 100)))).toBe(1)
    expect(
      await roundTrips(async () =>
        store.settle('retry', leases.slice(100, 150), { args: args.slice(100, 150) }),
      ),
    ).toBe(1)
    expect(await roundTrips(async () => store.release(leases.slice(150)))).toBe(1)
    expect(await roundTrips(async () => store.reap())).toBe(1)
  })

  it('an empty batch takes none', async () => {
    const store = await openStore('worker', counted)
    const sent = await roundTrips(async () => {
      await store.renew([], 60_000)
      await store.settle('done', [])
      await store.release([])
    })
    expect(sent).toBe(0)
  })
})

it('the arguments of an outcome reach their own row', async () => {
  await subject.insert(3)
  const store = await openStore()
  const leases = await claimed(store, 3)
  const errors = ['plain', `"quoted", {braces} and 'more' \\ \n`, null]
  await store.settle('retry', leases, { args: errors.map((error) => ({ error, delay_ms: 0 })) })
  const { rows } = await db.query<EventRow>({ text: 'select * from public.events order by id' })
  expect(rows.map((row) => row.last_error)).toEqual(errors)
  expect(rows.map((row) => row.attempts)).toEqual([1, 1, 1])
})

it('a lease that is in a batch twice, and an older one beside it, settle the row once', async () => {
  await subject.insert(1)
  const store = await openStore()
  const [old] = await claimed(store, 1)
  await store.release(old === undefined ? [] : [old])
  const [lease] = await claimed(store, 1)
  if (old === undefined || lease === undefined) throw new Error('nothing was claimed')
  const copy = { ...lease }
  const settled = await store.settle('done', [old, lease, copy])
  expect(settled.ended).toEqual([lease])
  expect(settled.fencedOff).toEqual([old, copy])
})

it('a settlement for an id that never existed changes nothing and says so', async () => {
  const store = await openStore()
  const ghost: Lease = { id: '9000000000000000000', owner: 'worker', token: 1n, until: new Date() }
  expect(await store.settle('done', [ghost])).toEqual({ ended: [], fencedOff: [ghost] })
  expect((await store.renew([ghost], 60_000)).lost).toEqual([ghost])
  expect((await store.release([ghost])).fencedOff).toEqual([ghost])
})

it('the largest possible token is only a number', async () => {
  await subject.insert(1)
  await db.query({ text: 'update public.events set lock_token = 9223372036854775806' })
  const store = await openStore()
  const leases = await claimed(store, 1)
  expect(leases.map(({ token }) => token)).toEqual([9_223_372_036_854_775_807n])
  expect((await store.settle('done', leases)).ended).toEqual(leases)
})

it('D8: a worker whose clock stands still gets its lease by the database clock, and trusts it by its own', async () => {
  const [id] = await subject.insert(1)
  const store = await openLeaseStore(db, events.table, {
    owner: 'worker',
    clock: { monotonicNow: () => -1_000_000 },
  })
  const claim = await store.claim({ limit: 1, leaseMs: 60_000 })
  expect(claim.trustedUntil).toBe(-1_000_000 + 60_000 - 1_000)
  const { rows } = await db.query<{ id: string }>({
    text: `select id from public.events where locked_until between now() + interval '50 seconds' and now() + interval '60 seconds'`,
  })
  expect(rows).toEqual([{ id }])
  const renewal = await store.renew(
    claim.claimed.map(({ lease }) => lease),
    1_000,
  )
  expect(renewal.trustedUntil).toBe(-1_000_000 + 1_000 - 50)
})

it('D1: the states are the table’s own; the kernel knows none of their names', async () => {
  const states = /pending|claimed|processing|completed|published|delivered|failed|dead/i
  for (const { table, bucket } of specimens.filter(({ name }) => name === 'unusual quoted names')) {
    const odd = subjectOf(db, specimens.find((specimen) => specimen.table === table) ?? events)
    await odd.create()
    await odd.insert(1)
    const inspection = await inspectTable(db, table)
    if (inspection.found !== 'table') throw new Error('the table is missing')
    const { claim, renew, release, reap, settle } = leaseStatements(table, inspection.shape)
    for (const { text } of [claim, renew, release, reap, ...settle.values()]) expect(text).not.toMatch(states)
    expect(bucket).toBeUndefined()
  }
})

it('RULE-020-040: every row lock of every statement skips what is locked', async () => {
  const inspection = await inspectTable(db, events.table)
  if (inspection.found !== 'table') throw new Error('the table is missing')
  const statements = leaseStatements(events.table, inspection.shape)
  const { claim, claimFrom, renew, release, reap, settle } = statements
  const texts = [claim, claimFrom, renew, release, reap, ...settle.values()].map(
    (statement) => statement?.text ?? '',
  )
  const locks = texts.flatMap((text) => text.match(/\bfor (?:no key )?(?:update|share).*$/gim) ?? [])
  expect(locks.toSorted()).toEqual([
    'for no key update skip locked',
    'for update skip locked',
    'for update skip locked',
    'for update skip locked',
  ])
  expect(claim.text).toContain('for update skip locked')
})

it('D7: a chunk is known by its whole key: the same hash in another matrix is left alone', async () => {
  await db.query({
    text: `create table public.d7 (matrix text, hash text, done boolean not null default false, owner text, until timestamptz,
      token bigint not null default 0, primary key (matrix, hash));
      create index on public.d7 (matrix, hash) where not done;
      create index on public.d7 (matrix, hash) where owner is not null;
      insert into public.d7 (matrix, hash) values ('a', 'h1'), ('a', 'h2'), ('b', 'h1'), ('b', 'h2')`,
  })
  const table = leaseTable({
    table: 'public.d7',
    id: ['matrix', 'hash'],
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'not done',
    order: ['matrix', 'hash'],
    onExpiry: 'claimable',
    outcomes: { done: { set: { done: 'true' } } },
  })
  const store = await openLeaseStore(db, table, { owner: 'worker' })
  const { claimed } = await store.claim({ limit: 4, ...LEASE })
  const wanted = new Set([rowId('a', 'h1'), rowId('b', 'h2')])
  const leases = claimed.map(({ lease }) => lease).filter(({ id }) => wanted.has(id))
  expect((await store.settle('done', leases)).ended).toHaveLength(2)
  const { rows } = await db.query({ text: 'select matrix, hash from public.d7 where done order by 1, 2' })
  expect(rows).toEqual([
    { matrix: 'a', hash: 'h1' },
    { matrix: 'b', hash: 'h2' },
  ])
})

it('D4: a row whose expiry would be one too many is no longer claimed, only reaped', async () => {
  await db.query({
    text: `create table public.poison (id int primary key, attempts int not null default 0, status text not null default 'open',
      owner text, until timestamptz, token bigint not null default 0);
      create index on public.poison (id) where status = 'open';
      create index on public.poison (id) where owner is not null;
      insert into public.poison (id) values (1)`,
  })
  const table = leaseTable({
    table: 'public.poison',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'open'",
    order: ['id'],
    onExpiry: 'claimable',
    attempts: 'attempts',
    exhausted: 'attempts + 1 >= 3',
    writes: { reap: { status: "case when attempts + 1 >= 3 then 'dead' else status end" } },
    outcomes: { done: { set: { status: "'done'" } } },
  })
  const store = await openLeaseStore(db, table, { owner: 'worker' })
  const claims: number[] = []
  for (let crash = 0; crash < 4; crash += 1) {
    claims.push((await store.claim({ limit: 1, ...LEASE })).claimed.length)
    await db.query({
      text: "update public.poison set until = now() - interval '1 second' where until is not null",
    })
  }
  expect(claims).toEqual([1, 1, 1, 0])
  expect(await store.reap()).toHaveLength(1)
  const { rows } = await db.query({ text: 'select status, attempts from public.poison' })
  expect(rows).toEqual([{ status: 'dead', attempts: 3 }])
})

describe('bad input is refused by name and changes nothing', () => {
  it.each([0, -1, 1.5, Number.NaN, 10_001])('limit %d', async (limit) => {
    await subject.insert(1)
    const store = await openStore()
    await expect(store.claim({ limit, ...LEASE })).rejects.toThrow(`limit is ${limit}`)
    await expect(store.reap({ limit })).rejects.toThrow(`limit is ${limit}`)
    expect(await claimed(store, 1)).toHaveLength(1)
  })

  it.each([0, -1, Number.NaN, Number.POSITIVE_INFINITY])('leaseMs %d', async (leaseMs) => {
    const store = await openStore()
    await expect(store.claim({ limit: 1, leaseMs })).rejects.toThrow(`leaseMs is ${leaseMs}`)
    await expect(store.renew([], leaseMs)).rejects.toThrow(`leaseMs is ${leaseMs}`)
  })

  it('an outcome that the table does not have', async () => {
    const store = await openStore()
    await expect(store.settle('vanished', [])).rejects.toThrow(
      'vanished is not an outcome of public.events: it has done, retry',
    )
  })

  it('an id of another shape than the key', async () => {
    const chunks = specimens.find(({ name }) => name === 'composite key with bucket')
    if (chunks === undefined) throw new Error('the specimen is missing')
    await subjectOf(db, chunks).create()
    const store = await openLeaseStore(db, chunks.table, { owner: 'worker', bucket: 3 })
    const lease: Lease = { id: '["only one"]', owner: 'worker', token: 1n, until: new Date() }
    await expect(store.settle('done', [lease])).rejects.toThrow('its key has 2 columns')
  })
})
