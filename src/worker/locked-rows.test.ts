import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../test/support/running-worker.ts'
import { insertJobs, jobs, jobStates, WORK_DDL } from '../../test/support/work-table.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events, type EventType } from './events.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs restart identity' })
})
afterAll(async () => db.close())

/** Locks the row in another session until the test lets it go. */
async function lockRow(id: string | undefined): Promise<() => Promise<void>> {
  const [locked, over] = [door(), door()]
  const session = db.transaction(async (tx) => {
    await tx.query({ text: 'select from public.jobs where id = $1 for update', values: [id] })
    locked.open()
    await over.opened
  })
  await locked.opened
  return async () => {
    over.open()
    await session
  }
}

/** What must not happen while a row is locked. */
function losses(events: Events): EventType[] {
  const seen: EventType[] = []
  for (const type of ['fencedOff', 'lost', 'trouble', 'reaped', 'dataError'] as const)
    events.on(type, () => seen.push(type))
  return seen
}

it('a row that another session has locked delays no other: it is settled when it is free, and nothing is fenced off', async () => {
  const events = new Events()
  const lost = losses(events)
  const ids = await insertJobs(db, 20)
  const [locked, ...others] = ids
  const hold = door()
  const started = collect(events, 'started', (all) => all.length === ids.length)
  await run({ handle: async () => hold.opened, settings: { concurrency: 20 } }, { events })
  await started
  const unlock = await lockRow(locked)
  const othersSettled = settled(events, others)
  hold.open()
  await othersSettled
  expect(await jobStates(db)).toEqual({ CLAIMED: 1, DONE: 19 })
  // New rows are claimed and settled meanwhile.
  const more = settled(events, await insertJobs(db, 200))
  await more
  expect(await jobStates(db)).toEqual({ CLAIMED: 1, DONE: 219 })
  const last = settled(events, [locked ?? ''])
  await unlock()
  await last
  expect(await jobStates(db)).toEqual({ DONE: 220 })
  expect((await jobs(db)).every(({ attempts, lock_token }) => attempts === 0 && lock_token !== '0')).toBe(
    true,
  )
  expect(lost).toEqual([])
})

it('RULE-020-010: a renewal extends the other rows while one is locked, and that one as soon as it is free', async () => {
  const events = new Events()
  const lost = losses(events)
  const ids = await insertJobs(db, 3)
  const hold = door()
  const started = collect(events, 'started', (all) => all.length === ids.length)
  await run({ handle: async () => hold.opened, settings: { leaseMs: 3_000 } }, { events })
  await started
  const unlock = await lockRow(ids[0])
  const busy = events.next('renewed', (renewal) => renewal.busy > 0)
  expect(await busy).toMatchObject({ count: 2, busy: 1 })
  const free = events.next('renewed', (renewal) => renewal.count === 3)
  await unlock()
  expect(await free).toMatchObject({ busy: 0 })
  const over = settled(events, ids)
  hold.open()
  await over
  expect(lost).toEqual([])
})

it('RULE-020-010: a row that is locked for a moment when it is renewed is renewed before the next heartbeat', async () => {
  const events = new Events()
  const lost = losses(events)
  const ids = await insertJobs(db, 3)
  const hold = door()
  const started = collect(events, 'started', (all) => all.length === ids.length)
  const { runtime } = await run({ handle: async () => hold.opened }, { events })
  await started
  const unlock = await lockRow(ids[0])
  const busy = events.next('renewed', (renewal) => renewal.busy > 0)
  // The change makes all rows be renewed at once; the next heartbeat is three minutes later.
  runtime.change('jobs', { leaseMs: 600_000 })
  await busy
  const free = events.next('renewed', (renewal) => renewal.busy === 0)
  await unlock()
  expect(await free).toMatchObject({ count: 1 })
  const over = settled(events, ids)
  hold.open()
  await over
  expect(lost).toEqual([])
})

it('LIFE-12: settleIn waits for a row that another session has locked, and its transaction commits once', async () => {
  const events = new Events()
  const lost = losses(events)
  const ids = await insertJobs(db, 4)
  const [locked, ...others] = ids
  const hold = door()
  const started = collect(events, 'started', (all) => all.length === ids.length)
  await run(
    {
      handle: async (context) => {
        await hold.opened
        await db.transaction(async (tx) => {
          await tx.query({
            text: `insert into public.runs (job, token, worker) values ($1, $2, 'effect')`,
            values: [context.id, String(context.token)],
          })
          await context.settleIn(tx)
        })
      },
      settings: { concurrency: 4, leaseMs: 3_000 },
    },
    { events },
  )
  await started
  const unlock = await lockRow(locked)
  const othersSettled = settled(events, others)
  // A renewal has met the locked row too.
  const busy = events.next('renewed', (renewal) => renewal.busy > 0)
  hold.open()
  await othersSettled
  await busy
  const last = settled(events, [locked ?? ''])
  await unlock()
  await last
  expect(await jobStates(db)).toEqual({ DONE: 4 })
  const { rows } = await db.query({ text: 'select job, token from public.runs order by job' })
  expect(rows).toEqual(ids.map((job) => ({ job, token: A_TOKEN })))
  expect(lost).toEqual([])
})

it('D9: a waiting row that is locked when the worker pauses is released when it is free, without counting an attempt', async () => {
  const events = new Events()
  const lost = losses(events)
  const ids = await insertJobs(db, 2)
  const hold = door()
  const started = events.next('started')
  const claimed = collect(events, 'claimed', (all) => all.reduce((sum, { count }) => sum + count, 0) === 2)
  const { runtime } = await run(
    { handle: async () => hold.opened, settings: { concurrency: 1, prefetch: 5 } },
    { events },
  )
  await claimed
  const { id: startedId } = await started
  const waiting = ids.find((id) => id !== startedId)
  const unlock = await lockRow(waiting)
  const released = events.next('released')
  runtime.worker('jobs').pause()
  await unlock()
  expect(await released).toMatchObject({ ids: [waiting] })
  expect((await jobs(db)).find(({ id }) => id === waiting)).toMatchObject({
    status: 'PENDING',
    attempts: 0,
    expiries: 0,
    claimed_by: null,
  })
  const over = settled(events, [startedId])
  hold.open()
  await over
  expect(lost).toEqual([])
})
