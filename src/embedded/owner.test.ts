import { Client } from 'pg'
import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses, type TestProcess } from '../../test/support/processes.ts'
import { startEmbedded } from './index.ts'
import { identifyProcess } from './processes.ts'
import { OWNER_LOCK, readPidFile } from './running-server.ts'

const { spawnNode } = useProcesses()
let directory: string
let starters: TestProcess[] = []

beforeEach(async () => {
  starters = []
  directory = await temporaryDirectory()
})

afterEach(async () => {
  // After a failed test a server may still run. It is adopted and stopped, so that none outlives its directory.
  await Promise.all(starters.map((starter) => starter.kill('SIGKILL')))
  const remaining = await startEmbedded({ directory, settings: { fsync: 'off' } })
  await remaining.stop()
  await removeDirectory(directory)
})

function startElsewhere(): TestProcess {
  const starter = spawnNode('test/fixtures/embedded.mjs', [directory])
  starters.push(starter)
  return starter
}

async function origin(starter: TestProcess): Promise<string> {
  const line = await starter.line((text) => text.startsWith('{"origin"'))
  return /"origin":"(\w+)"/.exec(line)?.[1] ?? line
}

async function stop(starter: TestProcess): Promise<void> {
  starter.send('stop')
  await starter.line((text) => text === '{"done":"stop"}')
  starter.send('leave')
  expect(await starter.exited).toEqual({ code: 0, signal: null })
}

async function postmasterPid(): Promise<number> {
  return (await readPidFile(`${directory}/data`))?.pid ?? 0
}

async function query(url: string, text: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query<object>(text)).rows
  } finally {
    await client.end()
  }
}

it('a server whose owner was killed is adopted with its process and data, and then stopped', async () => {
  const killed = startElsewhere()
  expect(await origin(killed)).toBe('initialised')
  const url = /"url":"([^"]+)"/.exec(killed.output().stdout)?.[1] ?? ''
  await query(url, 'create table facts as select 42 as answer')
  const pid = await postmasterPid()
  await killed.kill('SIGKILL')

  const next = await startEmbedded({ directory })
  expect(next).toMatchObject({ origin: 'adopted', url })
  expect(await postmasterPid()).toBe(pid)
  expect(await query(next.url, 'select answer from facts')).toEqual([{ answer: 42 }])
  await next.stop()
  expect(await identifyProcess(pid)).toBeUndefined()
})

it('a starting process waits for the session of a killed owner to end, and then adopts the server', async () => {
  const killed = startElsewhere()
  await origin(killed)
  const url = /"url":"([^"]+)"/.exec(killed.output().stdout)?.[1] ?? ''
  await killed.kill('SIGKILL')
  // Stands for the killed owner's backend, which lives until it reads the closed socket.
  const remnant = new Client({
    connectionString: url.replace('/leasehold?', '/postgres?'),
    application_name: `leasehold-owner:${killed.pid}:ended`,
  })
  await remnant.connect()
  await remnant.query('select pg_advisory_lock($1)', [OWNER_LOCK])

  const starting = startEmbedded({ directory })
  const newcomer = `select 1 as here from pg_stat_activity
    where application_name ~ '^leasehold-owner:${process.pid}:' and query ~ 'pg_locks'`
  await expect.poll(() => query(url, newcomer), { timeout: 120_000 }).toEqual([{ here: 1 }])
  await remnant.end()
  const next = await starting
  expect(next.origin).toBe('adopted')
  await next.stop()
})

it('of two processes that start in an empty directory, one initialises and owns the server and the other shares it', async () => {
  startElsewhere()
  startElsewhere()
  const origins = await Promise.all(starters.map((starter) => origin(starter)))
  expect(origins.toSorted()).toEqual(['initialised', 'shared'])
  const logs = starters.map((starter) => starter.output().stdout).join('')
  expect(logs.match(/"log":"initialising/g)).toHaveLength(1)
  const pid = await postmasterPid()

  const [owner, guest] = origins[0] === 'shared' ? starters.toReversed() : starters
  if (owner === undefined || guest === undefined) throw new Error('two were started')
  await stop(guest)
  expect(await identifyProcess(pid)).toBeDefined()
  await stop(owner)
  expect(await identifyProcess(pid)).toBeUndefined()
})

it('a process that was killed during initdb does not delay the next one, and its partial data is not used', async () => {
  const killed = startElsewhere()
  await killed.line((line) => line.startsWith('{"log":"initialising'))
  await killed.kill('SIGKILL')
  const next = startElsewhere()
  expect(await origin(next)).toBe('initialised')
  await stop(next)
})

it('a running server does not keep a process alive that has nothing else to do', async () => {
  const idle = startElsewhere()
  await origin(idle)
  idle.send('leave')
  expect(await idle.exited).toEqual({ code: 0, signal: null })
  expect(await identifyProcess(await postmasterPid())).toBeDefined()
  const next = await startEmbedded({ directory })
  expect(next.origin).toBe('adopted')
  await next.stop()
})
