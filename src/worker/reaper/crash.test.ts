import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { insertJobs, jobs, jobStates, WORK_DDL } from '../../../test/support/work-table.ts'
import { startWorker } from '../../../test/support/worker-process.ts'
import { openDatabase } from '../../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  // By the clock that leases go by: when a reaper looked for expired leases, and which leases were taken back when.
  await db.query({
    text: `
      create table public.reaper_runs (at timestamptz not null);
      create function public.record_reaper_run() returns trigger language plpgsql as $$ begin
        if current_query() like '%leasehold:reap expired%' then insert into public.reaper_runs values (now()); end if;
        return null; end $$;
      create trigger record_reaper_run after update on public.jobs for each statement
        execute function public.record_reaper_run();
      create table public.taken_back (job bigint not null, lease_until timestamptz not null, at timestamptz not null);
      create function public.record_taken_back() returns trigger language plpgsql as $$ begin
        insert into public.taken_back values (old.id, old.locked_until, now()); return null; end $$;
      create trigger record_taken_back after update on public.jobs for each row
        when (old.claimed_by = 'victim' and new.status = 'PENDING') execute function public.record_taken_back()`,
  })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs, public.reaper_runs, public.taken_back' })
})
afterAll(async () => db.close())

/** Kills a worker that holds ten rows, and waits until another has started all of them. */
async function killAndWait(options: {
  readonly settings: Parameters<typeof startWorker>[1]['settings']
  readonly runtime: Readonly<Record<string, unknown>>
}): Promise<{ readonly deaths: readonly unknown[] }> {
  const ids = await insertJobs(db, 10, 'hold')
  const settings = options.settings ?? {}
  const victim = startWorker(processes, {
    databaseUrl: url,
    settings,
    runtime: { ...options.runtime, id: 'victim', reaper: false },
  })
  for (const id of ids) await victim.heard('holding', (line) => line['id'] === id)
  const heir = startWorker(processes, {
    databaseUrl: url,
    settings,
    runtime: options.runtime,
    tell: ['workerDied', 'reaped'],
  })
  await heir.heard('up')
  await victim.kill('SIGKILL')
  for (const id of ids) await heir.heard('holding', (line) => line['id'] === id)
  heir.send('finish')
  expect(await heir.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  return { deaths: heir.all('workerDied').map(({ died }) => died) }
}

it('RULE-020-052, RULE-020-020: rows of a killed process run elsewhere long before their leases expire; its death is reported once and counts an attempt', async () => {
  // A lease that outlasts the test.
  const { deaths } = await killAndWait({ settings: { leaseMs: 3_600_000 }, runtime: {} })
  expect(deaths).toEqual(['victim'])
  const { rows } = await db.query({
    text: 'select count(distinct job)::int as jobs, bool_and(at < lease_until) as early from public.taken_back',
  })
  expect(rows).toEqual([{ jobs: 10, early: true }])
  expect(await jobStates(db)).toEqual({ DONE: 10 })
  expect((await jobs(db)).map(({ attempts }) => attempts)).toEqual(Array.from({ length: 10 }, () => 1))
})

it('RULE-020-021: without eviction the rows of a killed process are recovered by the first run of a reaper after their leases expired', async () => {
  const settings = { leaseMs: 5_000, heartbeatMs: 1_000, reaperIntervalMs: 500, pollMs: 100 }
  const { deaths } = await killAndWait({ settings, runtime: { eviction: false } })
  expect(deaths).toEqual([])
  const { rows } = await db.query({
    text: `select count(*)::int as jobs, bool_and(at >= lease_until) as expired,
        bool_and(at in (select at from public.reaper_runs)) as recorded,
        bool_or(exists (select from public.reaper_runs as run where run.at >= t.lease_until and run.at < t.at)) as late
      from public.taken_back as t`,
  })
  expect(rows).toEqual([{ jobs: 10, expired: true, recorded: true, late: false }])
  expect((await jobs(db)).map(({ attempts }) => attempts)).toEqual(Array.from({ length: 10 }, () => 1))
})

it('LIFE-08: a row that kills its process every time is dead after its attempts, and the others are done', async () => {
  const [poison] = await insertJobs(db, 1, 'poison')
  await insertJobs(db, 30)
  await db.query({ text: 'update public.jobs set max_attempts = 3 where id = $1', values: [poison] })
  const reaper = startWorker(processes, {
    databaseUrl: url,
    runtime: { id: 'reaper' },
    settings: { paused: true },
    tell: ['reaped'],
  })
  await reaper.heard('up')
  for (let life = 0; life < 3; life += 1) {
    const worker = startWorker(processes, {
      databaseUrl: url,
      runtime: { id: `life-${life}`, reaper: false },
    })
    expect((await worker.exited).signal).toBe('SIGKILL')
    await reaper.heard('reaped', (line) => line['owner'] === `life-${life}` && line['id'] === poison)
  }
  const survivor = startWorker(processes, { databaseUrl: url, runtime: { reaper: false } })
  await survivor.heard('up')
  await expect.poll(async () => jobStates(db)).toEqual({ DONE: 30, DEAD: 1 })
  expect((await jobs(db)).find(({ id }) => id === poison)).toMatchObject({ status: 'DEAD', attempts: 3 })
  expect(await survivor.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await reaper.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})
