/** Runner processes that die. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useMatrixSource, valuesOf } from '../../test/support/matrix-source.ts'
import { useProcesses } from '../../test/support/processes.ts'
import {
  createTarget,
  effectsOf,
  type RunnerConfig,
  startRunner,
  type WorkerProcess,
} from '../../test/support/worker-process.ts'
import { emptySync, statesOf, syncChunks, syncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { createSync } from './sync.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const source = useMatrixSource()
const processes = useProcesses()
const db = openDatabase({ url })
const SHORT = { leaseMs: 5_000, heartbeatMs: 500, pollMs: 100, reaperIntervalMs: 300 }
const CHUNKS = 40

beforeAll(async () => createTarget(db))
beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

function start(more: Partial<RunnerConfig> = {}): WorkerProcess {
  const tell = ['settled', 'claimed', 'reaped']
  return startRunner(processes, {
    databaseUrl: url,
    sourceUrl: source.url,
    jobs: SHORT,
    chunks: SHORT,
    tell,
    ...more,
  })
}

async function completed(runner: WorkerProcess): Promise<void> {
  await runner.heard(
    'settled',
    ({ table, outcome }) => String(table).endsWith('sync_jobs') && outcome === 'done',
  )
}

async function expectAllOnce(matrix: string): Promise<void> {
  expect(statesOf(await syncJobs(db))).toEqual({ COMPLETED: 1 })
  expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: CHUNKS })
  const effects = await effectsOf(db, matrix)
  expect(effects.map(({ n, values }) => [n, values])).toEqual(
    Array.from({ length: CHUNKS }, (_, n) => [n, valuesOf(matrix, n)]),
  )
}

function planOf(matrix: string): void {
  source.plans.set(
    matrix,
    Array.from({ length: CHUNKS }, (_, n) => ({ n })),
  )
}

it('SYNC-11: after a runner died while planning, another plans the job: no chunk is lost, and none is synced twice', async () => {
  planOf('half-planned')
  const { jobId } = await createSync().enqueue(db, 'matrix', { matrixId: 'half-planned' })
  const dying = start({ dieAfterPlanning: CHUNKS / 2 })
  const { id: dead } = await dying.heard('up')
  expect(await dying.exited).toMatchObject({ signal: 'SIGKILL' })
  expect(await syncJobs(db)).toMatchObject([
    { id: jobId, planned_at: null, locked_by: dead, lock_token: A_TOKEN },
  ])
  expect(await syncChunks(db)).toHaveLength(CHUNKS / 2)
  const done = (await syncChunks(db)).filter(({ state }) => state === 'COMPLETED')

  const heir = start()
  const { id } = await heir.heard('up')
  await completed(heir)
  await heir.kill('SIGTERM')
  await expectAllOnce('half-planned')
  // Planned twice, and what was done in between was not fetched again.
  const fetches = source.fetches.filter(({ matrix }) => matrix === 'half-planned')
  expect(fetches.filter(({ what }) => what === 'plan').map(({ runner }) => runner)).toEqual([dead, id])
  for (const { chunk_query: query } of done) {
    const n = String((query as { n: number }).n)
    expect(fetches.filter(({ what }) => what === n).map(({ runner }) => runner)).toEqual([dead])
  }
  // The second planning was the second claim; the looks that followed were claims as well.
  expect(Number((await syncJobs(db))[0]?.lock_token)).toBeGreaterThanOrEqual(3)
})

it('SYNC-11: after a runner was killed and its leases have expired, another continues with the unfinished chunks', async () => {
  planOf('interrupted')
  // Some are answered, and then none: it is killed while it waits for two.
  const answered = new Set(Array.from({ length: 10 }, (_, n) => String(n)))
  const victim = start()
  const { id: dead } = await victim.heard('up')
  const release = source.hold(({ what, runner }) => runner === dead && what !== 'plan' && !answered.has(what))
  await createSync().enqueue(db, 'matrix', { matrixId: 'interrupted' })
  for (const n of ['10', '11']) await source.fetched(({ what, runner }) => what === n && runner === dead)
  await victim.kill('SIGKILL')
  release()
  const left = (await syncChunks(db)).filter(({ state }) => state !== 'COMPLETED')
  expect(left).toHaveLength(CHUNKS - answered.size)
  const inFlight = left.filter(({ locked_by: by }) => by === dead)
  expect(inFlight).toHaveLength(2)

  const heir = start()
  const { id } = await heir.heard('up')
  await completed(heir)
  await heir.kill('SIGTERM')
  await expectAllOnce('interrupted')
  const fetches = source.fetches.filter(({ matrix, what, runner }) => {
    return matrix === 'interrupted' && what !== 'plan' && runner === id
  })
  expect(fetches).toHaveLength(left.length)
})
