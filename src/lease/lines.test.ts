import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { lines, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { leaseTable } from './declaration.ts'
import type { Lease } from './lease.ts'
import { openLeaseStore, type Claim, type LeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const subject = subjectOf(db, lines)
const LEASE = { leaseMs: 60_000 }

interface Job {
  readonly id: string
  readonly customer: string | null
}

type Store = LeaseStore<Job>

async function openStore(owner = 'worker', on: Database = db): Promise<Store> {
  return openLeaseStore<Job>(on, lines.table, { owner })
}

/** One row for each customer named, in this order. */
async function insert(...customers: readonly (string | null)[]): Promise<void> {
  await db.query({
    text: 'insert into public.line_jobs (customer) select customer from unnest($1::text[]) with ordinality as c (customer, n) order by n',
    values: [customers],
  })
}

async function claim(store: Store, limit = 100): Promise<Claim<Job>> {
  return store.claim({ limit, ...LEASE })
}

function shown(claim: Claim<Job>): string[] {
  return claim.claimed.map(({ row }) => `${row.customer} ${row.id}`)
}

function leasesOf(claim: Claim<Job>): Lease[] {
  return claim.claimed.map(({ lease }) => lease)
}

async function waiting(): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: 'select id from public.line_jobs where behind order by id',
  })
  return rows.map(({ id }) => id)
}

beforeAll(async () => subject.create())
beforeEach(async () => db.query({ text: 'truncate public.line_jobs restart identity' }))
afterAll(async () => db.close())

describe('a line', () => {
  it('LIFE-13: gives out its first row only, and marks the others as waiting', async () => {
    await insert('a', 'a', 'b', null, 'a', 'b', null)
    const store = await openStore()
    expect(shown(await claim(store))).toEqual(['a 1', 'b 3', 'null 4', 'null 7'])
    expect(await waiting()).toEqual(['2', '5', '6'])
    expect(shown(await claim(store))).toEqual([])
  })

  it('LIFE-13: goes on when its first row is settled', async () => {
    await insert('a', 'a', 'a')
    const store = await openStore()
    const first = await claim(store)
    expect((await store.settle('done', leasesOf(first))).advanced).toBe(true)
    expect(await waiting()).toEqual(['3'])
    expect(shown(await claim(store))).toEqual(['a 2'])
  })

  it('LIFE-13: goes on in the statement that settles its first row and claims the next', async () => {
    await insert('a', 'a', 'a', 'b')
    const store = await openStore()
    const first = await claim(store)
    const next = await store.exchange({ outcome: 'done', leases: leasesOf(first) }, { limit: 10, ...LEASE })
    expect(next.ended).toHaveLength(2)
    expect(shown(next)).toEqual(['a 2'])
    const last = await store.exchange({ outcome: 'done', leases: leasesOf(next) }, { limit: 10, ...LEASE })
    expect(shown(last)).toEqual(['a 3'])
  })

  it('keeps half of a claim for others, and goes on later', async () => {
    await insert('a', 'b', 'c', 'd', 'a', 'b', 'c', 'd')
    const store = await openStore()
    const first = await claim(store, 8)
    await insert('e', 'f', 'g', 'h')
    const next = await store.exchange({ outcome: 'done', leases: leasesOf(first) }, { limit: 4, ...LEASE })
    expect(shown(next).toSorted()).toEqual(['a 5', 'b 6', 'e 9', 'f 10'])
    expect(next.advanced).toBe(true)
    expect(shown(await claim(store))).toEqual(['c 7', 'd 8', 'g 11', 'h 12'])
  })

  it('does not overtake those who were there before: who was never marked comes in its turn', async () => {
    await insert('a', 'b', 'c', 'a')
    const store = await openStore()
    const next = await store.exchange(
      { outcome: 'done', leases: leasesOf(await claim(store, 1)) },
      { limit: 2, ...LEASE },
    )
    expect(shown(next)).toEqual(['b 2', 'c 3'])
    expect(shown(await claim(store))).toEqual(['a 4'])
  })

  it.each(['retry', 'release', 'park'] as const)('waits for a row after %s', async (how) => {
    await insert('a', 'a')
    const store = await openStore()
    const first = leasesOf(await claim(store))
    if (how === 'release') await store.release(first)
    else if (how === 'retry') await store.settle('retry', first, { args: [{ delay_ms: 3_600_000 }] })
    else await store.settle('park', first)
    expect(await waiting()).toEqual(['2'])
    expect(shown(await claim(store))).toEqual(how === 'release' ? ['a 1'] : [])
    expect(await waiting()).toEqual(['2'])
  })

  it('stays in order when its rows are settled as retries in an exchange', async () => {
    await insert('a', 'a')
    const store = await openStore()
    const first = leasesOf(await claim(store))
    const args = [{ delay_ms: 0 }]
    const next = await store.exchange({ outcome: 'retry', leases: first, args }, { limit: 10, ...LEASE })
    expect(shown(next)).toEqual([])
    expect(shown(await claim(store))).toEqual(['a 1'])
  })

  it('goes on when the reaper gives up its first row, and waits when it does not', async () => {
    await insert('a', 'a')
    const store = await openStore()
    for (const expected of [['a 1'], ['a 1'], ['a 1'], ['a 2']]) {
      expect(shown(await claim(store))).toEqual(expected)
      await db.query({
        text: "update public.line_jobs set until = now() - interval '1 second' where owner is not null",
      })
      expect(await store.reap()).toHaveLength(1)
    }
  })

  it('goes on after the transaction in which its first row was settled', async () => {
    await insert('a', 'a')
    const store = await openStore()
    const first = leasesOf(await claim(store))
    await db.transaction(async (tx) => {
      await store.settle('done', first, { tx })
      expect(shown(await claim(store))).toEqual([])
    })
    expect(shown(await claim(store))).toEqual(['a 2'])
  })

  it('has one row in flight, also when an earlier one commits late', async () => {
    const store = await openStore()
    let second: Lease[] = []
    await db.transaction(async (tx) => {
      await tx.query({ text: "insert into public.line_jobs (customer) values ('a')" })
      await insert('a')
      const overtaking = await claim(store)
      expect(shown(overtaking)).toEqual(['a 2'])
      second = leasesOf(overtaking)
    })
    expect(shown(await claim(store))).toEqual([])
    await store.settle('done', second)
    expect(shown(await claim(store))).toEqual(['a 1'])
  })

  it('goes on when a follower is not due yet, once it is', async () => {
    await insert('a', 'a', 'a')
    await db.query({
      text: "update public.line_jobs set available_at = now() + interval '1 hour' where id = 2",
    })
    const store = await openStore()
    await store.settle('done', leasesOf(await claim(store)))
    expect(shown(await claim(store))).toEqual([])
    await db.query({ text: 'update public.line_jobs set available_at = now() where id = 2' })
    expect(shown(await claim(store))).toEqual(['a 2'])
  })

  it('does not count what waits as claimed, but as found', async () => {
    await insert('a', 'a', 'a', 'b')
    const found = await claim(await openStore(), 3)
    expect(shown(found)).toEqual(['a 1'])
    expect(found.full).toBe(true)
    expect(found.place?.at(-1)).toBe('3')
  })

  it('that lost its first row by hand is found by a sweep', async () => {
    await insert('a', 'a', 'b', 'b')
    const store = await openStore()
    await claim(store)
    await db.query({ text: "delete from public.line_jobs where status = 'CLAIMED'" })
    expect(shown(await claim(store))).toEqual([])
    expect(await store.advance()).toEqual({ advanced: 2, last: undefined })
    expect(shown(await claim(store))).toEqual(['a 2', 'b 4'])
    expect(await store.advance({ keys: ['a'] })).toEqual({ advanced: 0, last: undefined })
  })

  it('is swept a bounded number of keys at a time', async () => {
    const keys = Array.from({ length: 1_500 }, (_, n) => `key ${String(n).padStart(4, '0')}`)
    await insert(...keys)
    await db.query({ text: 'update public.line_jobs set behind = true' })
    const store = await openStore()
    const first = await store.advance()
    expect(first).toEqual({ advanced: 1_000, last: 'key 0999' })
    expect(await store.advance({ after: first.last })).toEqual({ advanced: 500, last: undefined })
  })
})

/**
 * Workers that claim, settle, retry and give back as fast as they can, on connections of their own, while others write.
 * Whatever they do to each other, a line is in order, has one row in flight, and comes to its end without a sweep.
 */
it('LIFE-13 LIFE-16: many workers at once keep every line in order and leave none behind', async () => {
  const [KEYS, ROWS, WORKERS, PRODUCERS] = [60, 60, 6, 3]
  const inFlight = new Map<string, string>()
  const finished = new Map<string, bigint>()
  const wrong: string[] = []
  let done = 0
  let random = 7
  const next = (): number => (random = (random * 1_103_515_245 + 12_345) % 2_147_483_648) / 2_147_483_648

  function took({ row }: Claim<Job>['claimed'][number]): void {
    const key = row.customer ?? ''
    if (inFlight.has(key)) wrong.push(`${key}: ${row.id} while ${inFlight.get(key)} was in flight`)
    if (BigInt(row.id) < (finished.get(key) ?? 0n)) wrong.push(`${key}: ${row.id} after ${finished.get(key)}`)
    inFlight.set(key, row.id)
  }

  async function work(owner: string): Promise<void> {
    const own = openDatabase({ url, maxConnections: 1 })
    const store = await openStore(owner, own)
    try {
      let held = [...(await claim(store, 5)).claimed]
      held.forEach(took)
      while (done < KEYS * ROWS) {
        const [outcome, count] = [next(), 1 + Math.floor(next() * 5)]
        const ending = held.splice(0, count)
        for (const { row } of ending) {
          inFlight.delete(row.customer ?? '')
          if (outcome < 0.8) finished.set(row.customer ?? '', BigInt(row.id))
        }
        const leases = ending.map(({ lease }) => lease)
        if (outcome < 0.4) {
          const { ended } = await store.settle('done', leases)
          done += ended.length
        } else if (outcome < 0.8) {
          const exchanged = await store.exchange({ outcome: 'done', leases }, { limit: 6, ...LEASE })
          done += exchanged.ended.length
          exchanged.claimed.forEach(took)
          held.push(...exchanged.claimed)
        } else if (outcome < 0.9) {
          await store.settle('retry', leases, { args: leases.map(() => ({ delay_ms: 0 })) })
        } else {
          await store.release(leases)
        }
        const more = await claim(store, 1 + Math.floor(next() * 20))
        more.claimed.forEach(took)
        held.push(...more.claimed)
      }
      held = []
    } finally {
      await own.close()
    }
  }

  /** Each has keys of its own, so that ids are in the order of commit, and writes one row at a time. */
  async function produce(producer: number): Promise<void> {
    const own = openDatabase({ url, maxConnections: 1 })
    const keys = Array.from({ length: KEYS }, (_, key) => key).filter((key) => key % PRODUCERS === producer)
    for (let n = 0; n < ROWS; n += 1) {
      for (const key of keys)
        await own.query({
          text: 'insert into public.line_jobs (customer) values ($1)',
          values: [String(key)],
        })
    }
    await own.close()
  }

  await Promise.all([
    ...Array.from({ length: WORKERS }, async (_, n) => work(`worker ${n}`)),
    ...Array.from({ length: PRODUCERS }, async (_, n) => produce(n)),
  ])
  expect(wrong).toEqual([])
  expect(done).toBe(KEYS * ROWS)
})

describe('a declaration with an ordering', () => {
  const { ordering, ...rest } = {
    table: 'public.line_jobs',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'available_at is not null',
    order: ['available_at', 'id'],
    onExpiry: 'reap' as const,
    held: "status = 'CLAIMED'",
    ordering: { key: 'customer', behind: 'behind', waitedFor: 'available_at is not null' },
    outcomes: { done: { set: {} } },
  }

  it('is refused where a line could not be told', () => {
    const { held: _, ...withoutHeld } = rest
    expect(() => leaseTable({ ...withoutHeld, ordering })).toThrow('`ordering` needs `held`')
    expect(() => leaseTable({ ...rest, ordering, id: ['id', 'customer'] })).toThrow('id` of one column')
  })

  it('is refused where something else writes the mark', () => {
    const writes = { claim: { behind: 'true' } }
    expect(() => leaseTable({ ...rest, ordering, writes })).toThrow('writes.claim writes behind')
  })
})
