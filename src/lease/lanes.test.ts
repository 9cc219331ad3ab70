import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { lanes, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import { openLeaseStore, type Claim, type Lane, type LeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const LEASE = { leaseMs: 60_000 }

interface Job {
  readonly id: string
  readonly endpoint: string
  readonly line: string | null
}

async function openStore(owner = 'worker', on = db): Promise<LeaseStore<Job>> {
  return openLeaseStore<Job>(on, lanes.table, { owner })
}

/** One row for each `endpoint` or `endpoint/line`, in this order. */
async function insert(...rows: readonly string[]): Promise<void> {
  await db.query({
    text: `insert into public.lane_jobs (endpoint, line)
      select split_part(row, '/', 1), nullif(row, split_part(row, '/', 1)) from unnest($1::text[]) with ordinality as r (row, n) order by n`,
    values: [rows],
  })
}

function rooms(open: Readonly<Record<string, number>>): { lanes: Lane[] } {
  return { lanes: Object.entries(open).map(([key, room]) => ({ key, room })) }
}

function shown({ claimed }: Claim<Job>): string[] {
  return claimed.map(({ row }) => `${row.line ?? row.endpoint} ${row.id}`)
}

beforeAll(async () => subjectOf(db, lanes).create())
beforeEach(async () => db.query({ text: 'truncate public.lane_jobs restart identity' }))
afterAll(async () => db.close())

describe('a claim from lanes', () => {
  it('takes no more of a lane than there is room for, and nothing of others', async () => {
    await insert('a', 'a', 'a', 'b', 'c', 'a')
    const store = await openStore()
    const first = await store.claim({ limit: 10, ...LEASE, ...rooms({ b: 5, a: 2 }) })
    expect(shown(first)).toEqual(['b 4', 'a 1', 'a 2'])
    const second = await store.claim({ limit: 1, ...LEASE, ...rooms({ a: 2, c: 2 }) })
    expect(shown(second)).toEqual(['a 3'])
    expect(shown(await store.claim({ limit: 10, ...LEASE, ...rooms({}) }))).toEqual([])
  })

  it('settles rows of any lane in the same statement, and goes on in the open ones only', async () => {
    await insert('a/k', 'a/k', 'b', 'b')
    const store = await openStore()
    const { claimed } = await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 9, b: 1 }) })
    const leases = claimed.map(({ lease }) => lease)
    const next = await store.exchange(
      { outcome: 'done', leases },
      { limit: 10, ...LEASE, ...rooms({ b: 1 }) },
    )
    expect([next.ended.length, shown(next)]).toEqual([2, ['b 4']])
    // Who waited in line is free for whoever has room in its lane.
    expect(next.advanced).toBe(true)
    expect(shown(await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 1 }) }))).toEqual(['a/k 2'])
  })

  it('says when the next row of an open lane will be due, and nothing of closed ones', async () => {
    await insert('a', 'b')
    await db.query({
      text: `update public.lane_jobs set next_attempt_at = now() + case endpoint when 'a' then interval '1 hour' else interval '1 minute' end`,
    })
    const store = await openStore()
    const { nextDueMs } = await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 1 }) })
    expect(nextDueMs).toBeGreaterThan(3_500_000)
    const both = await store.claim({ limit: 10, ...LEASE, ...rooms({ a: 1, b: 1 }) })
    expect(both.nextDueMs).toBeLessThan(60_001)
  })

  it('does not read what waits in a lane that is shut', async () => {
    await db.query({
      text: `insert into public.lane_jobs (endpoint) select case when n <= 20000 then 'slow' else 'quick' end
        from generate_series(1, 20010) as n`,
    })
    await db.query({ text: 'analyze public.lane_jobs' })
    const alone = openDatabase({ url, maxConnections: 1 })
    const store = await openStore('alone', alone)
    const read = async (): Promise<number> => {
      await alone.query({ text: 'select pg_stat_force_next_flush()' })
      const { rows } = await alone.query<{ n: number }>({
        text: `select (seq_tup_read + idx_tup_fetch)::int as n from pg_stat_user_tables where relname = 'lane_jobs'`,
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

  it('refuses a claim that does not say from which lanes, and lanes where there are none', async () => {
    const store = await openStore()
    await expect(store.claim({ limit: 1, ...LEASE })).rejects.toThrow('Say from which values of endpoint')
  })
})

describe('a line whose expired leases are claimable', () => {
  it('D5 WH-FR-004-AC2: gives out its first row again once the lease is over, and nobody behind it', async () => {
    await insert('a/k', 'a/k', 'a/k')
    const [dead, alive] = [await openStore('dead'), await openStore('alive')]
    const open = rooms({ a: 9 })
    const { claimed } = await dead.claim({ limit: 10, ...LEASE, ...open })
    expect(shown(await alive.claim({ limit: 10, ...LEASE, ...open }))).toEqual([])
    await db.query({
      text: "update public.lane_jobs set until = now() - interval '1 second' where owner is not null",
    })
    const again = await alive.claim({ limit: 10, ...LEASE, ...open })
    expect(shown(again)).toEqual(['a/k 1'])
    const late = await dead.settle(
      'done',
      claimed.map(({ lease }) => lease),
    )
    expect(late.fencedOff).toHaveLength(1)
    await alive.settle(
      'done',
      again.claimed.map(({ lease }) => lease),
    )
    expect(shown(await dead.claim({ limit: 10, ...LEASE, ...open }))).toEqual(['a/k 2'])
  })
})
