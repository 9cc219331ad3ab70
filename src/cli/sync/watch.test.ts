import { beforeEach, describe, expect, it } from 'vitest'
import { useCommandLine } from '../../../test/support/command-line.ts'
import { emptySync, makeChunks, makeJob } from '../../../test/support/sync-rows.ts'
import { useProcesses, type TestProcess } from '../../../test/support/processes.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { createSync } from '../../sync/index.ts'
import { runProgram } from '../program.ts'

const { spawnNode } = useProcesses()
const { url, db, directory } = useCommandLine('sync', 'status')
const start = useRuntimes(url)
beforeEach(async () => emptySync(db))

/** The real command, its output piped. */
function watching(...args: string[]): TestProcess {
  return spawnNode('dist/cli/main.js', ['sync', 'status', ...args, '--watch', '--every', '50ms'], {
    cwd: directory(),
    env: { DATABASE_URL: url },
  })
}

describe('--watch where stdout is no terminal', () => {
  it.each(['SIGINT', 'SIGTERM'] as const)(
    'without a terminal, --watch prints one block after the other, and ends on %s with 0',
    async (signal) => {
      const jobId = await makeJob(db)
      await makeChunks(db, jobId, 4)
      const process = watching(jobId)
      await process.line((line) => line.endsWith('0 of 4 chunks'))
      await makeChunks(db, jobId, 4, { state: 'done', from: 5 })
      await process.line((line) => line.endsWith('4 of 8 chunks'))
      expect(await process.kill(signal)).toEqual({ code: 0, signal: null })
      const { stdout, stderr } = process.output()
      expect(stdout).not.toContain('\u001b')
      expect(stdout).toMatch(/nothing is synced\. Start one with `leasehold work`\.\n\nJob 1: numbers, m\n/)
      expect(stderr).toBe('')
    },
  )

  it('without a terminal, --watch follows a job of a real runner, and ends with it', async () => {
    const sync = createSync()
    let goOn: (value: unknown) => void = () => undefined
    const shown = new Promise((resolve) => (goOn = resolve))
    const numbers = sync.define<number>('numbers', {
      plan: () => [1, 2, 3],
      syncChunk: async ({ query }) => {
        if (query > 1) await shown
        return { rows: query }
      },
    })
    await start(sync.runner({ checkEveryMs: 20 }))
    const { jobId } = await numbers.enqueue(db, { matrixId: 'm' })
    const process = watching(jobId)
    await process.line((line) => line === '1 synced · 2 running')
    goOn(true)
    expect(await process.exited).toEqual({ code: 0, signal: null })
    const { stdout } = process.output()
    expect(stdout).toMatch(/^WORKER +CHUNK +ATTEMPT +LEASE ENDS\n\S+ +2 +1 +in (?:\d+ s|2 min)$/m)
    expect(stdout).toMatch(/100 % 3 of 3 chunks\n3 synced\n6 rows\n\n$/)
    expect(stdout).not.toContain('No runner is alive')
  })

  it('--watch ends with 1 when the job it follows has failed', async () => {
    const jobId = await makeJob(db)
    const process = watching(jobId, '--json')
    await process.line((line) => line.includes('"phase":"syncing"'))
    await db.query({ text: "update leasehold.sync_jobs set failed_at = now(), error_message = 'no'" })
    expect(await process.exited).toEqual({ code: 1, signal: null })
    const documents = process.output().stdout.trimEnd().split('\n')
    expect(JSON.parse(documents.at(-1) ?? '')).toMatchObject({
      id: jobId,
      phase: 'failed',
      errorMessage: 'no',
    })
  })

  it('--watch of all jobs continues when all have ended', async () => {
    const jobId = await makeJob(db)
    const process = watching()
    await process.line((line) => line.includes('syncing'))
    await db.query({ text: 'update leasehold.sync_jobs set completed_at = now()' })
    await process.line((line) => line.startsWith('No job is open'))
    await makeJob(db, { matrix: 'next' })
    await process.line((line) => line.includes('next'))
    expect(await process.kill('SIGINT')).toEqual({ code: 0, signal: null })
    expect(process.output().stdout).toContain(`${jobId}    numbers`)
  })
})

describe('--watch at a terminal', () => {
  it('at a terminal, --watch redraws in place, within the width, until the job has ended', async () => {
    const jobId = await makeJob(db)
    await makeChunks(db, jobId, 9, {
      state: 'running',
      owner: 'a-worker-with-a-name-that-is-too-long-for-it',
    })
    const written: string[] = []
    let checkWritten: () => void = () => undefined
    const twice = new Promise<void>((resolve) => {
      checkWritten = () => (written.length >= 2 ? resolve() : undefined)
    })
    const code = runProgram(['sync', 'status', jobId, '--watch', '--every', '20ms'], {
      environment: { DATABASE_URL: url },
      workingDirectory: directory(),
      isTerminal: true,
      hasTerminal: true,
      out: (text) => {
        written.push(text)
        checkWritten()
      },
      err: () => undefined,
      width: 60,
      input: async () => Promise.resolve(''),
      ask: undefined,
      account: () => 'ada',
    })
    await twice
    await db.query({ text: 'update leasehold.sync_jobs set completed_at = now()' })
    expect(await code).toBe(0)
    const [first = '', second = ''] = written
    const lines = first.trimEnd().split('\n')
    expect(lines.length).toBeLessThan(24)
    expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(60)
    expect(first).toContain('and 4 more')
    expect(second.startsWith(`\u001b[${lines.length}A\u001b[0JJob 1: numbers, m\n`)).toBe(true)
    expect(written.at(-1)).toContain('completed')
  })
})
