/** What bounds a claim besides the number of rows: bytes, and suspects (D10). In each way of finding rows. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { grouped, ordered, type Specimen, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import type { Lease } from './lease.ts'
import { type Claim, type ClaimRequest, type ClaimRoom, type LeaseStore, openLeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const specimens: readonly Specimen[] = [ordered, grouped]

beforeAll(async () => {
  for (const specimen of specimens) await subjectOf(db, specimen).create()
})
beforeEach(async () => {
  for (const { table } of specimens)
    await db.query({ text: `truncate public.${table.name} restart identity` })
})
afterAll(async () => db.close())

describe.each<{ which: string; specimen: Specimen; column: string; keyed: boolean }>([
  { which: 'in order', specimen: ordered, column: 'available_at', keyed: false },
  { which: 'by ordering key', specimen: ordered, column: 'available_at', keyed: true },
  { which: 'by group', specimen: grouped, column: 'next_attempt_at', keyed: false },
  { which: 'by group and ordering key', specimen: grouped, column: 'next_attempt_at', keyed: true },
])('a claim $which', ({ specimen, column, keyed }) => {
  const { table } = specimen
  const target = `public.${table.name}`

  async function openStore(retry: readonly number[] = []): Promise<LeaseStore> {
    return openLeaseStore(db, { ...table, retry }, { owner: 'worker' })
  }

  /** One row for each size, with this many expiries. */
  async function insert(sizes: readonly number[], expiries = 0): Promise<void> {
    const group = table.groups === undefined ? '' : 'endpoint, '
    await db.query({
      text: `insert into ${target} (${group}customer, payload, expiries)
        select ${table.groups === undefined ? '' : "'a', "}${keyed ? "'key ' || $2::int || ' ' || lpad(n::text, 5, '0')" : 'null::text'}, repeat('x', size), $2::int
        from unnest($1::int[]) with ordinality as s (size, n) order by n`,
      values: [sizes, expiries],
    })
  }

  async function claim(store: LeaseStore, request: Partial<ClaimRequest> = {}): Promise<Claim<object>> {
    const limit = request.limit ?? 100
    return store.claim({ limit, leaseMs: 60_000, groups: groupsFor(limit), ...request })
  }

  const roomFor = (rows: number, suspects?: ClaimRoom['suspects']): ClaimRoom => {
    const bytes = Number.POSITIVE_INFINITY
    return { rows, bytes, leaseMs: 60_000, groups: groupsFor(rows), suspects }
  }

  const groupsFor = (limit: number): ClaimRoom['groups'] =>
    table.groups === undefined ? undefined : [{ group: 'a', room: limit }]

  async function expire(): Promise<void> {
    await db.query({
      text: `update ${target} set until = now() - interval '1 second' where owner is not null`,
    })
  }

  async function stored(): Promise<Record<string, unknown>[]> {
    const text = `select id::int, status, attempts, expiries, round(extract(epoch from ${column} - now()))::int as due_in_s from ${target} order by id`
    return (await db.query({ text })).rows
  }

  const ids = ({ claimed }: Claim<object>): number[] => claimed.map(({ lease }) => Number(lease.id))
  const leasesOf = ({ claimed }: Claim<object>): Lease[] => claimed.map(({ lease }) => lease)

  it('a claim takes the rows that fit into its byte budget, and says how large they are and that there are more', async () => {
    await insert([40, 40, 40, 1])
    const store = await openStore()
    const first = await claim(store, { bytes: 100 })
    expect([ids(first), first.bytes, first.more]).toEqual([[1, 2], 80, true])
    const second = await claim(store, { bytes: 41 })
    expect([ids(second), second.bytes]).toEqual([[3, 4], 41])
  })

  it('a claim takes at least one row, however large it is', async () => {
    await insert([1_000, 1_000])
    const store = await openStore()
    const first = await claim(store, { bytes: 1 })
    expect([ids(first), first.bytes, first.more]).toEqual([[1], 1_000, true])
  })

  it('D10: a claim takes one suspect at most, and none where none is asked for', async () => {
    await insert([1, 1, 1], 2)
    await insert([1])
    const store = await openStore()
    const none = await claim(store, { suspects: 0 })
    expect([ids(none), none.suspects]).toEqual([[4], undefined])
    const one = await claim(store, { suspects: 1 })
    expect(ids(one)).toEqual(one.suspects?.map(Number))
    expect(ids(await claim(store, { suspects: 0 }))).toEqual([])
    await store.settle('done', leasesOf(one))
    expect(ids(await claim(store))).toHaveLength(1)
  })

  it('D10: suspects that come first do not keep other rows from being claimed', async () => {
    await insert(
      Array.from({ length: 300 }, () => 1),
      2,
    )
    await insert([1, 1, 1])
    const cycle = (await openStore()).cycle()
    const innocents = new Set<number>()
    for (let claims = 0; innocents.size < 3; claims += 1) {
      expect(claims).toBeLessThan(10)
      const suspects = claims === 0 ? { suspects: 1, alone: true } : undefined
      const { claim: found } = await cycle.send({ settlements: [], room: roomFor(10, suspects) })
      for (const { lease } of found?.claimed ?? [])
        if (Number(lease.id) > 300) innocents.add(Number(lease.id))
    }
  })

  it.each([1, 2, 3])('a claim takes no more rows than asked for, suspects included: %i', async (rows) => {
    await insert([1, 1, 1, 1], 2)
    await insert([1, 1, 1, 1])
    const store = await openStore()
    const first = await claim(store, { limit: rows })
    expect([first.claimed.length, first.more]).toEqual([rows, true])
    const room = roomFor(rows, { suspects: 5, alone: true })
    const { claim: second } = await store.cycle().send({ settlements: [], room })
    expect(second?.claimed.length).toBeGreaterThan(0)
    expect(second?.claimed.length).toBeLessThanOrEqual(rows)
  })

  it('D10: the first expiry brings a row back at once; the backoff applies from the second on', async () => {
    await insert([1])
    const store = await openStore([10_000, 20_000, 30_000])
    await claim(store)
    await expire()
    await store.reap()
    expect(await stored()).toMatchObject([{ attempts: 1, expiries: 1, due_in_s: 0 }])
    await claim(store)
    await expire()
    if (store.table.onExpiry === 'reap') await store.reap()
    expect(ids(await claim(store))).toEqual([])
    expect(await stored()).toMatchObject([{ attempts: 2, expiries: 2, due_in_s: 20 }])
    expect(ids(await claim(store))).toEqual([])
  })

  it('D4 D10: a row that keeps expiring is dead when its attempts are used up', async () => {
    await insert([1])
    const store = await openStore()
    for (let attempt = 1; attempt <= 10; attempt += 1) {
      expect(ids(await claim(store))).toEqual([1])
      await expire()
      expect(await store.reap()).toMatchObject([{ exhausted: attempt === 10 }])
    }
    expect(ids(await claim(store))).toEqual([])
    expect(await stored()).toMatchObject([{ attempts: 10, expiries: 10 }])
    expect((await stored())[0]?.['status']).toMatch(/DEAD|failed/)
  })

  it('D10: a row whose handler comes back with a failure is no suspect any more', async () => {
    await insert([1], 3)
    const store = await openStore()
    const suspect = await claim(store)
    await store.settle('retry', leasesOf(suspect), { args: [{ delay_ms: 0, error: 'no' }] })
    expect(await stored()).toMatchObject([{ expiries: 0 }])
    expect((await claim(store, { suspects: 0 })).claimed).toHaveLength(1)
  })

  it('D9 D10: a release counts neither an attempt nor an expiry, and takes none away', async () => {
    await insert([1], 3)
    const store = await openStore()
    await store.release(leasesOf(await claim(store)))
    expect(await stored()).toMatchObject([{ attempts: 0, expiries: 3 }])
  })
})

it('D10: an expiry is counted, also where the outcome retry sets the counter back for handlers that fail', async () => {
  const { retry } = ordered.table.outcomes
  if (retry === undefined) throw new Error('the table has no outcome retry')
  const outcomes = { ...ordered.table.outcomes, retry: { ...retry, set: { ...retry.set, expiries: '0' } } }
  const store = await openLeaseStore(db, { ...ordered.table, outcomes }, { owner: 'worker' })
  await db.query({ text: 'insert into public.ordered_jobs (expiries) values (1)' })
  await store.claim({ limit: 1, leaseMs: 60_000 })
  await db.query({ text: "update public.ordered_jobs set until = now() - interval '1 second'" })
  await store.reap()
  const { rows } = await db.query({ text: 'select attempts, expiries from public.ordered_jobs' })
  expect(rows).toEqual([{ attempts: 1, expiries: 2 }])
})

it('a claim of rows with and without ordering keys stays within the bytes, and takes one suspect', async () => {
  const store = await openLeaseStore(db, ordered.table, { owner: 'worker' })
  await db.query({
    text: `insert into public.ordered_jobs (customer, payload, expiries)
      values ('a', 'xxxxx', 2), (null, 'xxxxx', 2), ('b', 'xxxxx', 0), (null, 'xxxxx', 0), (null, 'xxxxx', 0)`,
  })
  const first = await store.claim({ limit: 10, leaseMs: 60_000, bytes: 15 })
  expect(first.claimed.map(({ lease }) => lease.id)).toEqual(['3', '4', '5'])
  expect([first.suspects, first.bytes]).toEqual([undefined, 15])
  const second = await store.claim({ limit: 10, leaseMs: 60_000, bytes: 10 })
  expect([second.claimed.map(({ lease }) => lease.id), second.suspects]).toEqual([['1'], ['1']])
})
