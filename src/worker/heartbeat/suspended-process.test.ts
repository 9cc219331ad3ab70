import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { insertJobs, jobs, jobStates, WORK_DDL } from '../../../test/support/work-table.ts'
import { startWorker } from '../../../test/support/worker-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
afterAll(async () => db.close())

const SETTINGS = { leaseMs: 2_000, reaperIntervalMs: 300, pollMs: 100 }

/** Every version of a row has its own xmin: equal means that nobody wrote it, not even the same values. */
async function versions(): Promise<object[]> {
  return (await db.query({ text: 'select xmin::text, * from public.jobs order by id' })).rows
}

it('RULE-020-003: a process suspended past its lease writes nothing when it continues; its handlers are told, fencedOff is emitted, and it claims new rows', async () => {
  const holding = await insertJobs(db, 5, 'hold')
  const sleeping = await insertJobs(db, 5, 'short')
  const all = [...holding, ...sleeping]
  const zombie = startWorker(processes, {
    databaseUrl: url,
    settings: SETTINGS,
    runtime: { id: 'zombie', reaper: false },
    // Its handlers go on although they were told to stop: what they return is what must not be written.
    heedsSignal: false,
    // Over while it is stopped, so that outcomes are there the moment it goes on.
    shortMs: 3_000,
    tell: ['started', 'fencedOff', 'settled', 'lost'],
  })
  for (const id of all) await zombie.heard('started', (line) => line['id'] === id)
  for (const id of holding) await zombie.heard('holding', (line) => line['id'] === id)
  process.kill(zombie.pid, 'SIGSTOP')

  const heir = startWorker(processes, {
    databaseUrl: url,
    settings: SETTINGS,
    runtime: { id: 'heir' },
    shortMs: 10,
    tell: ['reaped', 'settled'],
  })
  for (const id of holding) await heir.heard('holding', (line) => line['id'] === id)
  heir.send('finish')
  for (const id of all) await heir.heard('settled', (line) => (line['ids'] as string[]).includes(id))
  const before = await versions()
  expect(before).toMatchObject(
    all.map((id) => ({ id, status: 'DONE', attempts: 1, lock_token: A_TOKEN, claimed_by: null })),
  )
  expect(new Set(heir.all('reaped').map(({ owner }) => owner))).toEqual(new Set(['zombie']))
  expect(await heir.kill('SIGTERM')).toEqual({ code: 0, signal: null })

  process.kill(zombie.pid, 'SIGCONT')
  for (const id of holding) await zombie.heard('heard', (line) => line['id'] === id)
  zombie.send('finish')
  for (const id of all) {
    const told = await zombie.heard('fencedOff', (line) => line['id'] === id)
    expect(told).toMatchObject({ worker: 'zombie', outcome: 'done', token: A_TOKEN })
  }
  expect(zombie.all('settled')).toEqual([])

  const [fresh] = await insertJobs(db, 1)
  await zombie.heard('settled', (line) => (line['ids'] as string[]).includes(fresh ?? ''))
  expect(await zombie.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect((await versions()).slice(0, all.length)).toEqual(before)
  expect((await jobs(db)).at(-1)).toMatchObject({ id: fresh, status: 'DONE', attempts: 0 })
  expect(await jobStates(db)).toEqual({ DONE: 11 })
})
