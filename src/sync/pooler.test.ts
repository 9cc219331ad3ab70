/** Through PgBouncer in transaction mode, where no two transactions need meet the same session. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useMatrixSource, valuesOf } from '../../test/support/matrix-source.ts'
import { usePooler } from '../../test/support/pgbouncer.ts'
import { useProcesses } from '../../test/support/processes.ts'
import {
  createTarget,
  effectsOf,
  startRunner,
  type WorkerProcess,
} from '../../test/support/worker-process.ts'
import { emptySync, statesOf, syncChunks, syncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { createSync } from './sync.ts'

const { url, name: database } = useDatabase()
const pooler = usePooler(url)
const source = useMatrixSource()
const processes = useProcesses()
const db = openDatabase({ url })
const CHUNKS = 60
const SHORT = { leaseMs: 5_000, heartbeatMs: 500, pollMs: 100, reaperIntervalMs: 300 }

beforeAll(async () => createTarget(db))
beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

/** Whether the job has ended. No event reaches this process, so it polls. */
async function ended(jobId: string): Promise<void> {
  const deadline = performance.now() + 110_000
  for (;;) {
    const job = (await syncJobs(db)).find(({ id }) => id === jobId)
    if (job?.state === 'COMPLETED') return
    if (job?.state === 'FAILED') throw new Error(job.error_message ?? 'it failed')
    if (performance.now() > deadline) throw new Error(`the job is ${job?.state} still`)
  }
}

it.each([
  ['without listening', false],
  ['listening past it', true],
])(
  'SYNC-12: a job runs through a transaction-mode pooler, %s, and survives a killed runner',
  async (name, listen) => {
    const matrix = name.replaceAll(' ', '-')
    source.answerMs = 50
    source.plans.set(
      matrix,
      Array.from({ length: CHUNKS }, (_, n) => ({ n })),
    )
    const through = pooler.urlOf(url)
    const before = await pooler.served(database)
    const start = (): WorkerProcess =>
      startRunner(processes, {
        databaseUrl: through,
        sourceUrl: source.url,
        jobs: SHORT,
        chunks: SHORT,
        tell: ['trouble', 'listening', 'notListening', 'claimed'],
        runtime: listen ? { listenUrl: url } : { listen: false },
      })
    const runners = [start(), start(), start()]
    for (const runner of runners) await runner.heard('up')
    // Asked for through the pooler as well.
    const producer = openDatabase({ url: through })
    const { jobId } = await createSync().enqueue(producer, 'matrix', { matrixId: matrix })
    await producer.close()

    const [victim, ...others] = runners
    const dead = String((await victim?.heard('up'))?.['id'])
    await source.fetched(({ runner, what }) => runner === dead && what !== 'plan')
    await victim?.kill('SIGKILL')
    await ended(jobId)
    for (const runner of others) {
      expect(runner.all('trouble')).toEqual([])
      expect(runner.all('listening').length > 0).toBe(listen)
      expect(await runner.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    }

    const { mode, transactions } = await pooler.served(database)
    expect(mode).toBe('transaction')
    // At the least a claim or a settlement, and the handler's own transaction, for each chunk.
    expect(transactions - before.transactions).toBeGreaterThan(CHUNKS)
    expect((await effectsOf(db, matrix)).map(({ n, values, tokens }) => [n, values, tokens.length])).toEqual(
      Array.from({ length: CHUNKS }, (_, n) => [n, valuesOf(matrix, n), 1]),
    )
    expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: CHUNKS })
  },
)
