import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { insertJobs, jobStates, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events, startRuntime } from './index.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const table = leaseTable(WORK_TABLE)

/** One row for each statement that changed rows which were leased before and are so still: a renewal. */
const RENEWALS_DDL = `
  create table public.renewals (at timestamptz not null default clock_timestamp(), count int not null);
  create function public.record_renewal() returns trigger language plpgsql as $$
  declare renewed int;
  begin
    select count(*) into renewed from before join after using (id, status, lock_token) where status = 'CLAIMED';
    if renewed > 0 then insert into public.renewals (count) values (renewed); end if;
    return null;
  end $$;
  create trigger renewed after update on public.jobs
    referencing old table as before new table as after
    for each statement execute function public.record_renewal()`

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  await db.query({ text: RENEWALS_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.renewals' })
})
afterAll(async () => db.close())

/** The application names of the sessions of this database. */
async function sessions(): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>({
    text: 'select application_name as name from pg_stat_activity where datname = current_database()',
  })
  return rows.map(({ name }) => name)
}

it('an idle worker sends at most one statement per poll interval, and none for heartbeats', async () => {
  const pollMs = 300
  const proxy = await startProxy(url)
  const events = new Events()
  const listening = events.next('listening')
  const renewed = vi.fn<() => void>()
  events.on('renewed', renewed)
  const runtime = await startRuntime({
    databaseUrl: proxy.url,
    id: 'idler',
    // A role of its own, with statements of its own.
    reaper: false,
    events,
    workers: [{ name: 'jobs', table, settings: { pollMs }, handle: async () => undefined }],
  })
  await listening

  /** Nothing reports when a statement passes the proxy, so this polls. */
  async function statements(count: number): Promise<void> {
    const from = proxy.roundTrips
    await vi.waitFor(() => expect(proxy.roundTrips - from).toBeGreaterThanOrEqual(count), {
      timeout: 120_000,
      interval: 5,
    })
  }
  /** The statements of its start are over once a whole poll interval passes without any. */
  async function pause(): Promise<void> {
    let seen = proxy.roundTrips
    let since = performance.now()
    await vi.waitFor(
      () => {
        if (proxy.roundTrips !== seen) {
          seen = proxy.roundTrips
          since = performance.now()
        }
        expect(performance.now() - since).toBeGreaterThanOrEqual(pollMs)
      },
      { timeout: 120_000, interval: 5 },
    )
  }
  await statements(6)
  await pause()
  const startedAt = performance.now()
  // A multiple of presence as well, which is said every 5 s.
  await statements(30)
  const tookMs = performance.now() - startedAt
  expect(tookMs).toBeGreaterThanOrEqual(30 * pollMs)

  expect(renewed).not.toHaveBeenCalled()
  // The connection on which leases are renewed has not even been opened.
  const opened = await sessions()
  expect(opened).toContain('leasehold worker idler')
  expect(opened).not.toContain('leasehold heartbeat idler')
  await runtime.stop()
  await proxy.close()
})

it('RULE-020-010: one statement per heartbeat renews all rows in flight, whatever their number', async () => {
  const rows = 200
  const heartbeatMs = 300
  const ids = await insertJobs(db, rows)
  const events = new Events()
  const beats: number[] = []
  events.on('renewed', ({ count }) => {
    // One that finds all of its rows settled changes none.
    if (count > 0) beats.push(count)
  })
  let finish = (): void => undefined
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  const startedAt = performance.now()
  const runtime = await startRuntime({
    databaseUrl: url,
    reaper: false,
    events,
    settings: { leaseMs: 60_000, heartbeatMs, concurrency: rows },
    workers: [{ name: 'jobs', table, handle: async () => finished }],
  })
  const whole = (count: number): boolean => count === rows
  while (beats.filter(whole).length < 8) await events.next('renewed')
  // None comes early, however late some come.
  expect(performance.now() - startedAt).toBeGreaterThanOrEqual(8 * heartbeatMs)
  let settled = 0
  const allSettled = new Promise<void>((resolve) => {
    events.on('settled', (event) => {
      settled += event.ids.length
      if (settled === ids.length) resolve()
    })
  })
  finish()
  await allSettled
  await runtime.stop()

  const { rows: seen } = await db.query<{ count: number }>({
    text: 'select count from public.renewals order by at',
  })
  expect(seen.map(({ count }) => count)).toEqual(beats)
  expect(await jobStates(db)).toEqual({ DONE: rows })
})
