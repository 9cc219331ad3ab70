/** Bundles of claimable rows (docs/decisions/014-bundles.md): what can be claimed is in a bundle, at every moment. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { bundled, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import type { Lease } from './lease.ts'
import { leaseTable } from './declaration.ts'
import { type LeaseStore, openLeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url, maxConnections: 12 })
const LEASE_MS = 60_000
const subject = subjectOf(db, bundled)
let store: LeaseStore

beforeAll(async () => subject.create())
beforeEach(async () => {
  await subject.empty()
  store = await open('worker')
})
afterAll(async () => db.close())

async function open(owner: string): Promise<LeaseStore> {
  return openLeaseStore(db, bundled.table, { owner })
}

async function claim(limit: number, by = store): Promise<string[]> {
  return (await by.claim({ limit, leaseMs: LEASE_MS })).claimed.map(({ lease }) => lease.id)
}

async function sizes(): Promise<number[]> {
  const { rows } = await db.query<{ size: number }>({
    text: 'select cardinality(rows) as size from public.postcard_bundles order by at, id',
  })
  return rows.map(({ size }) => size)
}

async function change(set: string, ids: readonly string[]): Promise<void> {
  await db.query({ text: `update public.postcards set ${set} where code = any ($1)`, values: [ids] })
}

/**
 * Rows that can be claimed and that no bundle names in time: nobody would find them. One snapshot, so it is never wrong;
 * and a clock that is read after it, because what was put back a moment ago rests for a tenth of a second from then.
 */
async function unseen(): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from public.postcards as p where free_at is not null
      and not exists (
        select from public.postcard_bundles
        where rows @> array[p.code] and (at <= p.free_at or at <= clock_timestamp() + interval '100 ms')
      )`,
  })
  return rows[0]?.count ?? 0
}

it('a claim of a few takes the first of a bundle, leaves the rest where it was, and goes on there', async () => {
  const ids = await subject.insert(120)
  expect(await sizes()).toEqual([49, 50, 21])
  expect(await claim(10)).toEqual(ids.slice(0, 10))
  expect(await sizes()).toEqual([39, 50, 21])
  expect(await claim(60)).toEqual(ids.slice(10, 70))
  expect(await sizes()).toEqual([29, 21])
  expect(await claim(1_000)).toEqual(ids.slice(70))
  expect(await sizes()).toEqual([])
})

it('bundles of one row are taken as many at once as were asked for, by the first claim already', async () => {
  const ids: string[] = []
  for (let i = 0; i < 20; i += 1) ids.push(...(await subject.insert(1)))
  expect(await claim(15)).toEqual(ids.slice(0, 15))
  expect(await sizes()).toHaveLength(5)
})

it('says that there may be more as long as there was as much as it wanted', async () => {
  await subject.insert(120)
  expect((await store.claim({ limit: 100, leaseMs: LEASE_MS })).full).toBe(true)
  expect((await store.claim({ limit: 100, leaseMs: LEASE_MS })).full).toBe(false)
  expect((await store.claim({ limit: 100, leaseMs: LEASE_MS })).full).toBe(false)
})

it('what a bundle names and is gone, or leased, or settled is passed over and forgotten', async () => {
  const ids = await subject.insert(30)
  await db.query({ text: 'delete from public.postcards where code = any ($1)', values: [ids.slice(0, 10)] })
  await change("free_at = null, owner = 'by hand', until = now() + interval '1 h'", ids.slice(10, 20))
  await change('free_at = null, sent = true', ids.slice(20, 25))
  const looked = await store.claim({ limit: 25, leaseMs: LEASE_MS })
  expect(looked.claimed).toEqual([])
  expect(looked.full, 'others may have stood behind them').toBe(true)
  expect(await claim(25)).toEqual(ids.slice(25))
  expect(await sizes()).toEqual([])
})

it('a row in two bundles is claimed once', async () => {
  const ids = await subject.insert(3)
  await change("free_at = free_at - interval '1 s'", ids)
  expect((await claim(100)).toSorted()).toEqual(ids.toSorted())
  expect(await sizes()).toEqual([])
})

describe('what is not claimed now stays in a bundle', () => {
  it('a row that was put off by hand is claimed when it is due, and not before', async () => {
    const [late = '', soon = ''] = await subject.insert(2)
    await db.query({ text: 'alter table public.postcards disable trigger user' })
    await change("free_at = now() + interval '1 h'", [late])
    await db.query({ text: 'alter table public.postcards enable trigger user' })
    expect(await claim(10)).toEqual([soon])
    expect(await unseen()).toBe(0)
    const { nextDueMs } = await store.claim({ limit: 10, leaseMs: LEASE_MS })
    expect(nextDueMs).toBeGreaterThan(3_000_000)
    await change('free_at = now()', [late])
    expect(await claim(10)).toEqual([late])
  })

  it('a row that somebody has locked is left alone, holds up nobody, and is claimed once it is free', async () => {
    const [locked = '', ...others] = [...(await subject.insert(1)), ...(await subject.insert(3))]
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.postcards where code = $1 for update', values: [locked] })
      const stood = await store.claim({ limit: 1, leaseMs: LEASE_MS })
      expect(stood, 'others may stand behind it').toMatchObject({ claimed: [], full: true })
      expect(await claim(1), 'the locked one went behind the others').toEqual(others.slice(0, 1))
      expect((await claim(10)).toSorted()).toEqual(others.slice(1).toSorted())
      expect(await unseen()).toBe(0)
    })
    await expect.poll(async () => claim(10), { timeout: 20_000 }).toEqual([locked])
  })

  it('many rows that somebody has locked, or that are gone, are passed over in a few looks, however small', async () => {
    await subject.insert(3_000)
    await db.query({
      text: 'delete from public.postcards where code in (select code from public.postcards limit 1000)',
    })
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.postcards for update' })
      const [fresh = ''] = await subject.insert(1)
      let [looks, found]: [number, string[]] = [0, []]
      for (; found.length === 0 && looks < 50; looks += 1) found = await claim(1)
      expect(found).toEqual([fresh])
      expect(looks).toBeLessThan(12)
      expect(await unseen()).toBe(0)
    })
    const left = new Set<string>()
    await expect
      .poll(
        async () => {
          for (const id of await claim(1_000)) left.add(id)
          return left.size
        },
        { timeout: 20_000 },
      )
      .toBe(2_000)
  })

  it('a row that a trigger keeps from being claimed is not lost either', async () => {
    const [kept = '', other = ''] = await subject.insert(2)
    await withTrigger(kept, 'return null', async () => {
      expect(await claim(10)).toEqual([other])
      expect(await unseen()).toBe(0)
    })
    await expect.poll(async () => claim(10), { timeout: 20_000 }).toEqual([kept])
  })

  it('a claim that fails leaves everything as it was', async () => {
    const ids = await subject.insert(5)
    await withTrigger(ids[4] ?? '', "raise exception 'not this one'", async () => {
      await expect(claim(5)).rejects.toThrow('not this one')
      expect(await sizes()).toEqual([5])
    })
    expect(await claim(5)).toEqual(ids)
  })

  async function withTrigger(code: string, body: string, work: () => Promise<void>): Promise<void> {
    await db.query({
      text: `create function public.keep_postcard() returns trigger language plpgsql as $$ begin ${body}; end $$;
        create trigger kept before update on public.postcards for each row when (new.code = '${code}')
          execute function public.keep_postcard()`,
    })
    try {
      await work()
    } finally {
      await db.query({ text: 'drop function public.keep_postcard() cascade' })
    }
  }
})

it('claims at once share no row; who finds all in the hands of others is told to look again soon', async () => {
  const ids = await subject.insert(40)
  const stores = await Promise.all(['a', 'b', 'c', 'd'].map(open))
  const claims = await Promise.all(stores.map(async (one) => one.claim({ limit: 10, leaseMs: LEASE_MS })))
  for (const { claimed, nextDueMs } of claims.filter(({ claimed }) => claimed.length < 10)) {
    expect(claimed).toEqual([])
    expect(nextDueMs).toBeLessThan(100)
  }
  const claimed = claims.flatMap((one) => one.claimed.map(({ lease }) => lease.id))
  while (claimed.length < ids.length) claimed.push(...(await claim(10)))
  expect(claimed.toSorted()).toEqual(ids.toSorted())
})

it('a bundle that is being taken does not make the others look like nothing', async () => {
  await subject.insert(3)
  await db.transaction(async (tx) => {
    await tx.query({ text: 'select from public.postcard_bundles for update' })
    const { claimed, full, nextDueMs } = await store.claim({ limit: 10, leaseMs: LEASE_MS })
    expect({ claimed, full }).toEqual({ claimed: [], full: false })
    expect(nextDueMs).toBeLessThan(100)
  })
  expect(await claim(10)).toHaveLength(3)
  expect((await store.claim({ limit: 10, leaseMs: LEASE_MS })).nextDueMs).toBeUndefined()
})

it('whatever happens at once, whoever sees a row that can be claimed sees a bundle of it, and none is lost', async () => {
  const random = (below: number): number => Math.floor(Math.random() * below)
  const until = Date.now() + 4_000
  let written = 0
  let looks = 0

  async function writer(): Promise<void> {
    while (Date.now() < until) {
      const count = 1 + random(60)
      await subject.insert(count)
      written += count
    }
  }
  async function worker(name: string): Promise<void> {
    const own = await open(name)
    let leases: Lease[] = []
    while (Date.now() < until) {
      const wanted = { limit: 1 + random(80), leaseMs: LEASE_MS }
      const cut = random(leases.length + 1)
      const fate = random(4)
      if (fate === 0) await own.release(leases.slice(0, cut), random(2) * random(50))
      else if (fate === 1) await own.settle('sent', leases.slice(0, cut))
      else {
        const { claimed } = await own.exchange({ outcome: 'sent', leases: leases.slice(0, cut) }, wanted)
        leases.push(...claimed.map(({ lease }) => lease))
      }
      leases = leases.slice(cut)
      // Now and then it dies with what it holds.
      if (random(20) === 0) leases = []
    }
  }
  async function reaper(): Promise<void> {
    const own = await open('reaper')
    while (Date.now() < until) {
      await db.query({
        text: 'update public.postcards set until = now() where random() < 0.01 and until is not null',
      })
      await own.reap()
    }
  }
  async function meddler(): Promise<void> {
    while (Date.now() < until) {
      await db
        .transaction(async (tx) => {
          await tx.query({
            text: `select from public.postcards where free_at is not null order by random() limit ${random(5)} for update skip locked`,
          })
          await tx.query({
            text: `update public.postcards set free_at = now() + random() * interval '20 ms' where code in
            (select code from public.postcards where free_at is not null order by random() limit ${random(4)} for update skip locked)`,
          })
          if (random(3) === 0) throw new Error('rolled back')
        })
        .catch(() => undefined)
    }
  }
  async function watcher(): Promise<void> {
    while (Date.now() < until) {
      expect(await unseen()).toBe(0)
      looks += 1
    }
  }

  await Promise.all([writer(), worker('a'), worker('b'), worker('c'), reaper(), meddler(), watcher()])
  await db.query({ text: 'update public.postcards set until = now() where until is not null' })
  while ((await store.reap()).length > 0);
  await change("free_at = now() - interval '1 s'", await pending())
  const last = await open('last')
  for (let claimed = ['']; claimed.length > 0 || (await pending()).length > 0;) {
    const { claimed: found } = await last.claim({ limit: 500, leaseMs: LEASE_MS })
    claimed = found.map(({ lease }) => lease.id)
    await last.settle(
      'sent',
      found.map(({ lease }) => lease),
    )
  }
  const { rows } = await db.query<{ sent: number }>({
    text: 'select count(*)::int as sent from public.postcards where sent',
  })
  expect(rows[0]?.sent).toBe(written)
  expect(looks).toBeGreaterThan(10)
})

async function pending(): Promise<string[]> {
  const { rows } = await db.query<{ code: string }>({
    text: 'select code from public.postcards where free_at is not null',
  })
  return rows.map(({ code }) => code)
}

describe('a declaration that cannot work is refused', () => {
  const { bundles: _, ...plain } = bundled.table
  const declared = {
    table: 'public.postcards',
    id: 'code',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'free_at is not null',
    availableAt: 'free_at',
    order: ['free_at', 'code'],
    onExpiry: 'reap',
    bundles: { table: 'public.postcard_bundles' },
    outcomes: { sent: { set: { sent: 'true' } } },
  } as const

  it.each([
    [{ ...declared, id: ['code', 'sent'] as const }, 'an `id` of one column'],
    [{ ...declared, onExpiry: 'claimable' as const }, "onExpiry 'reap'"],
    [{ ...declared, lanes: 'attempts' }, 'does not go with `lanes`'],
    [{ ...declared, order: ['code'] as const }, '`availableAt`, and `order`'],
    [{ ...declared, outcomes: { later: { set: {}, rest: "interval '1 s'" } } }, '`rest`'],
  ])('because of %#', (declaration, why) => {
    expect(() => leaseTable<string>(declaration)).toThrow(why)
  })

  it('because the table of bundles is not there, or has no index', async () => {
    const nowhere = { ...plain, bundles: { schema: 'public', name: 'nowhere' } }
    await expect(openLeaseStore(db, nowhere, { owner: 'w' })).rejects.toThrow(
      'CREATE TABLE "public"."nowhere" (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL, rows uuid[] NOT NULL, PRIMARY KEY (id)); CREATE INDEX ON "public"."nowhere" ("at", "id")',
    )
    await db.query({ text: 'alter index public.postcard_bundles_due rename to gone' })
    await db.query({ text: 'drop index public.gone' })
    await expect(open('w')).rejects.toThrow('CREATE INDEX ON "public"."postcard_bundles" ("at", "id")')
    await db.query({ text: 'create index postcard_bundles_due on public.postcard_bundles (at, id)' })
  })
})
