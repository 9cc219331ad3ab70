/** Notes of claims (docs/decisions/013-notes-of-claims.md): no lease may be lost sight of, and no note stay for ever. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { noted, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import type { Lease } from './lease.ts'
import { type LeaseStore, openLeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const LEASE = { limit: 1_000, leaseMs: 60_000 }
const subject = subjectOf(db, noted)
let store: LeaseStore

beforeAll(async () => subject.create())
beforeEach(async () => {
  await db.query({ text: 'truncate public.parcels, public.parcel_claims' })
  store = await open('worker')
})
afterAll(async () => db.close())

async function open(owner: string): Promise<LeaseStore> {
  return openLeaseStore(db, noted.table, { owner, bucket: 4 })
}

async function claim(count: number): Promise<Lease[]> {
  await subject.insert(count)
  const { claimed } = await store.claim(LEASE)
  return claimed.map(({ lease }) => lease)
}

async function notes(): Promise<string[][]> {
  const { rows } = await db.query<{ rows: string[] }>({
    text: 'select rows from public.parcel_claims order by id',
  })
  return rows.map((note) => note.rows)
}

async function expire(): Promise<void> {
  await db.query({
    text: "update public.parcels set until = now() - interval '1 second' where until is not null",
  })
}

/** Leases of which no note speaks: nobody would ever take them back. */
async function unseen(): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from public.parcels
      where owner is not null and code not in (select unnest(rows) from public.parcel_claims)`,
  })
  return rows[0]?.count ?? 0
}

it('a claim is noted with all its rows, in notes of bounded size', async () => {
  const leases = await claim(450)
  const written = await notes()
  expect(written.map((rows) => rows.length)).toEqual([200, 200, 50])
  expect(new Set(written.flat())).toEqual(new Set(leases.map(({ id }) => id)))
})

it('a claim that finds nothing is not noted', async () => {
  await store.claim(LEASE)
  expect(await notes()).toEqual([])
})

describe('the next claim removes the notes of a claim', () => {
  it.each<[string, (leases: readonly Lease[]) => Promise<unknown>]>([
    ['once all of it is settled', async (leases) => store.settle('sent', leases)],
    ['once all of it is given back', async (leases) => store.release(leases, 60_000)],
    [
      'once it is settled by exchange',
      async (leases) => store.exchange({ outcome: 'sent', leases }, { limit: 1, leaseMs: 60_000 }),
    ],
    [
      'once others have taken it back, and its own settlement was fenced off',
      async (leases) => {
        await expire()
        await store.reap()
        await db.query({ text: "update public.parcels set free_at = now() + interval '1 hour'" })
        await store.settle('sent', leases)
      },
    ],
  ])('%s', async (_, end) => {
    await end(await claim(3))
    await store.claim(LEASE)
    expect(await notes()).toEqual([])
  })

  it.each<[string, (leases: readonly Lease[]) => Promise<unknown>]>([
    ['of which one row is not settled', async ([, ...others]) => store.settle('sent', others)],
    [
      'of which one row was settled again and again',
      async ([, ...others]) => {
        await store.settle('sent', others)
        for (const _ of [1, 2, 3]) await store.settle('sent', others)
      },
    ],
    [
      'that somebody else tried to settle',
      async (leases) => {
        const other = await open('other')
        await other.settle('sent', leases)
        await other.claim(LEASE)
      },
    ],
    [
      'that was settled in a transaction which was rolled back',
      async (leases) =>
        db
          .transaction(async (tx) => {
            await store.settle('sent', leases, { tx })
            throw new Error('no')
          })
          .catch(() => undefined),
    ],
  ])('but not of one %s', async (_, end) => {
    const leases = await claim(3)
    await end(leases)
    await store.claim(LEASE)
    expect(await unseen()).toBe(0)
    await expire()
    expect((await store.reap()).map(({ id }) => id)).toContain(leases[0]?.id)
  })
})

describe('the reaper', () => {
  it('removes notes of which nothing is leased, and no others', async () => {
    const done = await claim(2)
    const kept = await claim(2)
    // By somebody who does not know of notes.
    await store.settle(
      'sent',
      done.map((lease) => ({ ...lease })),
    )
    await store.settle(
      'sent',
      kept.slice(1).map((lease) => ({ ...lease })),
    )
    expect(await store.reap()).toEqual([])
    expect(await notes()).toEqual([kept.map(({ id }) => id)])
  })

  it('takes back what is over and what a dead worker held, wherever it was noted', async () => {
    const [first, ...others] = await claim(300)
    await db.query({
      text: "update public.parcels set until = now() - interval '1 second' where code = $1",
      values: [first?.id],
    })
    expect((await store.reap()).map(({ id }) => id)).toEqual([first?.id])
    const taken = await (await open('reaper')).reap({ ownedBy: 'worker' })
    expect(taken.map(({ id }) => id).toSorted()).toEqual(others.map(({ id }) => id).toSorted())
    await store.reap()
    expect(await notes()).toEqual([])
  })

  it('leaves a note that somebody is just removing, and does not wait for him', async () => {
    const leases = await claim(1)
    await store.settle('sent', leases)
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.parcel_claims for update' })
      expect(await store.reap()).toEqual([])
    })
    expect(await notes()).toHaveLength(1)
  })
})

it('a settlement is a HOT update', async () => {
  const leases = await claim(20)
  const count = {
    text: `select pg_stat_get_xact_tuples_updated('public.parcels'::regclass)::int as updated,
      pg_stat_get_xact_tuples_hot_updated('public.parcels'::regclass)::int as hot`,
  }
  await db.transaction(async (tx) => {
    const [before] = (await tx.query<{ updated: number; hot: number }>(count)).rows
    await store.settle('sent', leases, { tx })
    const [after] = (await tx.query<{ updated: number; hot: number }>(count)).rows
    expect(after).toEqual({ updated: (before?.updated ?? 0) + 20, hot: (before?.hot ?? 0) + 20 })
  })
})

it('workers, deaths and reapers at once leave no lease unseen and no note behind', async () => {
  await subject.insert(2_000)
  const done = new Set<string>()
  async function work(owner: string): Promise<void> {
    const mine = await open(owner)
    for (let round = 0; done.size < 2_000 && round < 500; round += 1) {
      const { claimed } = await mine.claim({ limit: 37, leaseMs: 20 })
      const leases = claimed.map(({ lease }) => lease)
      // One in seven is forgotten, as by a worker that died.
      const { ended } = await mine.settle(
        'sent',
        leases.filter((_, i) => (i + round) % 7 !== 0),
      )
      for (const { id } of ended) done.add(id)
      if (round % 5 === 0) await mine.reap()
      expect(await unseen()).toBe(0)
    }
  }
  await Promise.all(['a', 'b', 'c', 'd'].map(work))
  expect(done.size).toBe(2_000)
  await store.reap()
  expect(await notes()).toEqual([])
})

it('a table without its table of notes is refused, with the statement that makes one', async () => {
  const table = { ...noted.table, notes: { schema: 'public', name: 'nowhere', column: 'claim' } }
  await expect(openLeaseStore(db, table, { owner: 'w', bucket: 4 })).rejects.toMatchObject({
    code: 'LEASE_TABLE_MISFIT',
    remedy:
      'Run: CREATE TABLE "public"."nowhere" ("shard" integer NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY, rows text[] NOT NULL, PRIMARY KEY ("shard", id));',
  })
})

it('a note stays when the database has forgotten that its rows were settled, as after a crash', async () => {
  const [lease] = await claim(1)
  if (lease === undefined) throw new Error('one row was claimed')
  const { rows } = await db.query<{ image: string }>({
    text: 'select to_jsonb(p)::text as image from public.parcels as p',
  })
  await store.settle('sent', [lease])
  await db.query({ text: 'delete from public.parcels' })
  await db.query({
    text: 'insert into public.parcels select * from jsonb_populate_record(null::public.parcels, $1)',
    values: [rows[0]?.image],
  })
  // The store believes that all of the note is over, and looks at it again.
  await store.claim(LEASE)
  expect(await unseen()).toBe(0)
  await expire()
  expect(await store.reap()).toHaveLength(1)
})
