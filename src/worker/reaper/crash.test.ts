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
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs' })
})
afterAll(async () => db.close())

/** Kills a worker that holds ten rows, and waits until another has started all of them. */
async function killAndWait(options: {
  readonly settings: Parameters<typeof startWorker>[1]['settings']
  readonly runtime: Readonly<Record<string, unknown>>
}): Promise<{ readonly tookMs: number; readonly died: string; readonly deaths: readonly unknown[] }> {
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
  const killedAt = performance.now()
  for (const id of ids) await heir.heard('holding', (line) => line['id'] === id)
  const tookMs = performance.now() - killedAt
  heir.send('finish')
  expect(await heir.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  return { tookMs, died: 'victim', deaths: heir.all('workerDied') }
}

it('RULE-020-052, RULE-020-020: rows of a killed process run elsewhere within 5 s of a 30 s lease; its death is reported once and counts an attempt', async () => {
  const { tookMs, deaths } = await killAndWait({ settings: {}, runtime: {} })
  expect(tookMs).toBeLessThan(5_000)
  expect(deaths.map((line) => (line as { died: string }).died)).toEqual(['victim'])
  expect(await jobStates(db)).toEqual({ DONE: 10 })
  expect((await jobs(db)).map(({ attempts, lock_token }) => [attempts, lock_token])).toEqual(
    Array.from({ length: 10 }, () => [1, '2']),
  )
})

it('RULE-020-021: without eviction the rows of a killed process are recovered within the lease and one reaper interval', async () => {
  const settings = { leaseMs: 3_000, reaperIntervalMs: 1_000, pollMs: 100 }
  const { tookMs, deaths } = await killAndWait({ settings, runtime: { eviction: false } })
  // The lease ran for up to a heartbeat before the kill; polling and the machine take their time as well.
  expect(tookMs).toBeGreaterThan(1_000)
  expect(tookMs).toBeLessThan(3_000 + 1_000 + 2_000)
  expect(deaths).toEqual([])
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
  const survivor = startWorker(processes, { databaseUrl: url, runtime: { reaper: false }, tell: ['settled'] })
  await survivor.heard('up')
  for (;;) {
    const states = await jobStates(db)
    if ((states['DONE'] ?? 0) === 30) break
    await survivor.heard('settled')
  }
  expect(await jobStates(db)).toEqual({ DONE: 30, DEAD: 1 })
  expect((await jobs(db)).find(({ id }) => id === poison)).toMatchObject({ status: 'DEAD', attempts: 3 })
  expect(await survivor.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await reaper.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})
