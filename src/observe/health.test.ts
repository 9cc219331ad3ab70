import { once } from 'node:events'
import { afterAll, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/index.ts'
import { relay } from '../outbox/index.ts'
import { stdoutPublisher } from '../outbox/publishers/stdout.ts'
import { openDatabase } from '../postgres/index.ts'
import { Events } from '../worker/events.ts'
import { type Runtime, type RunState, startRuntime } from '../worker/process.ts'
import { createHealth, reaperRuns, workerHealth, workersRun } from './health.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

it('a check that throws fails with its message, and the other checks still run', async () => {
  const health = createHealth([
    { name: 'good', run: async () => 'answers' },
    { name: 'bad', run: async () => Promise.reject(new Error('unavailable')) },
  ])
  expect(await health.examine()).toEqual([
    { name: 'good', ok: true, detail: 'answers' },
    { name: 'bad', ok: false, detail: 'unavailable' },
  ])
})

it('a check that hangs fails after the timeout, and is joined instead of started a second time', async () => {
  let runs = 0
  const answered = new AbortController()
  const hanging = once(answered.signal, 'abort').then(() => 'back')
  const check = {
    name: 'slow',
    run: async () => {
      runs += 1
      return hanging
    },
  }
  const health = createHealth([check], 10)
  expect(await health.examine()).toEqual([{ name: 'slow', ok: false, detail: 'no answer within 10 ms' }])
  const patient = health.examine()
  answered.abort()
  expect(await patient).toEqual([{ name: 'slow', ok: true, detail: 'back' }])
  expect(runs).toBe(1)
  await health.examine()
  expect(runs).toBe(2)
})

async function checkReaper(change: string, tables = ['public.emails']): Promise<unknown> {
  await db.query({ text: 'delete from leasehold.workers' })
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, reaps) values ('w1', 'h', 1, '0', '{emails,reaper}', '{public.emails}')`,
  })
  await db.query({ text: change })
  return (await createHealth([reaperRuns(db, 'leasehold', tables)]).examine())[0]
}

it('RULE-020-020: readiness fails when no reaper is alive in any process, and says what to do', async () => {
  expect(await checkReaper('select')).toEqual({ name: 'reaper', ok: true, detail: 'alive' })
  const none = { name: 'reaper', ok: false, detail: expect.stringContaining('leasehold work --only reaper') }
  expect(await checkReaper(`update leasehold.workers set reaps = '{}'`)).toEqual(none)
  expect(await checkReaper('update leasehold.workers set stopped_at = now()')).toEqual(none)
  expect(await checkReaper(`update leasehold.workers set last_seen_at = now() - interval '1 hour'`)).toEqual(
    none,
  )
})

it('RULE-020-020: readiness judges each table: a reaper of another table is not enough', async () => {
  expect(await checkReaper('select', ['public.emails', 'leasehold.webhook_outbox'])).toEqual({
    name: 'reaper',
    ok: false,
    detail: expect.stringMatching(/^no reaper is alive for leasehold\.webhook_outbox: /),
  })
})

it('workers are ready only while they run: not while they start, and not while they stop', async () => {
  let state: RunState = 'starting'
  const health = createHealth([workersRun(() => state)])
  expect(await health.examine()).toEqual([{ name: 'workers', ok: false, detail: 'starting' }])
  state = 'running'
  expect(await health.examine()).toEqual([{ name: 'workers', ok: true, detail: 'running' }])
  state = 'stopping'
  expect(await health.examine()).toEqual([{ name: 'workers', ok: false, detail: 'stopping' }])
})

it('a process of the user is ready while its workers run and their table is reaped, and says why when it is not', async () => {
  const results = async (): Promise<Record<string, string>> =>
    Object.fromEntries(
      (await health.examine()).map(({ name, ok, detail }) => [name, ok ? detail : `not ready: ${detail}`]),
    )
  let runtime: Runtime | undefined
  const health = workerHealth({ db, runtime: () => runtime })
  expect(await results()).toMatchObject({ database: 'answers', workers: 'not ready: starting' })

  const options = { databaseUrl: url, workers: [relay({ publisher: stdoutPublisher() })] }
  runtime = await startRuntime({ ...options, id: 'reaps' })
  // The reaper counts once it has run.
  await expect.poll(results).toMatchObject({ workers: 'running', claiming: 'not paused', reaper: 'alive' })
  await runtime.stop()
  expect(await results()).toMatchObject({ database: 'answers', workers: 'not ready: stopping' })

  await db.query({ text: 'delete from leasehold.workers' })
  runtime = await startRuntime({ ...options, id: 'does not reap', reaper: false })
  onTestFinished(async () => void (await runtime?.stop()))
  expect(await results()).toMatchObject({
    workers: 'running',
    reaper: expect.stringContaining('not ready: no reaper is alive for leasehold.outbox'),
  })
})

it('D13: a reaper whose every run fails is not alive, and is once a run has succeeded', async () => {
  await db.query({ text: WORK_DDL })
  await db.query({
    text: `
create function public.reason() returns text language plpgsql as $$
  begin raise exception 'not now' using errcode = 'object_not_in_prerequisite_state'; end
$$;
insert into public.jobs (status, available_at, claimed_by, locked_until, lock_token)
values ('CLAIMED', null, 'gone', now() - interval '1 minute', 1)`,
  })
  const table = leaseTable({ ...WORK_TABLE, expired: { error: 'public.reason()' } })
  const events = new Events()
  const failed = events.next('reaperFailed', (event) => event.table === 'public.jobs')
  const runtime = await startRuntime({
    databaseUrl: url,
    workers: [],
    reapTables: [{ table }],
    settings: { reaperIntervalMs: 50 },
    events,
    log: false,
  })
  onTestFinished(async () => void (await runtime.stop()))
  await failed
  const health = workerHealth({ db, runtime: () => runtime })
  const reaper = async (): Promise<unknown> => (await health.examine()).find(({ name }) => name === 'reaper')
  expect(await reaper()).toEqual({
    name: 'reaper',
    ok: false,
    detail: expect.stringContaining('no reaper is alive for public.jobs'),
  })

  const ran = events.next('reaperRan', ({ reaped }) => reaped === 1)
  await db.query({
    text: `create or replace function public.reason() returns text language sql as $$ select 'expired' $$`,
  })
  await ran
  await expect.poll(reaper).toEqual({ name: 'reaper', ok: true, detail: 'alive' })

  // From then on one failure is an accident, and two in a row are not.
  await db.query({ text: 'alter table public.jobs rename to jobs_away' })
  await expect.poll(reaper).toMatchObject({ ok: false })
  await db.query({ text: 'alter table public.jobs_away rename to jobs' })
  await expect.poll(reaper).toMatchObject({ ok: true })
})
