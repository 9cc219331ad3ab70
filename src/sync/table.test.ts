/** The two lease tables by themselves, without a runner. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import {
  type ChunkRecord,
  emptySync,
  insertSyncChunks,
  insertSyncJobs,
  type JobRecord,
  syncChunks,
  syncJobs,
} from '../../test/support/sync-rows.ts'
import { type Lease, rowId } from '../lease/lease.ts'
import { openLeaseStore, type LeaseStore } from '../lease/store.ts'
import { openDatabase } from '../postgres/database.ts'
import { chunkTable, jobTable } from './table.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const GROUPS = ['a', 'b'] as const
const LEASE = { leaseMs: 60_000, groups: GROUPS.map((key) => ({ group: key, room: 100 })) }

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

const insertJobs = async (count: number, more?: Readonly<Record<string, string>>): Promise<string[]> =>
  insertSyncJobs(db, count, more)
const insertChunks = async (count: number, matrices?: readonly string[]): Promise<string[]> =>
  insertSyncChunks(db, count, matrices)

async function jobStore(owner: string): Promise<LeaseStore> {
  return openLeaseStore(db, jobTable(), { owner })
}

async function chunkStore(owner: string): Promise<LeaseStore> {
  return openLeaseStore(db, chunkTable(), { owner })
}

async function claim(store: LeaseStore, limit = 1): Promise<Lease[]> {
  return (await store.claim({ limit, ...LEASE })).claimed.map(({ lease }) => lease)
}

async function change(table: 'sync_jobs' | 'sync_checkpoints', set: string): Promise<void> {
  await db.query({ text: `update leasehold.${table} set ${set}` })
}

async function job(): Promise<JobRecord> {
  const [row] = await syncJobs(db)
  if (row === undefined) throw new Error('there is no job')
  return row
}

async function chunk(): Promise<ChunkRecord> {
  const [row] = await syncChunks(db)
  if (row === undefined) throw new Error('there is no chunk')
  return row
}

const OVER = "locked_until = now() - interval '1 second'"

describe('SYNC-04: a claim of jobs', () => {
  it('takes the highest priority first, and of one priority the oldest, whatever their definitions', async () => {
    // 1 to 3 are of definition a, 4 to 6 of definition b.
    const ids = await insertJobs(6, {
      priority: 'n % 3',
      created_at: "now() - n * interval '1 minute'",
    })
    const store = await jobStore('w')
    const order: string[] = []
    for (let i = 0; i < ids.length; i += 1) order.push(...(await claim(store)).map(({ id }) => id))
    // Of priority 2: 2 and 5, and 5 is older; of 1: 4 before 1; of 0: 6 before 3.
    expect(order).toEqual([5, 2, 4, 1, 6, 3].map((n) => ids[n - 1]))
  })

  it('takes only jobs without a lease or with an expired one', async () => {
    const [first = '', second = '', third = ''] = await insertJobs(3)
    const dead = await jobStore('dead')
    const expired = await claim(dead, 2)
    expect(expired.map(({ id }) => id)).toEqual([first, second])
    await db.query({ text: `update leasehold.sync_jobs set ${OVER} where id = $1`, values: [first] })
    const taken = await claim(await jobStore('other'), 10)
    expect(taken.map(({ id }) => id)).toEqual([first, third])
    expect(taken[0]?.token).toBe((expired[0]?.token ?? 0n) + 1n)
    expect((await syncJobs(db)).map(({ locked_by: by, attempts }) => [by, attempts])).toEqual([
      ['other', 1],
      ['dead', 0],
      ['other', 0],
    ])
  })

  it('skips jobs that another session has locked, and does not wait for them', async () => {
    const [first = '', second = ''] = await insertJobs(2)
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from leasehold.sync_jobs where id = $1 for update', values: [first] })
      expect((await claim(await jobStore('w'), 2)).map(({ id }) => id)).toEqual([second])
    })
    expect((await claim(await jobStore('w'), 2)).map(({ id }) => id)).toEqual([first])
  })

  it('is atomic: of many concurrent claims each job is taken by one, which its row names', async () => {
    const ids = await insertJobs(40)
    const stores = await Promise.all(Array.from({ length: 8 }, async (_, n) => jobStore(`w${n}`)))
    const taken: (readonly [string, string])[] = []
    await Promise.all(
      stores.map(async (store, n) => {
        // A claim may find all rows locked by the others: only one that finds none left ends the loop.
        while (taken.length < ids.length) for (const { id } of await claim(store)) taken.push([id, `w${n}`])
      }),
    )
    expect(taken.map(([id]) => id).toSorted()).toEqual(ids.toSorted())
    expect(Object.fromEntries((await syncJobs(db)).map(({ id, locked_by: by }) => [id, by]))).toEqual(
      Object.fromEntries(taken),
    )
  })

  it('takes no job that is completed, failed or not due', async () => {
    await insertJobs(1, { completed_at: 'now()' })
    await insertJobs(1, { failed_at: 'now()' })
    await insertJobs(1, { next_check_at: "now() + interval '1 minute'" })
    expect(await claim(await jobStore('w'), 10)).toEqual([])
  })

  it('SYNC-13: writes the name of the worker together with the end of the lease', async () => {
    await insertJobs(1)
    await insertChunks(1)
    await claim(await jobStore('host-7.planner'))
    await claim(await chunkStore('host-8.worker'))
    expect(await job()).toMatchObject({ state: 'RUNNING', locked_by: 'host-7.planner' })
    expect(await chunk()).toMatchObject({ state: 'RUNNING', locked_by: 'host-8.worker' })
  })
})

describe('SYNC-05: a heartbeat', () => {
  it('extends the lease of its holder', async () => {
    await insertJobs(1)
    const store = await jobStore('w')
    const leases = await claim(store)
    const { locked_until: before } = await job()
    expect(await store.renew(leases, 600_000)).toMatchObject({ renewed: leases, lost: [] })
    expect((await job()).locked_until?.getTime()).toBeGreaterThan(before?.getTime() ?? Infinity)
  })

  it.each([
    ['another worker holds it', "locked_by = 'thief'"],
    ['it was claimed again under the same name', 'lock_token = lock_token + 1'],
    ['it is over', OVER],
    ['the row is completed', 'completed_at = now(), locked_by = null, locked_until = null'],
    ['the row has failed', 'failed_at = now(), locked_by = null, locked_until = null'],
  ])('changes nothing when %s: neither of a job nor of a chunk', async (_, set) => {
    await insertJobs(1)
    await insertChunks(1)
    const [jobs, chunks] = [await jobStore('w'), await chunkStore('w')]
    const [jobLeases, chunkLeases] = [await claim(jobs), await claim(chunks)]
    await change('sync_jobs', set)
    await change('sync_checkpoints', `${set}, last_synced_at = now(), row_count = 1`)
    const before = [await job(), await chunk()]
    expect(await jobs.renew(jobLeases, 600_000)).toMatchObject({ renewed: [], lost: jobLeases })
    expect(await chunks.renew(chunkLeases, 600_000)).toMatchObject({ renewed: [], lost: chunkLeases })
    expect([await job(), await chunk()]).toEqual(before)
  })
})

describe('an end', () => {
  it('SYNC-06: of a completed job is written with its time, the lease is cleared, and nothing changes it any more', async () => {
    await insertJobs(1)
    const store = await jobStore('w')
    const leases = await claim(store)
    expect(await store.settle('done', leases)).toMatchObject({ ended: leases })
    const ended = await job()
    expect(ended).toMatchObject({ state: 'COMPLETED', failed_at: null, locked_until: null, locked_by: null })
    expect(ended.completed_at).toBeInstanceOf(Date)
    await expectFinal(store, leases)
    expect(await job()).toEqual(ended)
  })

  it('SYNC-07: of a failed job is written with its time and its reason, the lease is cleared, and nothing changes it any more', async () => {
    await insertJobs(1)
    const store = await jobStore('w')
    const leases = await claim(store)
    await store.settle('dead', leases, { args: [{ error: 'the office is closed' }] })
    const ended = await job()
    expect(ended).toMatchObject({
      state: 'FAILED',
      error_message: 'the office is closed',
      completed_at: null,
      locked_until: null,
      locked_by: null,
    })
    expect(ended.failed_at).toBeInstanceOf(Date)
    await expectFinal(store, leases)
    expect(await job()).toEqual(ended)
  })

  it('SYNC-09: of a chunk is written with its time and its rows, and the lease is cleared', async () => {
    await insertChunks(1)
    const store = await chunkStore('w')
    await store.settle('done', await claim(store), { args: [{ rows: 42 }] })
    const ended = await chunk()
    expect(ended).toMatchObject({
      state: 'COMPLETED',
      row_count: '42',
      locked_until: null,
      locked_by: null,
    })
    expect(ended.last_synced_at).toEqual(ended.completed_at)
    expect(ended.last_synced_at).toBeInstanceOf(Date)
  })

  async function expectFinal(store: LeaseStore, leases: readonly Lease[]): Promise<void> {
    for (const [outcome, args] of [
      ['done', undefined],
      ['dead', { error: 'too late' }],
      ['retry', { error: 'too late', delay_ms: 0 }],
      ['waiting', { delay_ms: 0 }],
    ] as const) {
      const settled = await store.settle(outcome, leases, args === undefined ? {} : { args: [args] })
      expect(settled).toMatchObject({ ended: [], fencedOff: leases })
    }
    expect(await store.renew(leases, 60_000)).toMatchObject({ renewed: [], lost: leases })
    expect(await store.release(leases)).toMatchObject({ ended: [], fencedOff: leases })
    expect(await claim(store)).toEqual([])
    expect(await store.reap()).toEqual([])
  }
})

describe('SYNC-08, D7: a chunk is its matrix and its hash', () => {
  const images = async (): Promise<unknown[]> =>
    (await syncChunks(db)).map(({ matrix_id: matrix, state, row_count: rows, lock_token: token }) => [
      matrix,
      state,
      rows,
      token,
    ])

  it('the same hash in two matrices is two chunks: each is claimed, renewed, completed and failed by itself', async () => {
    await insertChunks(1, ['m1', 'm2', 'm3'])
    const [a, b] = [await chunkStore('a'), await chunkStore('b')]
    const [mine] = [await claim(a), await claim(b)]
    expect(mine.map(({ id }) => id)).toEqual([rowId('m1', 'h1')])
    const before = await syncChunks(db)
    await a.renew(mine, 600_000)
    const renewed = await syncChunks(db)
    expect(renewed[0]?.xmin).not.toBe(before[0]?.xmin)
    expect(renewed.slice(1)).toEqual(before.slice(1))
    await a.settle('done', mine, { args: [{ rows: 5 }] })
    expect(await images()).toEqual([
      ['m1', 'COMPLETED', '5', A_TOKEN],
      ['m2', 'RUNNING', null, A_TOKEN],
      ['m3', 'AVAILABLE', null, '0'],
    ])
  })

  it('SYNC-08: a given chunk is claimed by its matrix and its hash, whatever comes before it, and no other is', async () => {
    await insertChunks(2, ['m1', 'm2'])
    const wanted = rowId('m2', 'h2')
    const [a, b] = [await chunkStore('a'), await chunkStore('b')]
    const { claimed } = await a.claim({ ids: [wanted], limit: 1, leaseMs: 60_000 })
    expect(claimed).toMatchObject([
      { lease: { id: wanted, owner: 'a' }, row: { matrix_id: 'm2', chunk_hash: 'h2' } },
    ])
    // Nobody gets it a second time, and the same hash of another matrix is another chunk.
    expect((await b.claim({ ids: [wanted], limit: 1, leaseMs: 60_000 })).claimed).toEqual([])
    expect((await b.claim({ ids: [rowId('m1', 'h2')], limit: 1, leaseMs: 60_000 })).claimed).toHaveLength(1)
    expect((await b.claim({ ids: [rowId('m3', 'h2')], limit: 1, leaseMs: 60_000 })).claimed).toEqual([])
    await a.settle(
      'done',
      claimed.map(({ lease }) => lease),
      { args: [{ rows: 1 }] },
    )
    expect((await b.claim({ ids: [wanted], limit: 1, leaseMs: 60_000 })).claimed).toEqual([])
    const states = (await syncChunks(db)).map(({ matrix_id: matrix, chunk_hash: hash, state }) => [
      matrix,
      hash,
      state,
    ])
    expect(states).toEqual([
      ['m1', 'h1', 'AVAILABLE'],
      ['m1', 'h2', 'RUNNING'],
      ['m2', 'h1', 'AVAILABLE'],
      ['m2', 'h2', 'COMPLETED'],
    ])
  })

  it('SYNC-08: of many concurrent claims of a given chunk one gets it, and after its lease has expired another one', async () => {
    await insertChunks(2, ['m1', 'm2'])
    const wanted = { ids: [rowId('m2', 'h1')], limit: 1, leaseMs: 60_000 }
    const stores = await Promise.all(Array.from({ length: 8 }, async (_, n) => chunkStore(`w${n}`)))
    const holders = async (): Promise<string[]> => {
      const claims = await Promise.all(stores.map(async (store) => store.claim(wanted)))
      return claims.flatMap(({ claimed }) => claimed.map(({ lease }) => `${lease.owner}, ${lease.token}`))
    }
    const heldBy = async (): Promise<string[]> =>
      (await syncChunks(db))
        .filter(({ locked_by: by }) => by !== null)
        .map(({ matrix_id: matrix, chunk_hash: hash, locked_by: by, lock_token: token }) => {
          expect([matrix, hash]).toEqual(['m2', 'h1'])
          return `${by}, ${token}`
        })
    const first = await holders()
    expect(first).toEqual([expect.stringMatching(/^w\d, \d{16}$/)])
    expect(await heldBy()).toEqual(first)
    await db.query({ text: `update leasehold.sync_checkpoints set ${OVER} where locked_by is not null` })
    const second = await holders()
    expect(second).toEqual([expect.stringMatching(/^w\d, \d{16}$/)])
    expect(await heldBy()).toEqual(second)
  })

  it('a matrix cannot have the same hash twice', async () => {
    await insertChunks(1)
    await expect(insertChunks(1)).rejects.toMatchObject({ constraint: 'sync_checkpoints_pkey' })
  })
})

const DIED =
  'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'

describe.each([
  ['job', 'sync_jobs', jobStore, insertJobs, job, 'next_check_at'],
  ['chunk', 'sync_checkpoints', chunkStore, insertChunks, chunk, 'next_attempt_at'],
] as const)('D4, D5, D10: an expired lease of a %s', (_, table, open, insert, row, due) => {
  async function waitsMs(): Promise<number> {
    const { rows } = await db.query<{ ms: number }>({
      text: `select greatest(0, extract(epoch from ${due} - now())::float8 * 1000) as ms from leasehold.${table}`,
    })
    return rows[0]?.ms ?? Number.NaN
  }

  it('counts as an attempt and as an expiry, whether the reaper or the next claim finds it', async () => {
    await insert(1)
    const store = await open('dead')
    await claim(store)
    await change(table, OVER)
    expect(await store.reap()).toMatchObject([{ owner: 'dead', exhausted: false }])
    const reaped = { state: 'AVAILABLE', attempts: 1, expiries: 1, locked_by: null, error_message: DIED }
    expect(await row()).toMatchObject(reaped)

    await change(table, 'attempts = 0, expiries = 0')
    await claim(store)
    await change(table, OVER)
    expect(await claim(await open('heir'))).toHaveLength(1)
    expect(await row()).toMatchObject({ attempts: 1, expiries: 1, locked_by: 'heir', lock_token: A_TOKEN })
  })

  it('brings it back at once the first time; from the second on it waits, longer each time, and is never given up', async () => {
    await insert(1)
    const store = await open('dead')
    const waits: number[] = []
    const claimedEarly: Lease[] = []
    for (let expiries = 1; expiries <= 30; expiries += 1) {
      expect(await claim(store)).toHaveLength(1)
      await change(table, OVER)
      // Only a first expiry is claimed without the reaper, which knows how long the others have to wait.
      if (expiries > 1) claimedEarly.push(...(await claim(store)))
      await store.reap()
      expect(await row()).toMatchObject({ state: 'AVAILABLE', attempts: expiries, expiries })
      waits.push(Math.round((await waitsMs()) / 1_000))
      await change(table, `${due} = now()`)
    }
    expect(waits.slice(0, 6)).toEqual([0, 2, 4, 8, 16, 32])
    expect(waits.at(-1)).toBe(3_600)
    expect(claimedEarly).toEqual([])
  })

  it('twice makes it a suspect: a claim takes at most one of these, and none where it must not', async () => {
    await insert(6)
    await change(table, `definition = 'a', expiries = 2`)
    const store = await open('w')
    expect((await store.claim({ limit: 10, suspects: 0, ...LEASE })).claimed).toEqual([])
    const { claimed, suspects } = await store.claim({ limit: 10, ...LEASE })
    expect(claimed).toHaveLength(1)
    expect(claimed.map(({ lease }) => lease.id)).toEqual(suspects)
  })
})
