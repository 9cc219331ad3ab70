/** One bad row stops nobody: claim, renew, settle, release and reap go on without it, and it is reported. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { ordered, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import type { DataErrorReport } from './data-errors.ts'
import { leaseTable, type LeaseTableDeclaration } from './declaration.ts'
import type { Lease } from './lease.ts'
import { type LeaseStore, openLeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const LEASE = { leaseMs: 60_000 }
afterAll(async () => db.close())

const declaration = {
  table: 'public.visits',
  lease: { owner: 'owner', until: 'until', token: 'token' },
  claimable: "status = 'open'",
  attempts: { expiries: false, error: false },
  outcomes: {
    done: { status: "'done'" },
    noted: { set: { status: "'done'", rating: '$rating' }, args: { rating: 'int' } },
  },
} as const satisfies LeaseTableDeclaration

/** A table of a user's, with a constraint that the kernel knows nothing of. */
async function create(constraint: string): Promise<void> {
  await db.query({
    text: `drop table if exists public.visits;
      create table public.visits (id int primary key, status text not null default 'open', attempts int not null default 0,
        rating int, owner text, until timestamptz, token bigint not null default 0${constraint});
      create index on public.visits (id) where status = 'open';
      create index on public.visits (id) where owner is not null;
      insert into public.visits (id) select generate_series(1, 9)`,
  })
}

async function change(set: string, where: string): Promise<void> {
  await db.query({ text: `update public.visits set ${set} where ${where}` })
}

interface Subject {
  readonly store: LeaseStore
  readonly reports: DataErrorReport[]
  /** The clock of the store. */
  readonly pass: (ms: number) => void
}

async function openStore(changes: Partial<LeaseTableDeclaration> = {}): Promise<Subject> {
  const reports: DataErrorReport[] = []
  let now = 0
  const store = await openLeaseStore(db, leaseTable<string>({ ...declaration, ...changes }), {
    owner: 'worker',
    clock: { monotonicNow: () => now },
    onDataError: (report) => reports.push(report),
  })
  return { store, reports, pass: (ms) => (now += ms) }
}

async function claim({ store }: Subject, limit = 100): Promise<Lease[]> {
  return (await store.claim({ limit, ...LEASE })).claimed.map(({ lease }) => lease)
}

const ids = (leases: readonly { readonly id: string }[]): string[] => leases.map(({ id }) => id).toSorted()
const ALL = Array.from({ length: 9 }, (_, n) => String(n + 1))
const BUT_5 = ALL.filter((id) => id !== '5')

describe.each([
  ['a user’s CHECK (attempts <= 5), and a row at 5', ', check (attempts <= 5)', '5', '23514'],
  ['a counter that cannot grow', '', '2147483647', '22003'],
])('%s', (_, constraint, attempts, code) => {
  beforeEach(async () => {
    await create(constraint)
    await change(`attempts = ${attempts}`, 'id = 5')
  })

  it('the row does not stop the claim of other expired rows, and is reported once per backoff step', async () => {
    const subject = await openStore()
    const { reports, pass } = subject
    expect(ids(await claim(subject))).toEqual(ALL)
    await change("until = now() - interval '1 second'", 'owner is not null')
    expect(ids(await claim(subject))).toEqual(BUT_5)
    expect(reports).toMatchObject([{ verb: 'reap', id: '5', error: { code }, retryInMs: 1_000 }])
    for (const [ms, count] of [
      [999, 1],
      [1, 2],
      [1_999, 2],
      [1, 3],
    ] as const) {
      pass(ms)
      expect(await claim(subject)).toEqual([])
      expect(reports).toHaveLength(count)
    }
    expect(reports.map(({ retryInMs }) => retryInMs)).toEqual([1_000, 2_000, 4_000])
    await change('attempts = 0', 'id = 5')
    pass(4_000)
    expect(ids(await claim(subject))).toEqual(['5'])
  })

  it('the row does not stop the claim of other rows in small batches', async () => {
    const subject = await openStore()
    await claim(subject)
    await change("until = now() - interval '1 second'", 'owner is not null')
    const seen: string[] = []
    for (let n = 0; n < 8; n += 1) seen.push(...ids(await claim(subject, 2)))
    expect(seen.toSorted()).toEqual(BUT_5)
    expect(subject.reports).toHaveLength(1)
  })

  it('the row does not stop the reaper', async () => {
    const subject = await openStore()
    const { store, reports, pass } = subject
    await claim(subject)
    await change("until = now() - interval '1 second'", 'owner is not null')
    expect(ids(await store.reap())).toEqual(BUT_5)
    expect(await store.reap()).toEqual([])
    expect(reports).toMatchObject([{ verb: 'reap', id: '5', error: { code }, retryInMs: 1_000 }])
    pass(1_000)
    expect(await store.reap({ ownedBy: 'worker' })).toEqual([])
    expect(reports).toHaveLength(2)
  })

  it('the settlement of the row is refused, and the others of the batch are settled', async () => {
    const subject = await openStore()
    const leases = await claim(subject)
    const settled = await subject.store.settle('retry', leases)
    expect(ids(settled.ended)).toEqual(BUT_5)
    expect(settled.refused).toMatchObject([{ lease: { id: '5' }, error: { code } }])
    expect([settled.busy, settled.fencedOff]).toEqual([[], []])
    expect((await subject.store.settle('done', [settled.refused[0]?.lease as Lease])).ended).toHaveLength(1)
  })
})

describe('a trigger that refuses a row', () => {
  beforeEach(async () => {
    await create('')
    await db.query({
      text: `create or replace function public.refuse_visit() returns trigger language plpgsql as
          $$ begin raise exception 'visit % is under review', new.id; end $$;
        create trigger refuse_visit before update on public.visits for each row
          when (new.id = 5 and new.rating is distinct from -1) execute function public.refuse_visit()`,
    })
  })

  it('the other rows are claimed', async () => {
    const subject = await openStore()
    expect(ids(await claim(subject))).toEqual(BUT_5)
    expect(subject.reports).toMatchObject([{ verb: 'claim', id: '5', error: { code: 'P0001' } }])
  })

  it('the other leases are renewed; that of the row is reported as busy, and ends', async () => {
    await change('rating = -1', 'id = 5')
    const subject = await openStore()
    const leases = await claim(subject)
    await db.query({
      text: 'alter table public.visits disable trigger refuse_visit; update public.visits set rating = 0; alter table public.visits enable trigger refuse_visit',
    })
    const renewal = await subject.store.renew(leases, 120_000)
    expect(ids(renewal.renewed)).toEqual(BUT_5)
    expect(ids(renewal.busy)).toEqual(['5'])
    expect(renewal.lost).toEqual([])
    expect(subject.reports).toMatchObject([{ verb: 'renew', id: '5', error: { code: 'P0001' } }])
  })

  it('the other rows are settled and released', async () => {
    await change('rating = -1', 'id = 5')
    const subject = await openStore()
    const leases = await claim(subject)
    await db.query({
      text: 'alter table public.visits disable trigger refuse_visit; update public.visits set rating = 0; alter table public.visits enable trigger refuse_visit',
    })
    const released = await subject.store.release(leases.slice(0, 6))
    expect(ids(released.ended)).toEqual(['1', '2', '3', '4', '6'])
    expect(ids(released.refused.map(({ lease }) => lease))).toEqual(['5'])
    const cycle = subject.store.cycle()
    const room = { rows: 4, bytes: Number.POSITIVE_INFINITY, ...LEASE }
    const both = await cycle.send({ settlements: [{ outcome: 'done', leases: leases.slice(4) }], room })
    const [rest] = both.ended
    expect(ids(rest?.ended ?? [])).toEqual(['7', '8', '9'])
    expect(ids(rest?.fencedOff ?? [])).toEqual(['6'])
    expect(ids(rest?.refused.map(({ lease }) => lease) ?? [])).toEqual(['5'])
    // The transaction of the pipeline was rolled back: the claim is made by the next one.
    expect(both.claim).toMatchObject({ claimed: [], drained: false })
    const { claim: next } = await cycle.send({ settlements: [], room })
    expect(next?.claimed.map(({ lease }) => lease.id)).toEqual(['1', '2', '3', '4'])
  })
})

it('an argument that its type does not take refuses its own row only', async () => {
  await create('')
  const subject = await openStore()
  const leases = await claim(subject)
  const args = leases.map(({ id }) => ({ rating: id === '5' ? 'five' : id }))
  const settled = await subject.store.settle('noted', leases, { args })
  expect(ids(settled.ended)).toEqual(BUT_5)
  expect(settled.refused).toMatchObject([{ lease: { id: '5' }, error: { code: '22P02' } }])
  const { rows } = await db.query<{ id: number; rating: number }>({
    text: 'select id, rating from public.visits where rating is not null',
  })
  expect(rows.every(({ id, rating }) => id === rating)).toBe(true)
})

it('in the caller’s transaction a data error is the caller’s', async () => {
  await create(', check (rating < 5)')
  const subject = await openStore()
  const leases = await claim(subject, 1)
  await expect(
    db.transaction(async (tx) => subject.store.settle('noted', leases, { args: [{ rating: 9 }], tx })),
  ).rejects.toMatchObject({ code: '23514' })
  expect((await subject.store.settle('done', leases)).ended).toHaveLength(1)
})

it('an error that is no data error is thrown, and excludes nothing', async () => {
  await create('')
  const subject = await openStore()
  await db.query({ text: 'alter table public.visits rename to moved' })
  await expect(claim(subject)).rejects.toMatchObject({ code: '42P01' })
  await db.query({ text: 'alter table public.moved rename to visits' })
  expect(await claim(subject)).toHaveLength(9)
  expect(subject.reports).toEqual([])
})

/** A store of an empty table with ordering keys. A row with the highest token there is stops a claim. */
async function openOrdered(): Promise<Pick<Subject, 'store' | 'reports'>> {
  await db.query({ text: 'drop table if exists public.ordered_jobs' })
  await subjectOf(db, ordered).create()
  const reports: DataErrorReport[] = []
  const store = await openLeaseStore(db, ordered.table, {
    owner: 'worker',
    onDataError: (report) => reports.push(report),
  })
  return { store, reports }
}

const STOPPING = '9223372036854775807'

it('the head that stops a claim by arrived keys is reported, also where ids have different lengths', async () => {
  const { store, reports } = await openOrdered()
  await db.query({
    text: `insert into public.ordered_jobs (id, customer, token) values (9, 'a', ${STOPPING}), (10, 'b', 0)`,
  })
  expect(ids((await store.claim({ limit: 1, ...LEASE })).claimed.map(({ lease }) => lease))).toEqual([])
  expect(reports).toMatchObject([{ verb: 'claim', id: '9', error: { code: '22003' } }])
  expect(ids((await store.claim({ limit: 1, ...LEASE })).claimed.map(({ lease }) => lease))).toEqual(['10'])
})

it('the head that stops a claim of the next rows of keys is reported, also where ids have different lengths', async () => {
  const { store, reports } = await openOrdered()
  // More keys than are claimed by their ids after a data error, and the row that causes it has the lowest id.
  await db.query({
    text: `insert into public.ordered_jobs (id, customer, token)
      select n, 'customer ' || n, 0 from generate_series(1, 60) as n
      union all select n, 'customer ' || n - 98, case when n = 99 then ${STOPPING} else 0 end
      from generate_series(99, 158) as n`,
  })
  const { claimed } = await store.claim({ limit: 60, ...LEASE })
  const leases = claimed.map(({ lease }) => lease)
  expect(leases).toHaveLength(60)
  const room = { rows: 60, bytes: Number.POSITIVE_INFINITY, ...LEASE, continueOnly: true }
  const { claim: next } = await store.cycle().send({ settlements: [{ outcome: 'done', leases }], room })
  expect(next?.claimed).toHaveLength(49)
  expect(reports).toMatchObject([{ verb: 'claim', id: '99', error: { code: '22003' } }])
})

it('the head of an ordering key that stops a claim holds up its own key only', async () => {
  const { store, reports } = await openOrdered()
  await db.query({
    text: `insert into public.ordered_jobs (customer, token) values ('a', 0), ('b', ${STOPPING}), ('b', 0), ('c', 0), (null, ${STOPPING}), (null, 0)`,
  })
  const claimed = [
    ...(await store.claim({ limit: 10, ...LEASE })).claimed,
    ...(await store.claim({ limit: 10, ...LEASE })).claimed,
  ]
  expect(ids(claimed.map(({ lease }) => lease))).toEqual(['1', '4', '6'])
  expect(reports.map(({ id }) => id).toSorted()).toEqual(['2', '5'])
  // A suspect that stops a claim is found too, and one that does not is named as such.
  await db.query({ text: 'update public.ordered_jobs set expiries = 2 where owner is null' })
  await db.query({ text: "insert into public.ordered_jobs (customer, expiries) values ('d', 2), ('e', 2)" })
  const other = await openLeaseStore(db, ordered.table, { owner: 'other' })
  let claim = await other.claim({ limit: 10, ...LEASE })
  for (; claim.claimed.length === 0; claim = await other.claim({ limit: 10, ...LEASE }))
    expect(claim.more).toBe(true)
  expect([claim.claimed.map(({ lease }) => lease.id), claim.suspects]).toEqual([['7'], ['7']])
})
