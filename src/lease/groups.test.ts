import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { events, grouped, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import { openLeaseStore, type Claim, type Group, type LeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const LEASE = { leaseMs: 60_000 }

interface Job {
  readonly id: string
  readonly endpoint: string
  readonly customer: string | null
}

async function openStore(owner = 'worker', on = db): Promise<LeaseStore<Job>> {
  return openLeaseStore<Job>(on, grouped.table, { owner })
}

/** One row for each `endpoint` or `endpoint/customer`, in this order. */
async function insert(...rows: readonly string[]): Promise<void> {
  await db.query({
    text: `insert into public.grouped_jobs (endpoint, customer)
      select split_part(row, '/', 1), nullif(split_part(row, '/', 2), '') from unnest($1::text[]) with ordinality as r (row, n) order by n`,
    values: [rows],
  })
}

async function change(set: string, where = 'true'): Promise<void> {
  await db.query({ text: `update public.grouped_jobs set ${set} where ${where}` })
}

function rooms(open: Readonly<Record<string, number>>): { groups: Group[] } {
  return { groups: Object.entries(open).map(([group, room]) => ({ group, room })) }
}

function describeValue({ claimed }: Claim<Job>): string[] {
  return claimed.map(
    ({ row }) => `${row.endpoint}${row.customer === null ? '' : `/${row.customer}`} ${row.id}`,
  )
}

beforeAll(async () => subjectOf(db, grouped).create())
beforeEach(async () => db.query({ text: 'truncate public.grouped_jobs restart identity' }))
afterAll(async () => db.close())

describe('a claim by group', () => {
  it('a claim takes no more of a group than it has room for, and nothing of other groups', async () => {
    await insert('a', 'a', 'a', 'b', 'c', 'a')
    const store = await openStore()
    const first = await store.claim({ limit: 10, ...LEASE, ...rooms({ b: 5, a: 2 }) })
    expect(describeValue(first)).toEqual(['a 1', 'a 2', 'b 4'])
    const second = await store.claim({ limit: 1, ...LEASE, ...rooms({ a: 2, c: 2 }) })
    expect([describeValue(second), second.more]).toEqual([['a 3'], true])
    expect(describeValue(await store.claim({ limit: 10, ...LEASE, ...rooms({}) }))).toEqual([])
  })

  it('a claim says when the next row of its groups will be due, and nothing of other groups', async () => {
    await insert('a', 'b', 'c/k')
    await change(
      "next_attempt_at = now() + case endpoint when 'a' then interval '1 hour' else interval '1 minute' end",
    )
    const store = await openStore()
    const { dueInMs } = await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 1 }) })
    expect(dueInMs).toBeGreaterThan(3_500_000)
    for (const other of ['b', 'c']) {
      const both = await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 1, [other]: 1 }) })
      expect(both.dueInMs).toBeLessThan(60_001)
    }
  })

  it.each(['a', 'a/k'])(
    'D10: a suspect that waits for its retry counts as the next row (%s)',
    async (row) => {
      await insert(row)
      await change("expiries = 2, next_attempt_at = now() + interval '1 minute'")
      const store = await openStore()
      const claim = await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 1 }) })
      expect(claim.claimed).toEqual([])
      expect(claim.dueInMs).toBeGreaterThan(0)
      expect(claim.dueInMs).toBeLessThan(60_001)
    },
  )

  it('a claim does not read what waits in other groups', async () => {
    await db.query({
      text: `insert into public.grouped_jobs (endpoint) select case when n <= 20000 then 'slow' else 'quick' end
        from generate_series(1, 20010) as n`,
    })
    await db.query({ text: 'analyze public.grouped_jobs' })
    const alone = openDatabase({ url, maxConnections: 1 })
    const store = await openStore('alone', alone)
    const read = async (): Promise<number> => {
      await alone.query({ text: 'select pg_stat_force_next_flush()' })
      const { rows } = await alone.query<{ n: number }>({
        text: `select (seq_tup_read + idx_tup_fetch)::int as n from pg_stat_user_tables where relname = 'grouped_jobs'`,
      })
      return rows[0]?.n ?? 0
    }
    const before = await read()
    for (let i = 0; i < 10; i += 1) {
      const claim = await store.claim({ limit: 5, ...LEASE, ...rooms({ quick: 1 }) })
      expect(claim.claimed).toHaveLength(1)
    }
    expect((await read()) - before).toBeLessThan(500)
    await alone.close()
  })

  it('a claim is refused without groups, and with groups where the table has none', async () => {
    const store = await openStore()
    await expect(store.claim({ limit: 1, ...LEASE })).rejects.toThrow('Say from which values of endpoint')
    await subjectOf(db, events).create()
    const other = await openLeaseStore(db, events.table, { owner: 'worker' })
    await expect(other.claim({ limit: 1, ...LEASE, ...rooms({ a: 1 }) })).rejects.toThrow(
      'declares no groups',
    )
  })
})

describe('ordering keys within groups', () => {
  it('LIFE-13: a key belongs to its group: the same key of another group can be in flight too', async () => {
    await insert('a/k', 'a/k', 'b/k', 'a', 'a/l')
    const store = await openStore()
    const open = rooms({ a: 9, b: 9 })
    const first = await store.claim({ limit: 10, ...LEASE, ...open })
    expect(describeValue(first)).toEqual(['a/k 1', 'b/k 3', 'a/l 5', 'a 4'])
    expect(describeValue(await store.claim({ limit: 10, ...LEASE, ...open }))).toEqual([])
    await store.settle(
      'done',
      first.claimed.map(({ lease }) => lease),
    )
    expect(describeValue(await store.claim({ limit: 10, ...LEASE, ...open }))).toEqual(['a/k 2'])
  })

  it('a group has room for rows with and without a key together', async () => {
    await insert('a/k', 'a', 'a/l', 'a')
    const store = await openStore()
    expect(describeValue(await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 3 }) }))).toEqual([
      'a/k 1',
      'a/l 3',
      'a 2',
    ])
  })

  it('a walk of more than 1,000 keys is continued by the next claims, which say that there may be more', async () => {
    await db.query({
      text: `insert into public.grouped_jobs (endpoint, customer, next_attempt_at)
        select 'a', 'key ' || lpad(n::text, 5, '0'), now() + case when n = 2500 then interval '0' else interval '1 hour' end
        from generate_series(1, 2500) as n`,
    })
    const cycle = (await openStore()).cycle()
    const room = { rows: 10, bytes: Number.POSITIVE_INFINITY, ...LEASE, ...rooms({ a: 5 }) }
    const claim = async (): Promise<Claim<Job>> => {
      const { claim: found } = await cycle.send({ settlements: [], room })
      if (found === undefined) throw new Error('nothing was claimed')
      return found
    }
    /** Claims, by key and without, until one finds something, or nothing more is there. */
    const walk = async (): Promise<Claim<Job>[]> => {
      const claims: Claim<Job>[] = []
      do claims.push(await claim())
      while (claims.length < 2 || (claims.at(-1)?.claimed.length === 0 && claims.at(-1)?.more === true))
      return claims
    }
    const found = await walk()
    expect(found.at(-1)?.claimed).toHaveLength(1)
    // Rows without a key have every other claim.
    expect(found.length).toBeLessThanOrEqual(6)
    // One more round without a find, and there is nothing to claim at the moment.
    const rest = await walk()
    expect([rest.at(-1)?.claimed, rest.length <= 6]).toEqual([[], true])
    // It stays at that, and a claim says when the first head is due.
    await change("next_attempt_at = now() + interval '1 minute'", 'id = 7')
    const idle = await walk()
    expect([idle.at(-1)?.claimed, idle.length <= 6]).toEqual([[], true])
    expect(Math.min(...idle.map(({ dueInMs = Number.POSITIVE_INFINITY }) => dueInMs))).toBeLessThanOrEqual(
      60_000,
    )
  })

  it('a claim by itself walks past more than 1,000 keys until it finds something', async () => {
    await db.query({
      text: `insert into public.grouped_jobs (endpoint, customer, next_attempt_at)
        select case when n % 3 = 0 then 'b' else 'a' end, 'key ' || lpad(n::text, 5, '0'),
          now() + case when n = 3499 then interval '0' else interval '1 hour' end
        from generate_series(1, 3500) as n`,
    })
    const store = await openStore()
    const open = rooms({ a: 5, b: 5 })
    expect((await store.claim({ limit: 10, ...LEASE, ...open })).claimed).toHaveLength(1)
    const none = await store.claim({ limit: 10, ...LEASE, ...open })
    expect([none.claimed, none.more]).toEqual([[], false])
    expect(none.dueInMs).toBeGreaterThan(3_500_000)
  })

  it('D5 WH-FR-004-AC2: an expired head is claimable at once, and none after it', async () => {
    await insert('a/k', 'a/k', 'a/k')
    const [dead, alive] = [await openStore('dead'), await openStore('alive')]
    const open = rooms({ a: 9 })
    const { claimed } = await dead.claim({ limit: 10, ...LEASE, ...open })
    expect(describeValue(await alive.claim({ limit: 10, ...LEASE, ...open }))).toEqual([])
    await change("until = now() - interval '1 second'", 'owner is not null')
    const second = await alive.claim({ limit: 10, ...LEASE, ...open })
    expect(describeValue(second)).toEqual(['a/k 1'])
    const late = await dead.settle(
      'done',
      claimed.map(({ lease }) => lease),
    )
    expect(late.fencedOff).toHaveLength(1)
    await alive.settle(
      'done',
      second.claimed.map(({ lease }) => lease),
    )
    expect(describeValue(await dead.claim({ limit: 10, ...LEASE, ...open }))).toEqual(['a/k 2'])
  })
})
