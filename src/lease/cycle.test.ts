/** What a worker finds by pipeline after pipeline, and what it costs to find it. */
import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { ordered, subjectOf } from '../../test/support/lease-tables.ts'
import { statementsOf } from '../../test/support/statement-plans.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import type { Statement } from '../postgres/queryable.ts'
import { leaseTable } from './declaration.ts'
import type { LeaseTable } from './table.ts'
import { type CycleClaim, openLeaseStore, type StoreOptions } from './store.ts'
import type { Lease } from './lease.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

const parcels = leaseTable({
  table: 'public.parcels',
  bucket: 'bucket',
  claimable: "status = 'open'",
  availableAt: 'due',
  attempts: { expiries: false, error: false },
  outcomes: { done: { status: "'done'" } },
})

beforeAll(async () => {
  await subjectOf(db, ordered).create()
  await db.query({
    text: `create table public.parcels (bucket int not null, id bigint generated always as identity,
        status text not null default 'open', due timestamptz not null default now(), attempts int not null default 0,
        lease_owner text, lease_until timestamptz, lease_token bigint not null default 0, primary key (bucket, id));
      create index on public.parcels (bucket, due, id) where status = 'open';
      create index on public.parcels (bucket, id) where lease_owner is not null`,
  })
})
beforeEach(async () => db.query({ text: 'truncate public.ordered_jobs, public.parcels' }))

/** Its rows have an ordering key, or none. */
const { table } = ordered

interface Worker {
  /** The next pipeline: it settles these rows as done, and claims others. */
  readonly send: (rows: number, finished?: readonly Lease[]) => Promise<CycleClaim<object>>
  /** Claims until there is nothing more, by several pipelines if need be. */
  readonly drain: (rows: number) => Promise<CycleClaim<object>[]>
  /** What was sent so far: the statements of each pipeline, by their purposes. */
  readonly sent: readonly (readonly string[])[]
  readonly keysFreed: (leases: readonly Lease[]) => void
  readonly wake: () => void
  readonly passTime: (ms: number) => void
}

/** Its clock stands still, apart from the time that a pipeline seems to take. */
async function startWorker(
  table: LeaseTable,
  {
    pipelineMs = 1,
    onSend = () => undefined,
    on = db,
    ...options
  }: Partial<StoreOptions> & {
    readonly pipelineMs?: number | (() => Promise<number>)
    readonly onSend?: (purposes: readonly string[], worker: Worker) => void
    readonly on?: Database
  } = {},
): Promise<Worker> {
  let now = 0
  const sent: string[][] = []
  const watched: Database = {
    ...on,
    pipeline: async <Rows extends object[]>(statements: readonly Statement[]) => {
      const purposes = statements.map(purposeOf)
      sent.push(purposes)
      onSend(purposes, worker)
      const results = await on.pipeline<Rows>(statements)
      now += typeof pipelineMs === 'number' ? pipelineMs : await pipelineMs()
      return results
    },
  }
  const store = await openLeaseStore<object>(watched, table, { owner: 'worker', ...options })
  const cycle = store.cycle({ clock: { monotonicNow: () => now }, random: () => 0 })
  const worker: Worker = {
    send: async (rows, finished = []) => {
      const settlements = finished.length === 0 ? [] : [{ outcome: 'done', leases: finished }]
      const room = { rows, bytes: Number.POSITIVE_INFINITY, leaseMs: 3_600_000 }
      const { ended, claim } = await cycle.send({ settlements, room })
      expect(ended.map((each) => each.ended.length)).toEqual(settlements.map(() => finished.length))
      if (claim === undefined) throw new Error('the pipeline has claimed nothing')
      return claim
    },
    drain: async (rows) => {
      const claims: CycleClaim<object>[] = []
      do claims.push(await worker.send(rows))
      while (claims.at(-1)?.drained !== true)
      return claims
    },
    sent,
    keysFreed: (leases) => cycle.keysFreed(leases),
    wake: () => cycle.wake(),
    passTime: (ms) => {
      now += ms
    },
  }
  sent.length = 0
  return worker
}

function purposeOf({ text }: Statement): string {
  return /leasehold:(.*?) \w+ \*\//.exec(text)?.[1] ?? text
}

function idsOf(...claims: readonly CycleClaim<object>[]): string[] {
  return claims.flatMap(({ claimed }) => claimed.map(({ lease }) => lease.id))
}

function leasesOf(...claims: readonly CycleClaim<object>[]): Lease[] {
  return claims.flatMap(({ claimed }) => claimed.map(({ lease }) => lease))
}

describe.each([
  { which: 'without an ordering key', key: 'null::text' },
  { which: 'with an ordering key', key: "'key ' || $2 || n" },
])('rows $which', ({ key }) => {
  const insert = `insert into public.ordered_jobs (customer) select ${key}
    from generate_series(1, $1::int) as n where $2::text is not null`
  const add = async (count: number, name = 'a'): Promise<unknown> =>
    db.query({ text: insert, values: [count, name] })

  it('a transaction that commits late, before the cursor, is claimed while a backlog lasts', async () => {
    const { send, passTime } = await startWorker(table, { pipelineMs: 30 })
    const late = new Client({ connectionString: url })
    await late.connect()
    try {
      await late.query('begin')
      await late.query(insert, [1, 'late'])
      await add(200)
      const before = await send(20)
      await late.query('commit')
      const { rows } = await db.query<{ id: string }>({
        text: 'select min(id)::text as id from public.ordered_jobs',
      })
      expect(idsOf(before)).not.toContain(rows[0]?.id)
      const found: string[] = []
      // Not more often than its cost allows, and long before the backlog ends.
      for (let sent = 0; sent < 4; sent += 1) {
        found.push(...idsOf(await send(20)))
        passTime(600)
      }
      expect(found).toContain(rows[0]?.id)
    } finally {
      await late.end()
    }
  })

  it('where a scan from the start costs much, a drained claim says when the next one is affordable', async () => {
    const { drain, passTime, wake } = await startWorker(table, { pipelineMs: 30 })
    await add(3)
    expect(idsOf(...(await drain(10)))).toHaveLength(3)
    await add(3, 'b')
    passTime(2_000)
    // Read by a scan from the start.
    await drain(10)
    await add(1, 'first')
    await db.query({
      text: `update public.ordered_jobs set available_at = now() - interval '1 hour' where id = (select max(id) from public.ordered_jobs)`,
    })
    wake()
    const [claim, ...rest] = (await drain(10)).toReversed()
    const nextScanInMs = claim?.nextScanInMs ?? 0
    expect([idsOf(...rest), nextScanInMs > 500, nextScanInMs <= 1_000]).toEqual([[], true, true])
    passTime(nextScanInMs)
    expect(idsOf(...(await drain(10)))).toHaveLength(1)
  })

  it('what wakes a worker while a claim is on its way is not forgotten', async () => {
    let wakes = 1
    const { send } = await startWorker(table, {
      onSend: (_, { wake }) => {
        if (wakes-- > 0) wake()
      },
    })
    expect([(await send(10)).drained, (await send(10)).drained]).toEqual([false, true])
  })

  it('while a snapshot is held open elsewhere, the last third of 30,000 rows costs at most twice as many index reads as the first', async () => {
    const holder = new Client({ connectionString: url })
    await holder.connect()
    // One connection, which reports its statistics before they are read.
    const alone = openDatabase({ url, maxConnections: 1 })
    const read = async (): Promise<number> => {
      await alone.query({ text: 'select pg_stat_force_next_flush()' })
      const { rows } = await alone.query<{ read: number }>({
        text: 'select sum(idx_tup_read)::float8 as read from pg_stat_user_indexes where relid = $1::regclass',
        values: ['public.ordered_jobs'],
      })
      return rows[0]?.read ?? Number.NaN
    }
    try {
      await db.query({ text: `alter table public.ordered_jobs set (autovacuum_enabled = off)` })
      await add(30_000)
      await db.query({ text: `analyze public.ordered_jobs` })
      await holder.query('begin isolation level repeatable read')
      await holder.query(`select count(*) from public.ordered_jobs`)
      let settled = 0
      // A pipeline seems to take 10 ms, and one more for every 500 index entries that it reads.
      let before = await read()
      const pipelineMs = async (): Promise<number> => {
        const entries = -before + (before = await read())
        return 10 + entries / 500
      }
      const { send } = await startWorker(table, { on: alone, pipelineMs })
      const marks = [await read()]
      for (let finished: Lease[] = []; marks.length <= 3;) {
        finished = leasesOf(await send(500, finished))
        settled += finished.length
        if (finished.length === 0) break
        if (settled >= 10_000 * marks.length) marks.push(await read())
      }
      const [first = 0, , last = Infinity] = marks.slice(1).map((mark, i) => mark - (marks[i] ?? Number.NaN))
      // Each row is read at least once. Now and then a claim starts at the beginning and walks over the dead entries; if
      // every claim did, the last third would cost more than four times as much.
      expect(first).toBeGreaterThanOrEqual(10_000)
      expect(last).toBeLessThanOrEqual(first * 2)
    } finally {
      await alone.close()
      await holder.end()
    }
  })
})

describe('rows with and without ordering keys', () => {
  const add = async (count: number, key: string): Promise<unknown> =>
    db.query({
      text: `insert into public.ordered_jobs (customer) select ${key} from generate_series(1, $1::int) as n`,
      values: [count],
    })

  it.each([1, 2, 10])('share the room of %i rows', async (rows) => {
    await add(200, 'null')
    await add(200, "'key ' || n")
    const { send } = await startWorker(table)
    const customers = new Set<boolean>()
    for (let i = 0; i < 4; i += 1)
      for (const { row } of (await send(rows)).claimed) customers.add(Reflect.get(row, 'customer') === null)
    expect(customers.size).toBe(2)
  })

  it('the room of those that had none is given to the others, until 50 ms after a wake-up', async () => {
    await add(200, 'null')
    const { send, sent, wake, passTime } = await startWorker(table)
    await send(10)
    expect(await send(10)).toMatchObject({ claimed: { length: 10 } })
    wake()
    await send(10)
    passTime(50)
    await send(10)
    expect(sent).toMatchObject([{ length: 2 }, { length: 1 }, { length: 1 }, { length: 2 }])
  })

  it('those that had none are tried at once when the others have no more', async () => {
    await add(5, 'null')
    const { send, drain, wake } = await startWorker(table)
    await drain(10)
    await add(1, 'null')
    wake()
    await send(10)
    await add(1, "'key'")
    wake()
    expect(idsOf(...(await drain(10)))).toHaveLength(1)
    expect((await send(10)).drained).toBe(true)
  })

  it('the keys of a pipeline that failed are continued by the next one', async () => {
    await add(6, "'key ' || n % 3")
    let isAway = false
    const { send, drain, passTime } = await startWorker(table, {
      pipelineMs: 30,
      onSend: () => {
        if (isAway) throw new Error('away')
      },
    })
    const claims = await drain(20)
    passTime(300)
    isAway = true
    await expect(send(20, leasesOf(...claims))).rejects.toThrow('away')
    isAway = false
    expect((await send(20, leasesOf(...claims))).claimed).toHaveLength(3)
  })
})

describe('where a worker serves all buckets', () => {
  const add = async (...buckets: readonly number[]): Promise<unknown> =>
    db.query({
      text: 'insert into public.parcels (bucket) select unnest($1::int[])',
      values: [buckets],
    })
  const fill = async (count: number, buckets: string): Promise<unknown> =>
    db.query({
      text: `insert into public.parcels (bucket) select ${buckets} from generate_series(0, $1::int - 1) as n`,
      values: [count],
    })
  const start = async (options: Parameters<typeof startWorker>[1] = {}): Promise<Worker> =>
    startWorker(parcels, { bucket: 'all', bucketCount: () => 64, ...options })

  it('with one bucket, rows are claimed without finding it', async () => {
    await fill(12, '0')
    const { drain, sent } = await start({ bucketCount: () => 1 })
    expect(idsOf(...(await drain(5)))).toHaveLength(12)
    expect(new Set(sent.flat())).toEqual(new Set(['claim in order']))
  })

  it('an idle worker sends one statement, however many buckets there are', async () => {
    const { send, sent } = await start({ bucketCount: () => 1_024 })
    expect(await send(10)).toMatchObject({ claimed: [], drained: true })
    expect(sent).toEqual([['waiting buckets']])
  })

  it('rows of many buckets are claimed by few pipelines', async () => {
    await fill(640, 'n % 64')
    const { drain, sent } = await start()
    expect(new Set(idsOf(...(await drain(100)))).size).toBe(640)
    expect(sent.length).toBeLessThan(32)
  })

  it('a bucket that is not drained is claimed from for 100 ms, then it is the turn of the next', async () => {
    await fill(600, '3 + 6 * (n % 2)')
    const { send } = await start({ pipelineMs: 10 })
    const buckets: unknown[] = []
    for (let i = 0; i < 30; i += 1) buckets.push(...(await send(1)).claimed.map(({ lease }) => lease.bucket))
    expect(buckets.filter((bucket) => bucket === 3).length).toBeGreaterThanOrEqual(8)
    expect(buckets.filter((bucket) => bucket === 9).length).toBeGreaterThanOrEqual(8)
    const changes = buckets.filter((bucket, i) => i > 0 && bucket !== buckets[i - 1])
    expect(changes.length).toBeLessThanOrEqual(4)
  })

  it.each([1, 50])(
    'buckets in which rows arrive later have their turns, however many rows wait in others, with room for %i',
    async (rows) => {
      await fill(4_000, '3 + n % 4')
      const { send } = await start({ pipelineMs: 10 })
      let finished = leasesOf(await send(rows))
      await add(40)
      const seen = new Set<unknown>()
      for (let i = 0; i < 70; i += 1) {
        finished = leasesOf(await send(rows, finished))
        for (const { bucket } of finished) seen.add(bucket)
      }
      expect(seen).toContain(40)
    },
  )

  it('a bucket with rows that cannot be claimed is tried after 250 ms, then after longer times', async () => {
    await add(1)
    const { drain, sent, passTime, wake } = await start()
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.parcels for update' })
      const waits: number[] = []
      for (let i = 0; i < 7; i += 1) {
        const claims = await drain(10)
        waits.push(Math.round((claims.at(-1)?.nextScanInMs ?? 0) / 50) * 50)
        passTime(waits.at(-1) ?? 0)
      }
      expect(waits).toEqual([250, 500, 1_000, 2_000, 4_000, 5_000, 5_000])
      expect(sent.filter((purposes) => purposes.includes('claim in order'))).toHaveLength(7)
      await drain(10)
      // A wake-up begins anew, but does not claim at once.
      wake()
      expect((await drain(10)).at(-1)?.nextScanInMs).toBeLessThanOrEqual(250)
    })
    passTime(250)
    expect(idsOf(...(await drain(10)))).toHaveLength(1)
  })

  it('a row that arrives in a bucket that was just drained is claimed at the next wake-up', async () => {
    await add(1)
    const { drain, send, wake } = await start()
    await drain(10)
    await add(1)
    wake()
    expect((await send(10)).claimed).toHaveLength(1)
  })

  it('a wake-up while buckets are being found is not forgotten', async () => {
    let wakes = 1
    const { send } = await start({
      onSend: (_, { wake }) => {
        if (wakes-- > 0) wake()
      },
    })
    expect([(await send(10)).drained, (await send(10)).drained]).toEqual([false, true])
  })

  it('a worker is told when the next row is due in a bucket in which none is yet', async () => {
    await add(1, 2)
    await db.query({ text: "update public.parcels set due = now() + interval '1 minute' where bucket = 2" })
    const { drain } = await start()
    const { nextScanInMs = 0, dueInMs = Number.POSITIVE_INFINITY } = (await drain(10)).at(-1) ?? {}
    expect(Math.min(nextScanInMs, dueInMs)).toBeGreaterThan(50_000)
    expect(Math.min(nextScanInMs, dueInMs)).toBeLessThanOrEqual(60_000)
  })

  it('a bucket whose rows are never due is not waited for, and one whose rows have always been due is claimed from', async () => {
    await add(1, 2, 3)
    await db.query({
      text: "update public.parcels set due = case bucket when 2 then timestamptz 'infinity' else '-infinity' end where bucket > 1",
    })
    const waiting = (await statementsOf(db, parcels)).find(({ purpose }) => purpose === 'waiting buckets')
    const { rows } = await db.query<{ bucket: number; due_in_ms: number | null }>({
      text: waiting?.text ?? '',
    })
    expect(rows.map(({ bucket, due_in_ms }) => [bucket, due_in_ms && Math.sign(due_in_ms)])).toEqual([
      [1, -1],
      [2, null],
      [3, -1],
    ])
    const { drain } = await start()
    const claims = await drain(10)
    const buckets = claims.flatMap(({ claimed }) => claimed.map(({ lease }) => lease.bucket))
    expect(new Set(buckets)).toEqual(new Set([1, 3]))
    expect(claims.at(-1)).toMatchObject({ drained: true })
  })

  it('buckets that others have emptied meanwhile are found to be empty by few claims', async () => {
    await fill(640, 'n % 64')
    const { send, drain, sent } = await start()
    for (let i = 0; i < 3; i += 1) await send(50)
    await db.query({ text: "update public.parcels set status = 'done'" })
    const before = sent.length
    await drain(50)
    expect(sent.length - before).toBeLessThan(12)
  })
})
