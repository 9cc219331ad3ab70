import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { collect, settled, useWorkers } from '../../test/support/running-worker.ts'
import { insertJobs, jobs, jobStates, WORK_DDL } from '../../test/support/work-table.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from './events.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  await db.query({
    text: `alter table public.jobs alter max_attempts set default 100, add check (attempts <= 5)`,
  })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs restart identity' })
})
afterAll(async () => db.close())

/** As a process leaves them that died some time ago. */
async function expire(): Promise<void> {
  await db.query({
    text: `update public.jobs set status = 'CLAIMED', available_at = null, claimed_by = 'dead',
      locked_until = now() - interval '1 minute', lock_token = 1`,
  })
}

it('a row that stops the reap statement is reported each time it is tried, and the reaper takes back the others', async () => {
  const ids = await insertJobs(db, 100)
  const [bad = '', ...others] = ids
  await db.query({ text: 'update public.jobs set attempts = 5 where id = $1', values: [bad] })
  await expire()
  const events = new Events()
  const over = settled(events, others)
  const errors = collect(events, 'dataError', (all) => all.length === 2)
  let reaperRuns = 0
  events.on('reaperRan', () => (reaperRuns += 1))
  await run({ handle: async () => undefined, settings: { leaseMs: 1_000, reaperIntervalMs: 50 } }, { events })
  await over
  expect(await jobStates(db)).toEqual({ CLAIMED: 1, DONE: 99 })
  const row = { table: 'public.jobs', verb: 'reap', id: bad, error: { code: '23514' } }
  expect(await errors).toMatchObject([
    { ...row, retryInMs: 1_000 },
    { ...row, retryInMs: 2_000 },
  ])
  expect(reaperRuns).toBeGreaterThan(5)
})

it('a row that stops the claim statement is reported, and the rows after it are claimed', async () => {
  await db.query({
    text: `create function public.refuse() returns trigger language plpgsql as
        $$ begin raise exception 'this one not' using errcode = 'P0001'; end $$;
      create trigger refuse before update on public.jobs
        for each row when (old.kind = 'bad' and new.status = 'CLAIMED') execute function public.refuse()`,
  })
  const [bad] = await insertJobs(db, 1, 'bad')
  const others = await insertJobs(db, 50)
  const events = new Events()
  const over = settled(events, others)
  const error = events.next('dataError')
  await run({ handle: async () => undefined }, { events })
  await over
  expect(await error).toMatchObject({ verb: 'claim', id: bad, error: { code: 'P0001' }, retryInMs: 1_000 })
  expect((await jobs(db)).filter(({ status }) => status !== 'DONE')).toMatchObject([{ id: bad, attempts: 0 }])
})
