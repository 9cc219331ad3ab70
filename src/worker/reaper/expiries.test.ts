import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { settled, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable, openLeaseStore } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../events.ts'

useQuietProcess()
const { url } = useDatabase()
const startWorker = useWorkers(url)
const db = openDatabase({ url })

/** Expired leases are claimable, as in webhooks, sync and reconciled tables. */
const table = leaseTable({
  ...WORK_TABLE,
  onExpiry: 'claimable',
  retry: [0, 10],
  writes: { ...WORK_TABLE.writes, claim: { status: "'CLAIMED'" } },
  outcomes: {
    done: { status: "'DONE'", available_at: 'null' },
    retry: { status: "'PENDING'" },
    dead: { status: "'DEAD'", available_at: 'null' },
  },
})

beforeAll(async () => db.query({ text: WORK_DDL }))
beforeEach(async () => db.query({ text: 'truncate public.jobs' }))
afterAll(async () => db.close())

/** Six rows whose leases have expired, of a process that is no more. */
async function abandoned(): Promise<string[]> {
  const ids = await insertJobs(db, 6)
  const dead = await openLeaseStore(db, table, { owner: 'dead' })
  await dead.claim({ limit: 6, leaseMs: 60_000 })
  await db.query({ text: "update public.jobs set locked_until = now() - interval '1 second'" })
  return ids
}

describe('D5 D13: every expiry is reported once', () => {
  it.each([true, false])('by a worker process, with a reaper of its own: %s', async (reaper) => {
    const ids = await abandoned()
    const events = new Events()
    const reported: string[] = []
    events.on('reaped', ({ id, owner, outcome }) => reported.push(`${id} of ${owner}: ${outcome}`))
    const done = settled(events, ids)
    const settings = reaper ? {} : { reaperIntervalMs: 100 }
    await startWorker({ table, settings, handle: async () => undefined }, { events, reaper })
    await done
    expect(reported).toHaveLength(ids.length)
    expect(new Set(reported)).toEqual(new Set(ids.map((id) => `${id} of dead: retry`)))
    expect(await jobStates(db)).toEqual({ DONE: 6 })
  })

  it('by a claim of a store, in its answer', async () => {
    const ids = await abandoned()
    const store = await openLeaseStore(db, table, { owner: 'heir' })
    const { claimed, reaped = [] } = await store.claim({ limit: 2, leaseMs: 60_000 })
    expect(claimed).toHaveLength(2)
    expect(new Set(reaped.map(({ id, owner }) => `${id} of ${owner}`))).toEqual(
      new Set(ids.map((id) => `${id} of dead`)),
    )
    expect(reaped).toHaveLength(ids.length)
    expect((await store.claim({ limit: 6, leaseMs: 60_000 })).reaped).toBeUndefined()
  })
})

it('D5 D10: a process without a reaper takes second and later expiries too, and makes rows dead whose attempts are used up', async () => {
  const [second = '', last = ''] = await abandoned()
  await db.query({
    text: 'update public.jobs set expiries = 1, attempts = 1 where id = $1',
    values: [second],
  })
  await db.query({ text: 'update public.jobs set expiries = 4, attempts = 4 where id = $1', values: [last] })
  const events = new Events()
  const seen: (string | number)[][] = []
  events.on('started', ({ id, attempt }) => {
    if (id === second) seen.push([id, attempt])
  })
  const over = settled(events, [second])
  const handle = async (): Promise<void> => undefined
  await startWorker({ table, settings: { reaperIntervalMs: 100 }, handle }, { events, reaper: false })
  await over
  await expect.poll(async () => jobStates(db)).toEqual({ DONE: 5, DEAD: 1 })
  expect(seen).toEqual([[second, 3]])
})
