/** D10: runner processes that die all the time, because of themselves, of their release, or of one chunk. */
import { setTimeout as delay } from 'node:timers/promises'
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
import { A_TOKEN } from '../../test/support/tokens.ts'
import { type ChunkRecord, emptySync, statesOf, syncChunks, syncJobs } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const source = useMatrixSource()
const processes = useProcesses()
const db = openDatabase({ url })
const SHORT = { leaseMs: 3_000, heartbeatMs: 400, pollMs: 100, reaperIntervalMs: 300 }
/** For runners that live for a second: nobody lives long enough to find them dead, so that their leases must expire. */
const SHORTEST = { ...SHORT, leaseMs: 1_500 }
/** How long the bad release is restarted at least. For ten minutes: LEASEHOLD_CRASH_LOOP_SECONDS=600. */
const CRASH_LOOP_MS = Number(process.env['LEASEHOLD_CRASH_LOOP_SECONDS'] ?? '0') * 1_000
/** It is restarted at least until some row has lost so many attempts: two of them with a delay. */
const MIN_ATTEMPTS = 4
/** A definition's own attempts, unless it says otherwise. */
const MAX_ATTEMPTS = 25

beforeAll(async () => createTarget(db))
beforeEach(async () => emptySync(db))
afterAll(async () => db.close())

function start(more: Partial<RunnerConfig> = {}): WorkerProcess {
  return startRunner(processes, {
    databaseUrl: url,
    sourceUrl: source.url,
    jobs: SHORT,
    chunks: SHORT,
    tell: ['settled'],
    ...more,
  })
}

function plan(matrix: string, count: number, poison?: number): void {
  source.plans.set(
    matrix,
    Array.from({ length: count }, (_, n) => ({ n, ...(n === poison ? { poison: true } : {}) })),
  )
}

/** The job as it ended; undefined while it is open. */
async function endOf(jobId: string): Promise<string | undefined> {
  const job = (await syncJobs(db)).find(({ id }) => id === jobId)
  return job?.state === 'COMPLETED' || job?.state === 'FAILED' ? job.state : undefined
}

async function ended(runner: WorkerProcess, jobId: string, outcome: string): Promise<void> {
  await runner.heard(
    'settled',
    (line) =>
      String(line['table']).endsWith('sync_jobs') &&
      line['outcome'] === outcome &&
      (line['ids'] as string[]).includes(jobId),
  )
}

async function expectEffects(matrix: string, numbers: readonly number[]): Promise<void> {
  const effects = await effectsOf(db, matrix)
  expect(effects.map(({ n, values }) => [n, values])).toEqual(numbers.map((n) => [n, valuesOf(matrix, n)]))
  expect(effects.filter(({ tokens }) => tokens.length !== 1)).toEqual([])
}

function numbers(count: number): number[] {
  return Array.from({ length: count }, (_, n) => n)
}

it('SYNC-11, D10: a job of 60 chunks is completed although its only runner is killed a second after its first settlement, every time', async () => {
  plan('killed', 60)
  source.answerMs = 150
  const { jobId } = await createSync().enqueue(db, 'matrix', { matrixId: 'killed' })
  let kills = 0
  while ((await endOf(jobId)) === undefined) {
    const runner = start({ jobs: SHORTEST, chunks: SHORTEST })
    await runner.heard('settled')
    // The rhythm of the kills is the scenario; nothing is asserted about it.
    await delay(1_000)
    await runner.kill('SIGKILL')
    kills += 1
  }
  source.answerMs = 0
  expect(await endOf(jobId)).toBe('COMPLETED')
  const chunks = await syncChunks(db)
  expect(statesOf(chunks)).toEqual({ COMPLETED: 60 })
  await expectEffects('killed', numbers(60))
  const expiries = chunks.map((chunk) => chunk.expiries)
  process.stdout.write(
    `60 chunks with the only runner killed a second after its first settlement: ${kills} kills, at most ${Math.max(...expiries)} expiries of a chunk\n`,
  )
}, 600_000)

it('D10: a release that crashes at the start of every handler makes no chunk fail, and the next release syncs all', async () => {
  plan('planned', 4)
  plan('unplanned', 4)
  const sync = createSync()
  // Its chunks are planned by the release before, which does none of them.
  const planned = await sync.enqueue(db, 'matrix', { matrixId: 'planned' })
  const before = start({ chunks: { ...SHORT, paused: true } })
  await ended(before, planned.jobId, 'planned')
  await before.kill('SIGTERM')
  const unplanned = await sync.enqueue(db, 'matrix', { matrixId: 'unplanned' })

  const beganAt = performance.now()
  const elapsedMs = (): number => performance.now() - beganAt
  const mostAttempts = async (): Promise<number> =>
    Math.max(...[...(await syncJobs(db)), ...(await syncChunks(db))].map((row) => row.attempts))
  let crashes = 0
  while (elapsedMs() < CRASH_LOOP_MS || (await mostAttempts()) < MIN_ATTEMPTS) {
    const bad = start({ crashes: true })
    const stop = new AbortController()
    // In a long loop, everything may wait for its backoff at the end; the process is ended then, as a rollout would.
    const timeout =
      CRASH_LOOP_MS === 0
        ? new Promise<never>(() => undefined)
        : delay(Math.max(0, CRASH_LOOP_MS - elapsedMs()), undefined, { signal: stop.signal }).catch(
            () => undefined,
          )
    const end = await Promise.race([bad.exited, timeout])
    stop.abort()
    if (end === undefined) await bad.kill('SIGKILL')
    else crashes += 1
  }
  const tookMs = elapsedMs()
  const [jobs, chunks] = [await syncJobs(db), await syncChunks(db)]
  expect(jobs.map(({ state }) => state)).not.toContain('FAILED')
  expect(chunks.map(({ state }) => state)).not.toContain('FAILED')
  // Each second expiry doubles the wait, so that the attempts grow with the logarithm of the time.
  const attempts = [...jobs, ...chunks].map((row) => row.attempts)
  const most = Math.ceil(Math.log2(tookMs / 1_000)) + 2
  expect(most).toBeLessThan(MAX_ATTEMPTS)
  expect(Math.max(...attempts)).toBeLessThanOrEqual(most)

  const good = start()
  for (const { jobId } of [planned, unplanned]) await ended(good, jobId, 'done')
  await good.kill('SIGTERM')
  expect(statesOf(await syncChunks(db))).toEqual({ COMPLETED: 8 })
  for (const matrix of ['planned', 'unplanned']) await expectEffects(matrix, numbers(4))
  process.stdout.write(
    `${crashes} crashes in ${Math.round(tookMs)} ms: at most ${Math.max(...attempts)} attempts used up\n`,
  )
}, 1_800_000)

it('D10: a chunk that kills every runner fails after the attempts that its definition allows, and the others lose at most three', async () => {
  plan('poisoned', 20, 3)
  const retry = { maxAttempts: 4, firstMs: 200, longestMs: 1_000 }
  const { jobId } = await createSync().enqueue(db, 'matrix', { matrixId: 'poisoned' })
  /** Attempts that the others have lost, at any time: a chunk that is done has forgotten its own. */
  const lost = new Map<string, number>()
  let runner = start({ retry })
  for (;;) {
    const last = runner
    const end = await Promise.race([last.exited, ended(last, jobId, 'dead').then(() => undefined)])
    for (const { chunk_hash: hash, expiries, chunk_query: query } of await syncChunks(db))
      if (!isPoison(query)) lost.set(hash, Math.max(lost.get(hash) ?? 0, expiries))
    if (end === undefined) break
    expect(end).toMatchObject({ signal: 'SIGKILL' })
    runner = start({ retry })
  }
  await runner.kill('SIGTERM')
  const chunks = await syncChunks(db)
  const poison = chunks.filter(({ chunk_query: query }) => isPoison(query))
  expect(poison).toMatchObject([
    {
      state: 'FAILED',
      attempts: 4,
      expiries: 4,
      lock_token: A_TOKEN,
      error_message: expect.stringContaining('given up after 4 attempts: its workers died') as unknown,
    } satisfies Partial<Record<keyof ChunkRecord, unknown>>,
  ])
  expect(statesOf(chunks)).toEqual({ COMPLETED: 19, FAILED: 1 })
  expect(Math.max(...lost.values())).toBeLessThanOrEqual(3)
  await expectEffects(
    'poisoned',
    numbers(20).filter((n) => n !== 3),
  )
  expect((await syncJobs(db))[0]?.error_message).toContain(
    '1 chunk failed; the first: given up after 4 attempts',
  )
}, 300_000)

function isPoison(query: unknown): boolean {
  return typeof query === 'object' && query !== null && 'poison' in query
}
