/** 200 chunks, three runner processes, one of them killed every three seconds, up to six times. */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useMatrixSource, valuesOf } from '../../test/support/matrix-source.ts'
import { useProcesses } from '../../test/support/processes.ts'
import {
  createTarget,
  effectsOf,
  startRunner,
  type WorkerProcess,
} from '../../test/support/worker-process.ts'
import { statesOf, syncChunks } from '../../test/support/sync-rows.ts'
import { openDatabase } from '../postgres/database.ts'
import { createSync } from './sync.ts'

const { url } = useDatabase()
const source = useMatrixSource()
const processes = useProcesses()
const db = openDatabase({ url })
// On a slow machine, kills without an end would leave the runners no time to work.
const [CHUNKS, RUNNERS, KILL_EVERY_MS, KILLS, LEASE_MS, ANSWER_MS] = [200, 3, 3_000, 6, 5_000, 350]
const SETTINGS = { leaseMs: LEASE_MS, heartbeatMs: 500, pollMs: 200, reaperIntervalMs: 300 }

beforeAll(async () => {
  await createTarget(db)
  source.answerMs = ANSWER_MS
})
afterAll(async () => db.close())

function start(): WorkerProcess {
  return startRunner(processes, {
    databaseUrl: url,
    sourceUrl: source.url,
    jobs: SETTINGS,
    chunks: SETTINGS,
    tell: ['trouble', 'lost'],
  })
}

async function idOf(runner: WorkerProcess): Promise<string> {
  return String((await runner.heard('up'))['id'])
}

interface Run {
  readonly tookMs: number
  readonly all: readonly WorkerProcess[]
  readonly killed: ReadonlySet<string>
}

/** One job of 200 chunks, from when three runners are up until it has ended. */
async function run(matrix: string, killEveryMs: number | undefined): Promise<Run> {
  source.plans.set(
    matrix,
    Array.from({ length: CHUNKS }, (_, n) => ({ n })),
  )
  const running = Array.from({ length: RUNNERS }, start)
  const all = [...running]
  const killed = new Set<string>()
  for (const runner of running) await idOf(runner)
  const { jobId } = await createSync().enqueue(db, 'matrix', { matrixId: matrix })
  const ended = async (): Promise<number | undefined> => {
    const { rows } = await db.query<{ took: number | null; error: string | null }>({
      text: `select extract(epoch from completed_at - created_at)::float8 * 1000 as took, error_message as error
        from leasehold.sync_jobs where id = $1 and (completed_at is not null or failed_at is not null)`,
      values: [jobId],
    })
    const [end] = rows
    if (typeof end?.error === 'string') throw new Error(end.error)
    return end?.took ?? undefined
  }
  let killAt = performance.now() + (killEveryMs ?? Infinity)
  let took = await ended()
  while (took === undefined) {
    if (performance.now() >= killAt && killed.size < KILLS) {
      killAt += killEveryMs ?? Infinity
      const victim = running.shift()
      if (victim !== undefined) {
        killed.add(await idOf(victim))
        await victim.kill('SIGKILL')
      }
      const heir = start()
      running.push(heir)
      all.push(heir)
    }
    // The rhythm of the kills is the scenario; nothing is asserted about it.
    await delay(50)
    took = await ended()
  }
  for (const runner of running) await runner.kill('SIGTERM')
  return { tookMs: took, all, killed }
}

async function expectSynced(matrix: string): Promise<void> {
  const effects = await effectsOf(db, matrix)
  expect(effects.map(({ n, values }) => [n, values])).toEqual(
    Array.from({ length: CHUNKS }, (_, n) => [n, valuesOf(matrix, n)]),
  )
  expect(effects.filter(({ tokens }) => tokens.length !== 1)).toEqual([])
  const chunks = (await syncChunks(db)).filter((chunk) => chunk.matrix_id === matrix)
  expect(statesOf(chunks)).toEqual({ COMPLETED: CHUNKS })
  expect(chunks.map(({ row_count: rows }) => Number(rows)).reduce((a, b) => a + b)).toBe(
    Array.from({ length: CHUNKS }, (_, n) => valuesOf(matrix, n).length).reduce((a, b) => a + b),
  )
}

/** Fetches of chunks that nobody had to make: the one before was neither cut short by a kill nor by a lost lease. */
async function needless(matrix: string, { killed, all }: Run): Promise<string[]> {
  const effects = new Map((await effectsOf(db, matrix)).map(({ n, runners }) => [n, runners[0]]))
  const lost = new Set(
    all.flatMap((runner) =>
      runner.all('lost').map((line) => `${String(line['worker'])} ${String(line['id'])}`),
    ),
  )
  const hashes = new Map(
    (await syncChunks(db)).map(({ matrix_id: of, chunk_hash: hash, chunk_query: query }) => [
      `${of} ${JSON.stringify(query)}`,
      JSON.stringify([of, hash]),
    ]),
  )
  const wrong: string[] = []
  for (let n = 0; n < CHUNKS; n += 1) {
    const fetches = source.fetches.filter(({ matrix: of, what }) => of === matrix && what === String(n))
    const last = fetches.pop()?.runner
    if (last !== effects.get(n)) wrong.push(`${n} was fetched by ${last} after ${effects.get(n)} had done it`)
    for (const { runner } of fetches) {
      const lostIt = lost.has(`${runner} ${hashes.get(`${matrix} {"n":${n}}`)}`)
      if (!killed.has(runner) && !lostIt) wrong.push(`${n} was fetched again, although ${runner} lives`)
    }
  }
  return wrong
}

it('SYNC-11: with a runner killed every three seconds, each chunk has its effect once, and no finished chunk is fetched twice', async () => {
  const calm = await run('calm', undefined)
  await expectSynced('calm')
  expect(await needless('calm', calm)).toEqual([])

  const stormy = await run('stormy', KILL_EVERY_MS)
  await expectSynced('stormy')
  expect(await needless('stormy', stormy)).toEqual([])
  expect(stormy.killed.size).toBeGreaterThan(0)
  expect(stormy.all.flatMap((runner) => runner.all('trouble'))).toEqual([])

  const again =
    source.fetches.filter(({ matrix, what }) => matrix === 'stormy' && what !== 'plan').length - CHUNKS
  process.stdout.write(
    `sync of ${CHUNKS} chunks: ${Math.round(calm.tookMs)} ms undisturbed, ${Math.round(stormy.tookMs)} ms with ` +
      `${stormy.killed.size} kills, ratio ${(stormy.tookMs / calm.tookMs).toFixed(2)}, ${again} chunks fetched again\n`,
  )
}, 600_000)
