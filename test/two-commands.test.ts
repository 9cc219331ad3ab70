import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { Client } from 'pg'
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { findEmbedded, startEmbedded } from '../src/embedded/index.ts'
import { callLeasehold } from './support/command-line.ts'
import { useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { startProxy } from './support/proxy.ts'
import { emptyDirectory, killServers, serversOf } from './support/server.ts'

const { spawnNode } = useProcesses()
const database = useDatabase()

interface Running {
  readonly process: TestProcess
  readonly http: string
  readonly databaseUrl: string
}

/** The working directory of tests that do not need an empty one: it has a data directory already, made without fsync. */
let home = ''
beforeAll(async () => {
  home = await temporaryDirectory()
  const server = await startEmbedded({ directory: join(home, '.leasehold'), settings: { fsync: 'off' } })
  await server.stop()
})
afterAll(async () => removeDirectory(home))

function initialisedDirectory(): string {
  onTestFinished(async () => killServers(home))
  return home
}

function leasehold(directory: string, args: readonly string[], environment: Record<string, string> = {}) {
  // The developer's own settings must not reach the process. An empty variable counts as not set.
  const env = { DATABASE_URL: '', LEASEHOLD_PORT: '', ...environment }
  return spawnNode('dist/cli/main.js', args, { cwd: directory, env })
}

async function up(directory: string, args = ['--port', '0'], environment = {}): Promise<Running> {
  const started = leasehold(directory, ['up', ...args], environment)
  await started.line((line) => line.includes('Ctrl-C'))
  const shown = async (name: string): Promise<string> =>
    (await started.line((line) => line.startsWith(`  ${name}`))).trim().split(/\s+/)[1] ?? ''
  const embedded = await findEmbedded(join(directory, '.leasehold'))
  return {
    process: started,
    http: await shown('HTTP'),
    databaseUrl: embedded?.url ?? (await shown('Database')),
  }
}

async function failed(process: TestProcess): Promise<{ code: number | null; error: string }> {
  const { code } = await process.exited
  expect(process.output().stdout).toBe('')
  return { code, error: process.output().stderr }
}

async function query(url: string, text: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query<Record<string, unknown>>(text)).rows
  } finally {
    await client.end()
  }
}

async function postmasterOf(directory: string): Promise<string | undefined> {
  return (await readFile(join(directory, '.leasehold/data/postmaster.pid'), 'utf8')).split('\n')[0]
}

async function status(url: string): Promise<number> {
  return (await fetch(url)).status
}

async function takePort(port: number): Promise<number> {
  const server = createServer().listen(port, '127.0.0.1')
  onTestFinished(() => void server.close())
  await Promise.race([
    once(server, 'listening'),
    once(server, 'error').then(([error]) => Promise.reject(error)),
  ])
  const address = server.address()
  return typeof address === 'object' && address !== null ? address.port : port
}

async function openSocket(http: string, text: string): Promise<Socket> {
  const { hostname, port } = new URL(http)
  const socket = connect(Number(port), hostname)
  await once(socket, 'connect')
  socket.write(text)
  return socket
}

it('the first run prints its address and answers there; the second run finds the data of the first', async () => {
  const directory = await emptyDirectory()
  const first = await up(directory)
  expect(first.process.output().stdout).toContain(`${join(directory, '.leasehold')} (created now)`)
  expect(await status(`${first.http}/livez`)).toBe(200)
  expect(await status(`${first.http}/readyz?verbose`)).toBe(200)
  await query(first.databaseUrl, `insert into leasehold.audit (principal, action) values ('me', 'first run')`)
  expect(await first.process.kill('SIGINT')).toEqual({ code: 0, signal: null })

  const second = await up(directory)
  expect(second.process.output().stdout).toContain('(found from an earlier run)')
  const rows = await query(second.databaseUrl, 'select principal, action from leasehold.audit')
  expect(rows).toEqual([{ principal: 'me', action: 'first run' }])
  expect(await second.process.kill('SIGINT')).toEqual({ code: 0, signal: null })
  expect(await serversOf(directory)).toEqual([])
})

it('after kill -9 a new run takes over the running server with its data', async () => {
  const directory = initialisedDirectory()
  const first = await up(directory)
  await query(first.databaseUrl, `create table orders as select 42 as id`)
  const postmaster = await postmasterOf(directory)
  await first.process.kill('SIGKILL')
  expect(await serversOf(directory)).toHaveLength(1)

  const second = await up(directory)
  expect(await postmasterOf(directory)).toBe(postmaster)
  expect(await query(second.databaseUrl, 'select id from orders')).toEqual([{ id: 42 }])
  expect(await status(`${second.http}/readyz`)).toBe(200)
  expect(await second.process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(await serversOf(directory)).toEqual([])
})

// SIGINT and SIGTERM end most of the other tests.
it('SIGHUP ends all processes, with exit code 0', async () => {
  const directory = initialisedDirectory()
  const { process, http } = await up(directory)
  expect(await serversOf(directory)).toHaveLength(1)
  expect(await process.kill('SIGHUP')).toEqual({ code: 0, signal: null })
  expect(await serversOf(directory)).toEqual([])
  await expect(fetch(`${http}/livez`)).rejects.toThrow('fetch failed')
})

it('a signal during initdb leaves no process running, and the next run works', async () => {
  const directory = await emptyDirectory()
  const process = leasehold(directory, ['up', '--port', '0'])
  await vi.waitFor(() => expect(process.output().stderr).toContain('initialising'), { timeout: 120_000 })
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
  expect(process.output().stdout).toBe('')
  expect(await serversOf(directory)).toEqual([])
  const next = await up(directory)
  expect(await next.process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('a second signal exits at once, and the server is stopped', async () => {
  const directory = initialisedDirectory()
  const { process, http } = await up(directory)
  const unfinished = await openSocket(http, 'GET / HTTP/1.1\r\n')
  onTestFinished(() => void unfinished.destroy())
  unfinished.on('error', () => {})
  const idle = await openSocket(http, `GET /livez HTTP/1.1\r\nHost: ${new URL(http).host}\r\n\r\n`)
  await once(idle, 'data')
  const stopping = once(idle.resume(), 'close')
  const exit = process.kill('SIGTERM')
  await stopping
  await process.kill('SIGINT')
  expect(await exit).toEqual({ code: 130, signal: null })
  await vi.waitFor(async () => expect(await serversOf(directory)).toEqual([]), { timeout: 120_000 })
})

it('an uncaught error is printed with its stack, and all processes are ended', async () => {
  const directory = initialisedDirectory()
  const fault = 'process.once("SIGUSR2", () => { throw new Error("surprise") })'
  const options = {
    cwd: directory,
    env: { DATABASE_URL: '' },
    execArgv: ['--import', `data:text/javascript,${fault}`],
  }
  const process = spawnNode('dist/cli/main.js', ['up', '--port', '0'], options)
  await process.line((line) => line.includes('Ctrl-C'))
  expect(await process.kill('SIGUSR2')).toEqual({ code: 1, signal: null })
  expect(process.output().stderr).toMatch(/Error: surprise\n\s+at /)
  expect(await serversOf(directory)).toEqual([])
})

it('a signal ends the wait for a database that does not answer', async () => {
  const proxy = await startProxy(database.url)
  await proxy.close()
  const process = leasehold(await emptyDirectory(), ['up'], { DATABASE_URL: proxy.url })
  await vi.waitFor(() => expect(process.output().stderr).toContain('does not answer yet'), {
    timeout: 120_000,
  })
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})

it('with DATABASE_URL no embedded server is started, and no directory is created; while the database is away, the process goes on and /readyz fails', async () => {
  const directory = await emptyDirectory()
  const proxy = await startProxy(database.url)
  onTestFinished(async () => proxy.close())
  const url = new URL(proxy.url)
  const { process, http, databaseUrl } = await up(directory, ['--port', '0'], { DATABASE_URL: url.href })
  expect(await status(`${http}/readyz`)).toBe(200)
  expect(databaseUrl).toBe(url.href.replace(url.password, '***'))
  expect(existsSync(join(directory, '.leasehold'))).toBe(false)
  await proxy.refuse()
  proxy.cut()
  expect(await status(`${http}/readyz`)).toBe(503)
  expect(await status(`${http}/livez`)).toBe(200)
  await proxy.accept()
  expect(await status(`${http}/readyz`)).toBe(200)
  expect(await process.kill('SIGINT')).toEqual({ code: 0, signal: null })
  const { stdout, stderr } = process.output()
  expect(stdout + stderr).not.toContain(`:${url.password}@`)
})

it('a database that does not answer at the start is an error that names it without its password', async () => {
  const proxy = await startProxy('postgresql://someone:s3cret@127.0.0.1:1/app')
  await proxy.close()
  const { code, stderr } = await callLeasehold(['up', '--port', '0', '--database-wait-ms', '0'], {
    workingDirectory: await emptyDirectory(),
    databaseUrl: proxy.url,
  })
  expect(code).toBe(1)
  expect(stderr).toMatch(/DATABASE_UNAVAILABLE: .*someone:\*\*\*@127\.0\.0\.1.*\(DATABASE_URL\)/)
  expect(stderr).not.toContain('s3cret')
})

it('all invalid settings are refused together, before anything is started', async () => {
  const directory = await emptyDirectory()
  await writeFile(join(directory, 'leasehold.config.mjs'), 'export default { prot: 7400 }')
  const args = ['up', '--lease-ms', '0', '--host', 'http://0.0.0.0']
  const { code, stderr } = await callLeasehold(args, { workingDirectory: directory })
  expect(code).toBe(1)
  expect(stderr).toContain('SETTING_INVALID')
  expect(stderr).toContain('did you mean port?')
  expect(stderr).toContain("host (--host) is 'http://0.0.0.0'")
  expect(stderr).toContain('leaseMs')
  expect(existsSync(join(directory, '.leasehold'))).toBe(false)
})

it('a requested port that is in use is an error, and no process remains', async () => {
  const directory = initialisedDirectory()
  const port = await takePort(0)
  const { code, error } = await failed(leasehold(directory, ['up', '--port', String(port)]))
  expect(code).toBe(1)
  expect(error).toContain(`SETTING_INVALID: HTTP cannot listen on 127.0.0.1:${port}`)
  expect(await serversOf(directory)).toEqual([])
})

it('on the embedded server, where no keys are sent, a free port is chosen and printed if the default one is in use', async () => {
  // Taken by this test or, as well, by something else on the machine.
  await takePort(7400).catch(() => undefined)
  const { process, http } = await up(initialisedDirectory(), [])
  expect(process.output().stdout).toContain('(port 7400 was taken)')
  expect(await status(`${http}/livez`)).toBe(200)
  expect(await process.kill('SIGINT')).toEqual({ code: 0, signal: null })
})

it('`migrate` brings a database up to date, and the second call has nothing to do', async () => {
  const directory = await emptyDirectory()
  const args = ['migrate', '--schema', 'elsewhere']
  const first = leasehold(directory, args, { DATABASE_URL: database.url })
  expect(await first.line(() => true)).toMatch(/^Applied 1\b.*The schema elsewhere is at version \d+\.$/)
  expect(await first.exited).toEqual({ code: 0, signal: null })
  const second = await callLeasehold(args, { workingDirectory: directory, databaseUrl: database.url })
  expect(second).toMatchObject({ code: 0, stderr: '' })
  expect(second.stdout).toMatch(/^Nothing to apply\. The schema elsewhere is at version \d+\.$/m)
})

it('`migrate` uses the embedded server that runs in the directory, and without one prints what to do', async () => {
  const directory = initialisedDirectory()
  const running = await up(directory)
  const migrated = await callLeasehold(['migrate'], { workingDirectory: directory })
  expect(migrated).toMatchObject({ code: 0, stdout: expect.stringContaining('Nothing to apply.') as unknown })
  expect(await running.process.kill('SIGTERM')).toEqual({ code: 0, signal: null })

  const refused = await callLeasehold(['migrate'], { workingDirectory: directory })
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining('set DATABASE_URL') as unknown })
})

it.each([[['nonsense']], [['up', '--nonsense']], [['up', 'nonsense']], [['up', '--port']], [[]]])(
  'the invalid command line %j exits with 2',
  async (args) => {
    const called = await callLeasehold(args, { workingDirectory: await emptyDirectory() })
    expect(called).toMatchObject({ code: 2, stdout: '' })
    expect(called.stderr).not.toContain('    at ')
  },
)

it('--version prints the version of the package, and --help prints the commands', async () => {
  const directory = await emptyDirectory()
  const text = await readFile(new URL('../package.json', import.meta.url), 'utf8')
  const version = leasehold(directory, ['--version'])
  expect(await version.line(() => true)).toBe((JSON.parse(text) as { version: string }).version)
  expect((await version.exited).code).toBe(0)
  const help = await callLeasehold(['--help'], { workingDirectory: directory })
  expect(help).toMatchObject({ code: 0, stdout: expect.stringMatching(/^ *migrate/m) as unknown })
})
