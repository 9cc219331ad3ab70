import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { emptyDirectory } from '../../../test/support/server.ts'
import { insertJobs, jobs, WORK_DDL } from '../../../test/support/work-table.ts'
import { startWorker, type WorkerConfig, type WorkerProcess } from '../../../test/support/worker-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  // The table records every claim and every renewal, by the clock that leases go by.
  await db.query({
    text: `
      create function public.record_lease() returns trigger language plpgsql as $$ begin
        insert into public.runs (job, token, worker) values (new.id, new.lock_token, new.claimed_by);
        return null; end $$;
      create trigger record_lease after update on public.jobs for each row
        when (new.claimed_by is not null) execute function public.record_lease()`,
  })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs' })
})
afterAll(async () => db.close())

// Long enough for a loaded machine to renew it in time.
const LEASE_MS = 4_000
const SETTINGS = { leaseMs: LEASE_MS, heartbeatMs: LEASE_MS / 8, reaperIntervalMs: 200, pollMs: 50 }

/**
 * Starts the process that will be blocked, and returns when it has renewed a lease: on a loaded machine the heartbeat can
 * take longer than such a lease to load its code and to connect.
 */
async function startBlocked(more: Partial<WorkerConfig>): Promise<WorkerProcess> {
  const blocked = startWorker(processes, {
    databaseUrl: url,
    settings: SETTINGS,
    runtime: { id: 'blocked', reaper: false },
    shortMs: LEASE_MS / 2,
    tell: ['lost', 'fencedOff', 'settled', 'renewed'],
    ...more,
  })
  while (!blocked.all('renewed').some(({ count }) => Number(count) > 0)) {
    const [id] = await insertJobs(db, 1, 'short')
    const settled = blocked.heard('settled', (line) => (line['ids'] as unknown[]).includes(id))
    await Promise.race([settled, blocked.heard('lost', (line) => line['id'] === id)])
  }
  // A row that was lost may still be held by its handler; it is none of those that the test is about.
  await db.query({ text: 'truncate public.jobs, public.runs' })
  return blocked
}

it('RULE-020-010, WH-FR-001-N: while a handler blocks the event loop for longer than two leases, neither its row nor other rows of the process are lost', async () => {
  const blocked = await startBlocked({ blockMs: 2.1 * LEASE_MS })
  // Its reaper takes back what is not renewed. It claims nothing, so that the rows below go to the process that is blocked.
  const other = startWorker(processes, {
    databaseUrl: url,
    settings: { ...SETTINGS, paused: true },
    runtime: { id: 'other' },
    tell: ['reaped', 'reaperRan'],
  })
  await other.heard('reaperRan')
  const neighbours = await insertJobs(db, 5, 'hold')
  for (const id of neighbours) await blocked.heard('holding', (line) => line['id'] === id)
  const [blocker] = await insertJobs(db, 1, 'block')
  const ids = new Set<unknown>([...neighbours, blocker])
  await blocked.heard('blocking')
  await blocked.heard('unblocked')
  blocked.send('finish')
  for (const id of [...neighbours, blocker])
    await blocked.heard('settled', (line) => (line['ids'] as unknown[]).includes(id))
  expect(await blocked.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await other.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  const losses = [...blocked.all('lost'), ...blocked.all('fencedOff'), ...other.all('reaped')]
  expect(losses.filter(({ id }) => ids.has(id))).toEqual([])
  expect(await jobs(db)).toMatchObject(
    Array.from({ length: 6 }, () => ({ status: 'DONE', attempts: 0, lock_token: A_TOKEN })),
  )
})

it('RULE-020-051: a handler that blocks for longer than three leases loses its row after the third, and what it returns is not written', async () => {
  const unblocked = join(await emptyDirectory(), 'unblocked')
  const blocked = await startBlocked({ blockUntil: unblocked })
  const [blocker] = await insertJobs(db, 1, 'block')
  await blocked.heard('blocking')
  const heir = startWorker(processes, {
    databaseUrl: url,
    settings: SETTINGS,
    runtime: { id: 'heir' },
    blockMs: 0,
    tell: ['settled', 'reaped'],
  })
  await heir.heard('settled', (line) => (line['ids'] as unknown[]).includes(blocker))
  // The row was taken from a handler that was still running.
  expect(blocked.all('unblocked')).toEqual([])
  await writeFile(unblocked, '')
  expect(await blocked.heard('fencedOff', ({ id }) => id === blocker)).toMatchObject({
    token: A_TOKEN,
    outcome: 'done',
  })
  expect(await blocked.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await heir.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(blocked.all('settled').flatMap(({ ids }) => ids as unknown[])).not.toContain(blocker)
  expect(await jobs(db)).toMatchObject([{ status: 'DONE', attempts: 1, lock_token: A_TOKEN }])

  const { rows } = await db.query<{ worker: string; token: string; leases: number }>({
    text: `select worker, token, extract(epoch from max(at) - min(min(at)) over ())::float8 * 1000 / $1 as leases
      from public.runs group by worker, token order by token`,
    values: [LEASE_MS],
  })
  const [last, taken] = rows
  expect(rows.map(({ worker, token }) => [worker, token])).toEqual([
    ['blocked', A_TOKEN],
    ['heir', A_TOKEN],
  ])
  // It was renewed in its second lease, for the third, and never after that.
  expect(last?.leases).toBeGreaterThan(2)
  expect(last?.leases).toBeLessThan(3)
  // Three leases from the moment when its worker asked for it, which may be long before the database began the claim.
  expect(taken?.leases).toBeGreaterThan(2.5)
})
