/** examples/sync as its README says: from a checkout, on a database of its own, killed and started again. */
import { expect, it, onTestFinished } from 'vitest'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { serversOf } from './support/server.ts'

const { spawnNode } = useProcesses()
const CHUNKS = 210
const BAR = /^[█░]{32} (?<done>\d+) of (?<total>\d+)(?: or more)? chunks, (?<rows>\d+) rows, \d+ in flight/

async function emptyDirectory(): Promise<string> {
  const directory = await temporaryDirectory()
  onTestFinished(async () => {
    // Only after a failure: a test that passes has none left.
    for (const pid of await serversOf(directory)) process.kill(pid, 'SIGKILL')
    await removeDirectory(directory)
  })
  return directory
}

function start(directory: string, ...args: readonly string[]): TestProcess {
  // An empty variable is not set.
  const env = { DATABASE_URL: '', CALLS_PER_SECOND: '60' }
  return spawnNode('examples/sync/sync.mjs', args, { cwd: directory, env })
}

function doneIn(line: string): number {
  return Number(BAR.exec(line)?.groups?.['done'] ?? -1)
}

async function said(process: TestProcess, pattern: RegExp): Promise<number> {
  return Number(pattern.exec(await process.line((line) => pattern.test(line)))?.[1])
}

it('SYNC-11: the sync example continues where it was killed, and its result is the expected sum', async () => {
  const directory = await emptyDirectory()
  const victim = start(directory)
  await victim.line((line) => doneIn(line) >= CHUNKS / 10)
  expect(await victim.kill('SIGKILL')).toMatchObject({ signal: 'SIGKILL' })

  const heir = start(directory)
  const before = await said(heir, /goes on: (\d+) chunks were done before/)
  expect(before).toBeGreaterThanOrEqual(CHUNKS / 10)
  expect(before).toBeLessThan(CHUNKS)
  expect(await heir.exited, heir.output().stderr).toEqual({ code: 0, signal: null })
  // None of those that were done, and each of the others once.
  expect(await said(heir, /asked for (\d+) chunks/)).toBe(CHUNKS - before)
  const people = /; (\d+) people in the table, (\d+) at the office/.exec(heir.output().stdout)
  expect(people?.[1]).toBe(people?.[2])
  expect(Number(people?.[1])).toBeGreaterThan(1_000_000)

  // Everything is there: a new job has nothing to fetch.
  const idle = start(directory)
  expect(await idle.exited, idle.output().stderr).toEqual({ code: 0, signal: null })
  expect(await said(idle, /asked for (\d+) chunks/)).toBe(0)

  // Asked to stop, it takes its leave, and says how far it came.
  const forced = start(directory, '--force')
  await forced.line((line) => doneIn(line) >= CHUNKS / 10 && doneIn(line) < CHUNKS)
  expect(await forced.kill('SIGINT')).toEqual({ code: 0, signal: null })
  expect(forced.output().stdout).toContain('Start it again, and it goes on.')
  expect(await serversOf(directory)).toEqual([])
}, 240_000)
