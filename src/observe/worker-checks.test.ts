import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase } from '../postgres/index.ts'
import { createHealth } from './health.ts'
import { reaperSomewhere, type RunState, workersRun } from './worker-checks.ts'

const db = openDatabase({ url: useDatabase().url })
afterAll(async () => db.close())

async function reaper(change: string): Promise<unknown> {
  await db.query({ text: 'delete from leasehold.workers' })
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles) values ('w1', 'h', 1, '0', '{emails,reaper}')`,
  })
  await db.query({ text: change })
  return (await createHealth([reaperSomewhere(db, 'leasehold')]).examine())[0]
}

it('RULE-020-020: readiness fails when no reaper is alive anywhere, and says what to do', async () => {
  expect(await reaper('select')).toEqual({ name: 'reaper', ok: true, detail: 'alive' })
  const none = { name: 'reaper', ok: false, detail: expect.stringContaining('leasehold work --only reaper') }
  expect(await reaper(`update leasehold.workers set roles = '{emails}'`)).toEqual(none)
  expect(await reaper('update leasehold.workers set stopped_at = now()')).toEqual(none)
  expect(await reaper(`update leasehold.workers set last_seen_at = now() - interval '1 hour'`)).toEqual(none)
})

it('workers are ready while they run: not before, and not when they are told to stop', async () => {
  let state: RunState = 'starting'
  const health = createHealth([workersRun(() => state)])
  expect(await health.examine()).toEqual([{ name: 'workers', ok: false, detail: 'starting' }])
  state = 'running'
  expect(await health.examine()).toEqual([{ name: 'workers', ok: true, detail: 'running' }])
  state = 'stopping'
  expect(await health.examine()).toEqual([{ name: 'workers', ok: false, detail: 'stopping' }])
})
