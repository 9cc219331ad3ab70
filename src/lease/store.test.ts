import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { chunks, events, odd, specimens, subjectOf, tasks } from '../../test/support/lease-tables.ts'
import { startProxy, type Proxy } from '../../test/support/proxy.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { rowId, type Lease } from './lease.ts'
import { inspectTable } from './inspect.ts'
import { allStatements, leaseStatements } from './statements.ts'
import { type ClaimRoom, openLeaseStore, type LeaseStore } from './store.ts'
import { leaseTable } from './declaration.ts'

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

function room(rows: number): ClaimRoom {
  return { rows, bytes: Number.POSITIVE_INFINITY, ...LEASE }
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

  it('a worker settles rows with several outcomes and claims the next ones in one round trip', async () => {
    await subject.insert(300)
    const store = await openStore('worker', counted)
    const leases = await claimed(store, 200)
    const cycle = store.cycle()
    const retries = leases.slice(100)
    const settlements = [
      { outcome: 'done', leases: leases.slice(0, 100) },
      { outcome: 'retry', leases: retries, args: retries.map(() => ({ error: 'no', delay_ms: 3_600_000 })) },
    ]
    const sent = await roundTrips(async () => {
      const { ended, claim } = await cycle.send({ settlements, room: room(100) })
      expect([ended.map((each) => each.ended.length), claim?.claimed.length]).toEqual([[100, 100], 100])
    })
    expect(sent).toBe(1)
  })

  it('an empty batch takes no round trip', async () => {
    const store = await openStore('worker', counted)
    const sent = await roundTrips(async () => {
      await store.renew([], 60_000)
      await store.settle('done', [])
      await store.release([])
    })
    expect(sent).toBe(0)
  })
})

it('a pipeline ends one batch and takes the next, and says what was fenced off', async () => {
  await subject.insert(6)
  const store = await openStore()
  const cycle = store.cycle()
  const first = await claimed(store, 3)
  const [early] = first
  await store.settle('done', early === undefined ? [] : [early])
  const next = await cycle.send({ settlements: [{ outcome: 'done', leases: first }], room: room(3) })
  expect(next.ended).toEqual([{ ended: first.slice(1), fencedOff: [early], busy: [], refused: [] }])
  const second = next.claim?.claimed.map(({ lease }) => lease) ?? []
  expect(second).toHaveLength(3)
  const last = await cycle.send({ settlements: [{ outcome: 'done', leases: second }], room: room(5) })
  expect(last).toMatchObject({ ended: [{ ended: second }], claim: { claimed: [], more: false } })
  const { rows } = await db.query({ text: "select from public.events where status = 'PUBLISHED'" })
  expect(rows).toHaveLength(6)
})

it('a pipeline reports a row that another session has locked as busy, and claims all the same', async () => {
  await subject.insert(3)
  const store = await openStore()
  const leases = await claimed(store, 2)
  await db.transaction(async (tx) => {
    await tx.query({ text: 'select from public.events where id = $1 for update', values: [leases[0]?.id] })
    const settlements = [{ outcome: 'done', leases }]
    const { ended, claim } = await store.cycle().send({ settlements, room: room(5) })
    expect(ended).toEqual([{ ended: [leases[1]], busy: [leases[0]], fencedOff: [], refused: [] }])
    expect(claim?.claimed).toHaveLength(1)
  })
})

it('a pipeline keeps what it settled and claimed if the connection breaks before it is known which rows are locked', async () => {
  await subject.insert(3)
  const proxy = await startProxy(url)
  const fragile = openDatabase({ url: proxy.url, maxConnections: 1 })
  const store = await openStore('worker', fragile)
  const leases = await claimed(store, 2)
  proxy.cutAt('leasehold:held')
  await db.transaction(async (tx) => {
    await tx.query({ text: 'select from public.events where id = $1 for update', values: [leases[0]?.id] })
    const settlements = [{ outcome: 'done', leases }]
    const { ended, claim } = await store.cycle().send({ settlements, room: room(5) })
    const unanswered = { leases: [leases[0]], error: { code: 'DATABASE_UNAVAILABLE' } }
    expect(ended).toMatchObject([{ ended: [leases[1]], busy: [leases[0]], fencedOff: [], unanswered }])
    expect(claim?.claimed).toHaveLength(1)
  })
  await fragile.close()
  await proxy.close()
})

it('a release with a delay makes the row wait, and a plain one does not', async () => {
  await subject.insert(2)
  const store = await openStore()
  const [now, later] = await claimed(store, 2)
  if (now === undefined || later === undefined) throw new Error('nothing was claimed')
  await store.release([now])
  await store.release([later], 60_000)
  expect((await claimed(store, 2)).map(({ id }) => id)).toEqual([now.id])
})

it('what an owner holds is found by its whole name, also where the token is carried inside it', async () => {
  await db.query({ text: 'drop table if exists public.tasks' })
  await subjectOf(db, tasks).create()
  await subjectOf(db, tasks).insert(1)
  const alive = await openLeaseStore(db, tasks.table, { owner: 'host#2' })
  await alive.claim({ limit: 1, ...LEASE })
  expect(await alive.reap({ ownedBy: 'host' })).toEqual([])
  expect(await alive.reap({ ownedBy: 'host#2' })).toMatchObject([{ owner: 'host#2', staleMs: 0 }])
  await db.query({ text: 'drop table public.tasks' })
})

it('all that one owner holds can be reaped at once, and nothing of its neighbours', async () => {
  for (const specimen of [events, tasks]) {
    const tested = subjectOf(db, specimen)
    if (specimen !== events) await tested.create()
    await tested.insert(3)
    const open = async (owner: string): Promise<LeaseStore> => openLeaseStore(db, specimen.table, { owner })
    const [dead, alive] = [await open('worker-1'), await open('worker-11')]
    const held = (await dead.claim({ limit: 2, ...LEASE })).claimed.map(({ lease }) => lease)
    const own = (await alive.claim({ limit: 1, ...LEASE })).claimed.map(({ lease }) => lease)
    const reaped = await alive.reap({ ownedBy: 'worker-1' })
    expect(reaped.map(({ id, owner, token }) => ({ id, owner, token }))).toEqual(
      held.map(({ id, owner, token }) => ({ id, owner, token })),
    )
    expect((await dead.renew(held, 60_000)).lost).toEqual(held)
    expect((await alive.renew(own, 60_000)).renewed).toEqual(own)
  }
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

it('no argument of one row keeps the batch from being settled', async () => {
  await db.query({
    text: `create table public.odd_args (id int primary key, done boolean not null default false, t text, b bytea, n numeric, at timestamptz,
      j jsonb, owner text, until timestamptz, token bigint not null default 0);
      create index on public.odd_args (id) where not done;
      create index on public.odd_args (id) where owner is not null;
      insert into public.odd_args (id) select generate_series(1, 3)`,
  })
  const table = leaseTable({
    table: 'public.odd_args',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'not done',
    order: ['id'],
    onExpiry: 'claimable',
    outcomes: {
      done: {
        set: { done: 'true', t: '$t', b: '$b', n: '$n', at: '$at', j: '$j' },
        args: { t: 'text', b: 'bytea', n: 'numeric', at: 'timestamptz', j: 'jsonb' },
      },
    },
  })
  const store = await openLeaseStore(db, table, { owner: 'worker' })
  const leases = (await store.claim({ limit: 3, ...LEASE })).claimed.map(({ lease }) => lease)
  const at = new Date(1_000)
  const args = [
    { t: 'boom 😀'.slice(0, 6), n: 2n ** 63n, j: { deep: ['\0'] }, b: null, at: null },
    { t: 'nul \0 inside', n: Number.NaN, b: Buffer.from([0, 255]), at, j: null },
    { t: null, n: null, b: null, at: null, j: null },
  ]
  await expect(store.settle('done', leases)).rejects.toThrow(
    'the outcome done needs the argument t, and row 1 has none',
  )
  await expect(store.settle('done', leases, { args: [{ ...args[0], tt: 1 }] })).rejects.toThrow(
    'row 2 has none',
  )
  expect((await store.settle('done', leases, { args })).ended).toEqual(leases)
  const { rows } = await db.query({ text: 'select t, b, n, at, j from public.odd_args order by id' })
  expect(rows).toEqual([
    { t: 'boom \uFFFD', n: '9223372036854775808', j: { deep: ['\uFFFD'] }, b: null, at: null },
    { t: 'nul \uFFFD inside', n: 'NaN', b: Buffer.from([0, 255]), at, j: null },
    { t: null, b: null, n: null, at: null, j: null },
  ])
})

it('RULE-020-001: a leased row is not claimed, even where the declaration forgot to make it unclaimable', async () => {
  await db.query({
    text: `create table public.forgetful (id int primary key, status text not null default 'open', owner text, until timestamptz,
      token bigint not null default 0);
      create index on public.forgetful (id) where status = 'open';
      create index on public.forgetful (id) where owner is not null;
      insert into public.forgetful (id) values (1)`,
  })
  const table = leaseTable({
    table: 'public.forgetful',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'open'",
    order: ['id'],
    onExpiry: 'reap',
    outcomes: { done: { set: { status: "'done'" } } },
  })
  const [a, b] = [
    await openLeaseStore(db, table, { owner: 'a' }),
    await openLeaseStore(db, table, { owner: 'b' }),
  ]
  expect((await a.claim({ limit: 1, ...LEASE })).claimed).toHaveLength(1)
  expect((await b.claim({ limit: 1, ...LEASE })).claimed).toEqual([])
})

it('a pipeline settles a row whose lease is over and does not claim it', async () => {
  await subjectOf(db, chunks).create()
  await subjectOf(db, chunks).insert(3)
  const store = await openLeaseStore(db, chunks.table, { owner: 'worker', bucket: 3 })
  const leases = (await store.claim({ limit: 2, ...LEASE })).claimed.map(({ lease }) => lease)
  await db.query({
    text: "update public.chunks set until = now() - interval '1 second' where until is not null",
  })
  const { ended, claim } = await store
    .cycle()
    .send({ settlements: [{ outcome: 'done', leases }], room: room(3) })
  expect(ended).toMatchObject([{ ended: leases }])
  expect(claim?.claimed).toHaveLength(1)
  expect(leases.map(({ id }) => id)).not.toContain(claim?.claimed[0]?.lease.id)
})

it('a lease that is in a batch twice, together with an older one, settles its row once', async () => {
  await subject.insert(1)
  const store = await openStore()
  const [old] = await claimed(store, 1)
  await store.release(old === undefined ? [] : [old])
  const [lease] = await claimed(store, 1)
  if (old === undefined || lease === undefined) throw new Error('nothing was claimed')
  const copy = { ...lease }
  const settled = await store.settle('done', [old, lease, copy])
  expect(settled.ended).toEqual([lease, copy])
  expect(settled.fencedOff).toEqual([old])
})

it('a settlement for an id that never existed changes nothing and says so', async () => {
  const store = await openStore()
  const ghost: Lease = { id: '9000000000000000000', owner: 'worker', token: 1n, until: new Date() }
  expect(await store.settle('done', [ghost])).toEqual({
    ended: [],
    fencedOff: [ghost],
    busy: [],
    refused: [],
  })
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

it('D8: a worker whose clock has stopped gets its lease by the database clock, and trusts it by its own', async () => {
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
  await subjectOf(db, odd).create()
  const inspection = await inspectTable(db, odd.table)
  if (inspection.found !== 'table') throw new Error('the table is missing')
  const texts = allStatements(leaseStatements(odd.table, inspection.shape)).map(({ text }) => text)
  const literals = new Set(texts.flatMap((text) => text.match(/= '[a-z]{4,}'/gi) ?? []))
  expect(literals).toEqual(new Set(["= 'taken'", "= 'open'", "= 'closed'"]))
})

it('RULE-020-040: every row lock of every statement skips what is locked', async () => {
  const inspection = await inspectTable(db, events.table)
  if (inspection.found !== 'table') throw new Error('the table is missing')
  const statements = leaseStatements(events.table, inspection.shape)
  const texts = allStatements(statements).map(({ text }) => text)
  const locks = texts.flatMap((text) => text.match(/\bfor (?:no key )?(?:update|share).*$/gim) ?? [])
  expect(new Set(locks)).toEqual(new Set(['for update skip locked', 'for no key update skip locked']))
  for (const { claim } of statements.scans.values()) expect(claim.text).toContain('for update skip locked')
})

it('D7: a chunk is known by its whole id: the same hash in another matrix is not changed', async () => {
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

it('rows of two buckets that have the same id are renewed, settled and released each by itself', async () => {
  await db.query({
    text: `create table public.twins (bucket int not null, id bigint not null, open boolean not null default true,
      owner text, until timestamptz, token bigint not null default 0, primary key (bucket, id));
      create index on public.twins (bucket, id) where open;
      create index on public.twins (bucket) where owner is not null;
      insert into public.twins (bucket, id, token) values (1, 5, 0), (2, 5, 0), (3, 5, 7)`,
  })
  const table = leaseTable({
    table: 'public.twins',
    id: ['id'],
    bucket: 'bucket',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'open',
    order: ['id'],
    onExpiry: 'claimable',
    outcomes: { done: { set: { open: 'false' } } },
  })
  const store = await openLeaseStore(db, table, { owner: 'worker', bucket: 'all' })
  const leases: Lease[] = []
  for (const bucket of [1, 2, 3]) {
    const { claimed } = await store.claim({ limit: 1, leaseMs: 1_000, bucket })
    leases.push(...claimed.map(({ lease }) => lease))
  }
  expect((await store.renew(leases, 7_200_000)).renewed).toEqual(leases)
  const read = async () =>
    (
      await db.query({
        text: `select bucket, open, until > now() + interval '1 hour' as renewed from public.twins order by bucket`,
      })
    ).rows
  expect(await read()).toEqual([1, 2, 3].map((bucket) => ({ bucket, open: true, renewed: true })))
  const [one, two, three] = leases as [Lease, Lease, Lease]
  expect(await store.release([one])).toMatchObject({ ended: [one] })
  expect(await store.settle('done', [one, two, three])).toMatchObject({
    ended: [two, three],
    fencedOff: [one],
  })
  expect(await read()).toEqual([
    { bucket: 1, open: true, renewed: null },
    { bucket: 2, open: false, renewed: null },
    { bucket: 3, open: false, renewed: null },
  ])
})

it('D7: a claim and a renewal, too, touch only the rows they name, in their own bucket', async () => {
  await db.query({
    text: `create table public.crossed (bucket int not null, a text not null, b text not null, due int not null, open boolean not null default true,
      owner text, until timestamptz, token bigint not null default 0, primary key (bucket, a, b));
      create index on public.crossed (bucket, due, a, b) where open;
      create index on public.crossed (bucket, a, b) where owner is not null;
      insert into public.crossed (bucket, a, b, due) values
        (0, 'x', '1', 1), (0, 'y', '2', 2), (0, 'x', '2', 3), (0, 'y', '1', 4), (1, 'x', '1', 1), (1, 'y', '2', 2)`,
  })
  const table = leaseTable({
    table: 'public.crossed',
    id: ['a', 'b'],
    bucket: 'bucket',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'open',
    order: ['due', 'a', 'b'],
    onExpiry: 'claimable',
    outcomes: { done: { set: { open: 'false' } } },
  })
  const leased = async (): Promise<unknown[]> => {
    const text =
      "select bucket, a || b as row from public.crossed where until > now() + interval '1 hour' order by 1, 2"
    return (await db.query({ text })).rows
  }
  const store = await openLeaseStore(db, table, { owner: 'worker' })
  const { claimed: taken } = await store.claim({ limit: 2, leaseMs: 7_200_000 })
  expect(taken.map(({ lease }) => lease.id)).toEqual([rowId('x', '1'), rowId('y', '2')])
  const expected = [
    { bucket: 0, row: 'x1' },
    { bucket: 0, row: 'y2' },
  ]
  expect(await leased()).toEqual(expected)
  await store.claim({ limit: 5, ...LEASE })
  await store.renew(
    taken.map(({ lease }) => lease),
    10_000_000,
  )
  expect(await leased()).toEqual(expected)
})

it('WH-FR-002-AC1: a lease on a row that is no longer in its leased state is not renewed', async () => {
  await subject.insert(2)
  const store = await openStore()
  const [unchanged, changed] = await claimed(store, 2)
  await db.query({
    text: "update public.events set status = 'CANCELLED' where id = $1",
    values: [changed?.id],
  })
  const renewal = await store.renew(
    unchanged === undefined || changed === undefined ? [] : [unchanged, changed],
    60_000,
  )
  expect(renewal.renewed).toEqual([unchanged])
  expect(renewal.lost).toEqual([changed])
})

it('ids of fixed length, of bits and of awkward texts are told apart', async () => {
  for (const [type, keys] of [
    ['char(3)', ['A', 'AB', 'B']],
    ['bit(4)', ['0001', '0011', '1000']],
    ['text', ['__proto__', `it's "\\\n`, '{1,2}']],
    ['varchar(5)', ['a', 'ab', 'abc']],
    ['numeric', ['1.5', '15', '150']],
  ] as const) {
    await db.query({ text: 'drop table if exists public.keyed' })
    await db.query({
      text: `create table public.keyed (id ${type} primary key, note text, owner text, until timestamptz, token bigint);
        create index on public.keyed (id) where note is null;
        create index on public.keyed (id) where owner is not null`,
    })
    for (const key of keys)
      await db.query({ text: `insert into public.keyed (id) values ($1)`, values: [key] })
    const table = leaseTable({
      table: 'public.keyed',
      id: 'id',
      lease: { owner: 'owner', until: 'until', token: 'token' },
      claimable: 'note is null',
      order: ['id'],
      onExpiry: 'claimable',
      outcomes: { done: { set: { note: '$note' }, args: { note: 'text' } } },
    })
    const store = await openLeaseStore(db, table, { owner: 'worker' })
    const leases = (await store.claim({ limit: 3, ...LEASE })).claimed.map(({ lease }) => lease)
    expect((await store.renew(leases, 60_000)).renewed, type).toEqual(leases)
    const second = leases.slice(1, 2)
    const settled = await store.settle('done', second, {
      args: second.map(({ id }) => ({ note: `for ${id}` })),
    })
    expect(settled.ended, type).toEqual(second)
    const { rows } = await db.query<{ id: string; note: string }>({
      text: 'select id::text as id, note from public.keyed where note is not null',
    })
    expect(rows, type).toEqual(second.map(({ id }) => ({ id, note: `for ${id}` })))
  }
})

it('rows that a trigger keeps from being claimed do not hide the others', async () => {
  await db.query({
    text: `create table public.triggered (id int primary key, done boolean not null default false, attempts int, owner text, until timestamptz, token bigint);
      create index on public.triggered (id) where not done;
      create index on public.triggered (id) where owner is not null;
      create function public.spare_first() returns trigger language plpgsql as
        $$ begin if new.id = 1 and new.owner is not null then return null; end if; return new; end $$;
      create trigger spare_first before update on public.triggered for each row execute function public.spare_first();
      insert into public.triggered (id) select generate_series(1, 5)`,
  })
  const table = leaseTable({
    table: 'public.triggered',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'not done',
    onExpiry: 'reap',
    attempts: { expiries: false, error: false },
    outcomes: { done: { done: 'true' } },
  })
  const store = await openLeaseStore(db, table, { owner: 'worker' })
  const first = (await store.claim({ limit: 3, ...LEASE })).claimed.map(({ lease }) => lease)
  expect(first.map(({ id }) => id)).toEqual(['2', '3'])
  const settlements = [{ outcome: 'done' as const, leases: first }]
  const { ended, claim: next } = await store.cycle().send({ settlements, room: room(5) })
  expect(ended).toMatchObject([{ ended: first }])
  expect(next?.claimed.map(({ lease }) => lease.id)).toEqual(['4', '5'])
  await db.query({ text: "update public.triggered set until = now() - interval '1 second' where id = 4" })
  await store.reap()
  await db.query({ text: 'update public.triggered set owner = null where id = 5' })
  const { rows } = await db.query({ text: 'select id, attempts from public.triggered where id = 4' })
  expect(rows).toEqual([{ id: 4, attempts: 1 }])
  const rest = (await store.claim({ limit: 5, ...LEASE })).claimed.map(({ lease }) => lease.id)
  expect(rest).toEqual(['4', '5'])
})

it('D4: a row whose expiry would be one too many is dead, and not claimed', async () => {
  await db.query({
    text: `create table public.poison (id int primary key, attempts int not null default 0, status text not null default 'open',
      owner text, until timestamptz, token bigint not null default 0);
      create index on public.poison (id) where status = 'open';
      create index on public.poison (id) where owner is not null;
      insert into public.poison (id) values (1)`,
  })
  const table = leaseTable({
    table: 'public.poison',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'open'",
    attempts: { max: 3, expiries: false, error: false },
    outcomes: { done: { status: "'done'" }, dead: { status: "'dead'" } },
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
  const { rows } = await db.query({ text: 'select status, attempts from public.poison' })
  expect(rows).toEqual([{ status: 'dead', attempts: 3 }])
})

describe('bad input is refused by name and changes nothing', () => {
  it.each([0, -1, 1.5, Number.NaN, 10_001])('a limit of %d is refused', async (limit) => {
    await subject.insert(1)
    const store = await openStore()
    await expect(store.claim({ limit, ...LEASE })).rejects.toThrow(`limit is ${limit}`)
    await expect(store.reap({ limit })).rejects.toThrow(`limit is ${limit}`)
    expect(await claimed(store, 1)).toHaveLength(1)
  })

  it.each([0, -1, Number.NaN, Number.POSITIVE_INFINITY])('a lease of %d ms is refused', async (leaseMs) => {
    const store = await openStore()
    await expect(store.claim({ limit: 1, leaseMs })).rejects.toThrow(`leaseMs is ${leaseMs}`)
    await expect(store.renew([], leaseMs)).rejects.toThrow(`leaseMs is ${leaseMs}`)
  })

  it('an owner, a bucket and a delay that cannot be are refused', async () => {
    await expect(openStore('nul \0')).rejects.toThrow('owner is')
    await expect(openLeaseStore(db, events.table, { owner: 'worker', bucket: 1.5 })).rejects.toThrow(
      'bucket is 1.5',
    )
    const store = await openStore()
    await expect(store.release([], Number.NaN)).rejects.toThrow('delayMs is NaN')
    await expect(store.claim({ limit: 1, leaseMs: 1e18 })).rejects.toThrow('leaseMs is 1000000000000000000')
  })

  it('an outcome that the table does not have is refused', async () => {
    const store = await openStore()
    await expect(store.settle('vanished', [])).rejects.toThrow(
      'vanished is not an outcome of public.events: it has done, retry',
    )
  })

  it('a row id with another number of columns is refused', async () => {
    const store = await openLeaseStore(db, chunks.table, { owner: 'worker', bucket: 3 })
    const lease: Lease = { id: '["only one"]', owner: 'worker', token: 1n, until: new Date() }
    await expect(store.settle('done', [lease])).rejects.toThrow('its id has 2 columns')
  })
})

it.each(specimens)(
  'D12: on $name, a lease changes nothing of another row that came to the id of its own',
  async (specimen) => {
    const { table, bucket = 0, groups, final } = specimen
    const own = subjectOf(db, specimen)
    const target = quoteQualified(table.schema, table.name)
    if (specimen === odd) await db.query({ text: 'drop schema if exists "Odd ""Schema"".x" cascade' })
    await db.query({ text: `drop table if exists ${target}` })
    await own.create()
    await own.insert(3)
    await db.query({ text: `drop table if exists public.dump; create table public.dump as table ${target}` })
    const store = await openLeaseStore(db, table, { owner: 'worker', bucket })
    const claim = async (): Promise<Lease[]> => {
      const ofGroups = groups === undefined ? {} : { groups: groups.map((group) => ({ group, room: 10 })) }
      return (await store.claim({ limit: 10, ...LEASE, ...ofGroups })).claimed.map(({ lease }) => lease)
    }
    const old = await claim()
    // As pg_restore --clean leaves it, while the worker lives on.
    await db.query({
      text: `delete from ${target}; insert into ${target} overriding system value table public.dump`,
    })
    const current = await claim()
    expect(current.map(({ id }) => id).sort()).toEqual(old.map(({ id }) => id).sort())
    const args = old.map(() => final.args ?? {})
    expect((await store.renew(old, 60_000)).renewed).toEqual([])
    expect((await store.release(old)).ended).toEqual([])
    const settled = await store.settle(final.outcome, old, { args })
    expect([settled.ended, settled.fencedOff.length]).toEqual([[], old.length])
    expect((await store.settle(final.outcome, current, { args })).ended).toHaveLength(current.length)
  },
)
