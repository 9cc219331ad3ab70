/** Runner processes that were paused past their leases, and go on. */
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
import {
  type ChunkRecord,
  emptySync,
  type JobRecord,
  syncChunks,
  syncJobs,
} from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { createSync } from './sync.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const source = useMatrixSource()
const processes = useProcesses()
const db = openDatabase({ url })
const SHORT = { leaseMs: 6_000, heartbeatMs: 500, pollMs: 100, reaperIntervalMs: 300, shutdownTimeoutMs: 500 }

beforeAll(async () => createTarget(db))
beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

function start(id: string, more: Partial<RunnerConfig> = {}): WorkerProcess {
  return startRunner(processes, {
    databaseUrl: url,
    sourceUrl: source.url,
    concurrency: 3,
    jobs: SHORT,
    chunks: SHORT,
    tell: ['settled', 'lost', 'fencedOff', 'reaped', 'trouble'],
    ...more,
    runtime: { id, ...more.runtime },
  })
}

async function completed(runner: WorkerProcess, jobId: string): Promise<void> {
  await runner.heard(
    'settled',
    ({ table, outcome, ids }) =>
      String(table).endsWith('sync_jobs') && outcome === 'done' && (ids as string[]).includes(jobId),
  )
}

async function everything(): Promise<{ jobs: JobRecord[]; chunks: ChunkRecord[]; links: unknown[] }> {
  const links = await db.query({
    text: 'select xmin::text, * from leasehold.sync_job_chunks order by job_id, matrix_id, chunk_hash',
  })
  return { jobs: await syncJobs(db), chunks: await syncChunks(db), links: links.rows }
}

// What the paused one's chunks are answered with when it goes on: values to complete them with, or a failure.
it.each([
  ['complete', 200],
  ['fail', 500],
])(
  'D6, SYNC-11: a runner paused past its leases cannot %s or extend anything afterwards: jobs and chunks stay as their new owner wrote them',
  async (verb, status) => {
    const [planning, working] = [`planning-${verb}`, `working-${verb}`]
    source.plans.set(planning, [{ n: 1 }, { n: 2 }])
    // One is settled in its transaction, one is settled by returning.
    source.plans.set(working, [{ n: 1 }, { n: 2, settles: false }])
    const sync = createSync()
    const name = `zombie-${verb}`

    // It looks at a job once, so that it is certain what it holds when it is paused: two chunks, and a job to plan.
    const zombie = start(name, { deaf: true, checkEveryMs: 600_000, runtime: { reaper: false } })
    await zombie.heard('up')
    const release = source.hold(
      ({ matrix, what, runner }) => runner === name && !(matrix === working && what === 'plan'),
    )
    const work = await sync.enqueue(db, 'matrix', { matrixId: working })
    await zombie.heard('settled', ({ outcome }) => outcome === 'waiting')
    for (const n of ['1', '2']) {
      await source.fetched(({ matrix, what, runner }) => matrix === working && what === n && runner === name)
    }
    const plan = await sync.enqueue(db, 'matrix', { matrixId: planning })
    await source.fetched(
      ({ matrix, what, runner }) => matrix === planning && what === 'plan' && runner === name,
    )
    const held = [...(await syncJobs(db)), ...(await syncChunks(db))].filter(
      ({ locked_by: by }) => by === name,
    )
    expect(held.map(({ state }) => state)).toEqual(['RUNNING', 'RUNNING', 'RUNNING'])
    process.kill(zombie.pid, 'SIGSTOP')
    await db.query({ text: 'update leasehold.sync_jobs set next_check_at = now() where locked_by is null' })

    const heir = start(`heir-${verb}`)
    await completed(heir, work.jobId)
    await completed(heir, plan.jobId)
    await heir.kill('SIGTERM')
    const before = await everything()
    expect(before.jobs.map(({ state }) => state)).toEqual(['COMPLETED', 'COMPLETED'])
    expect(before.chunks.map(({ state }) => state)).toEqual(before.chunks.map(() => 'COMPLETED'))
    expect(before.chunks.filter(({ matrix_id: matrix }) => matrix === working)).toMatchObject(
      [1, 2].map((n) => ({ lock_token: A_TOKEN, row_count: String(valuesOf(working, n).length) })),
    )

    release(status)
    process.kill(zombie.pid, 'SIGCONT')
    for (const row of held) {
      const id = 'id' in row ? row.id : JSON.stringify([row.matrix_id, row.chunk_hash])
      await zombie.heard('lost', (line) => line['id'] === id)
      expect(await zombie.heard('fencedOff', (line) => line['id'] === id)).toMatchObject({
        worker: name,
        token: A_TOKEN,
      })
    }
    expect(
      zombie.all('settled').filter(({ outcome }) => outcome !== 'planned' && outcome !== 'waiting'),
    ).toEqual([])
    expect(await everything()).toEqual(before)

    // It is of use again.
    source.plans.set(`fresh-${verb}`, [{ n: 3 }])
    const fresh = await sync.enqueue(db, 'matrix', { matrixId: `fresh-${verb}` })
    await zombie.heard('settled', ({ ids }) => (ids as string[]).some((id) => id.includes(`fresh-${verb}`)))
    expect(fresh.created).toBe(true)
    expect(await zombie.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    const after = await everything()
    expect(after.jobs.slice(0, 2)).toEqual(before.jobs)
    expect(after.chunks.filter(({ matrix_id: matrix }) => !matrix.startsWith('fresh'))).toEqual(before.chunks)
    expect(await effectsOf(db, working)).toMatchObject([
      { n: 1, values: valuesOf(working, 1), runners: [`heir-${verb}`], tokens: [A_TOKEN] },
    ])
    expect(await effectsOf(db, planning)).toMatchObject(
      [1, 2].map((n) => ({ n, values: valuesOf(planning, n), runners: [`heir-${verb}`] })),
    )
  },
)
