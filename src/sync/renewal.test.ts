/** How long leases last, and work that takes longer than that. */
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { emptySync, gate, syncChunks, syncJobs, watchJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import type { Events } from '../worker/index.ts'
import type { WorkerEnvironment } from '../worker/work-declaration.ts'
import { createSync } from './sync.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
// Long enough for a busy machine; three of them are as long as a row may be held at all.
const LEASE = { leaseMs: 3_000, heartbeatMs: 500 }
const OPTIONS = { checkEveryMs: 20, jobs: LEASE, chunks: LEASE }

beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

/** Waits for beats of this table until they have gone on for more than a lease. */
async function beatsFor(events: Events, table: string): Promise<void> {
  const until = performance.now() + LEASE.leaseMs + LEASE.heartbeatMs
  await events.next(
    'renewed',
    (event) => event.table.endsWith(table) && event.count > 0 && performance.now() > until,
  )
}

it('SYNC-05, SYNC-13: a plan and a chunk that outlast their leases are renewed, carry the name of their runner, and are claimed by no other', async () => {
  const [planned, synced, planning, syncing] = [gate(), gate(), gate(), gate()]
  const calls: string[] = []
  const definitionOf = (runner: string) => {
    const sync = createSync()
    const defined = sync.define<number>('slow', {
      async plan() {
        calls.push(`${runner} plans`)
        planning.open()
        await planned.opened
        return [1]
      },
      async syncChunk() {
        calls.push(`${runner} syncs`)
        syncing.open()
        await synced.opened
        return { rows: 1 }
      },
    })
    return { defined, workers: sync.runner(OPTIONS) }
  }
  const [first, second] = [definitionOf('first'), definitionOf('second')]
  const { runtime, events } = await start(first.workers)
  const { jobId } = await first.defined.enqueue(db, { matrixId: 'm' })
  await planning.opened
  // It would take whatever is not renewed.
  const rival = await start(second.workers)

  await beatsFor(events, 'sync_jobs')
  expect(await syncJobs(db)).toMatchObject([{ state: 'RUNNING', locked_by: runtime.id, lock_token: A_TOKEN }])
  planned.open()
  await syncing.opened
  const holder = calls.at(-1) === 'first syncs' ? { runtime, events } : rival
  await beatsFor(holder.events, 'sync_checkpoints')
  expect(await syncChunks(db)).toMatchObject([
    { state: 'RUNNING', locked_by: holder.runtime.id, lock_token: A_TOKEN },
  ])
  const jobs = watchJobs(events, rival.events)
  synced.open()
  expect(await jobs.ended(jobId)).toBe('done')
  expect(calls).toHaveLength(2)
})

it('SYNC-10: unless set otherwise a runner leases a job for 5 minutes and renews it each minute, a chunk for 2 minutes and each 30 seconds', async () => {
  // now() is the same in the whole statement, so what a claim and a renewal write is exactly a lease later.
  await db.query({
    text: `create table public.leases (name text, lease interval);
      create function public.record_lease() returns trigger language plpgsql as $$
      begin
        insert into public.leases values (tg_table_name, new.locked_until - now());
        return null;
      end $$;
      create trigger leased after update on leasehold.sync_jobs for each row
        when (new.locked_by is not null) execute function public.record_lease();
      create trigger leased after update on leasehold.sync_checkpoints for each row
        when (new.locked_by is not null) execute function public.record_lease();`,
  })
  const sync = createSync()
  const defined = sync.define<number>('plain', {
    plan: () => [1],
    syncChunk: async () => Promise.resolve({ rows: 1 }),
  })
  const inForce: Record<string, readonly [leaseMs: number, heartbeatMs: number]> = {}
  const workers = sync.runner().map((declared) => ({
    ...declared,
    open: async (environment: WorkerEnvironment) => {
      const { leaseMs, heartbeatMs } = environment.settings()
      inForce[declared.name] = [leaseMs, heartbeatMs]
      await declared.open?.(environment)
    },
  }))
  const { events } = await start(workers)
  const jobs = watchJobs(events)
  const { jobId } = await defined.enqueue(db, { matrixId: 'm' })
  expect(await jobs.ended(jobId)).toBe('done')
  expect(inForce).toEqual({ 'sync-jobs': [5 * 60_000, 60_000], sync: [2 * 60_000, 30_000] })
  const { rows } = await db.query({
    text: 'select distinct name, lease::text from public.leases order by name',
  })
  expect(rows).toEqual([
    { name: 'sync_checkpoints', lease: '00:02:00' },
    { name: 'sync_jobs', lease: '00:05:00' },
  ])
})
