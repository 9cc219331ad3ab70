/** examples/sync as in its README: from a checkout, with its own database, killed and restarted. */
import { expect, it } from 'vitest'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { emptyDirectory, serversOf } from './support/server.ts'

const { spawnNode } = useProcesses()
const CHUNKS = 210
const BAR = /^[█░]{32} (?<done>\d+) of (?<total>\d+)(?: or more)? chunks, (?<rows>\d+) rows, \d+ in flight/

function start(directory: string, ...args: readonly string[]): TestProcess {
  // An empty variable counts as not set.
  const env = { DATABASE_URL: '', CALLS_PER_SECOND: '60' }
  return spawnNode('examples/sync/main.mjs', args, { cwd: directory, env })
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
  // Completed chunks are not fetched, and each of the others is fetched once.
  expect(await said(heir, /asked for (\d+) chunks/)).toBe(CHUNKS - before)
  const people = /; (\d+) people in the table, (\d+) at the office/.exec(heir.output().stdout)
  expect(people?.[1]).toBe(people?.[2])
  expect(Number(people?.[1])).toBeGreaterThan(1_000_000)

  // Everything has been imported, so a new job has nothing to fetch.
  const idle = start(directory)
  expect(await idle.exited, idle.output().stderr).toEqual({ code: 0, signal: null })
  expect(await said(idle, /asked for (\d+) chunks/)).toBe(0)

  // On SIGINT it stops in order and prints its progress.
  const forced = start(directory, '--force')
  await forced.line((line) => doneIn(line) >= CHUNKS / 10 && doneIn(line) < CHUNKS)
  expect(await forced.kill('SIGINT')).toEqual({ code: 0, signal: null })
  expect(forced.output().stdout).toContain('Start it again, and it goes on.')
  expect(await serversOf(directory)).toEqual([])
})
