import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { jobStates, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { startWorker, told, type WorkerProcess } from '../../test/support/worker-process.ts'
import { openDatabase } from '../postgres/database.ts'

const BACKLOG = 1_000_000
const DRAINED = 100_000
const MOST_BYTES = 150_000_000

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url, queryTimeoutMs: 120_000 })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  await db.query({
    text: 'insert into public.jobs select from generate_series(1, $1::int)',
    values: [BACKLOG],
  })
  await db.query({ text: 'vacuum analyze public.jobs' })
})
afterAll(async () => db.close())

/** The most that was ever resident: Linux keeps count, elsewhere the samples have to do. */
async function mostResident(worker: WorkerProcess): Promise<number> {
  const samples = worker.all('progress').map((line) => Number(line['rss']))
  if (process.platform !== 'linux') return Math.max(...samples)
  const status = await readFile(`/proc/${worker.pid}/status`, 'utf8')
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]) * 1024
}

it('RULE-020-042: a backlog of a million rows is worked off in less than 150 MB of resident memory', async () => {
  const worker = startWorker(processes, { databaseUrl: url, progressEvery: 5_000 })
  await worker.heard('progress', (line) => Number(line['settled']) >= DRAINED)
  const most = await mostResident(worker)
  expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  const { DONE: done = 0, PENDING: pending = 0 } = await jobStates(db)
  expect(done).toBeGreaterThanOrEqual(DRAINED)
  // Shut down in the midst of it: what it had claimed was settled or given back.
  expect(pending).toBe(BACKLOG - done)
  expect(most).toBeLessThan(MOST_BYTES)
})

it('RULE-020-042: `leasehold work` needs less than 150 MB as well', async () => {
  const directory = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(directory))
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { leaseTable } from ${JSON.stringify(new URL('../../dist/index.js', import.meta.url).href)}
    let started = 0
    export default { workers: [{ name: 'jobs', table: leaseTable(${JSON.stringify(WORK_TABLE)}), handle: async () => {
      started += 1
      if (started % 5000 === 0) console.log(JSON.stringify({ type: 'progress', started, rss: process.memoryUsage.rss() }))
    } }] }`,
  )
  const env = { DATABASE_URL: url, LEASEHOLD_PORT: '0', LEASEHOLD_SECRET_KEY: '' }
  const worker = told(processes.spawnNode('bin/leasehold.cjs', ['work'], { cwd: directory, env }))
  await worker.heard('progress', (line) => Number(line['started']) >= DRAINED)
  const most = await mostResident(worker)
  expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(most).toBeLessThan(MOST_BYTES)
})
