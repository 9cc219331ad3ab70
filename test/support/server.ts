import { type ChildProcess, spawn, execFile } from 'node:child_process'
import { once } from 'node:events'
import { chown, mkdir, readdir, readFile, access, constants, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { buffer, text } from 'node:stream/consumers'
import { onTestFinished } from 'vitest'

import { type Account, serverAccount } from '../../src/embedded/account.ts'
import { type Binaries, prepareBinaries, runProgram, spawnProgram } from '../../src/embedded/binaries.ts'
import { initialise, SUPERUSER } from '../../src/embedded/directory.ts'
import { freePort } from './brokers/broker.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'
import { startWatchdog } from './watchdog.ts'

/** `immediate` ends every process of the server at once, as a crash does; the next start recovers. */
export type StopMode = 'fast' | 'immediate'

/** A PostgreSQL server of one test, always on the same port, that can be stopped and restarted. */
export interface TestServer {
  readonly url: string
  /** Its data directory, which may be copied while it is stopped. */
  readonly data: string
  /** Returns when it accepts connections. */
  start(): Promise<void>
  /** Returns when its last process has ended. */
  stop(mode: StopMode): Promise<void>
  restart(mode: StopMode): Promise<void>
  /** Kills its first process with SIGKILL. The others end when they notice. */
  kill(): Promise<void>
  /** Stops it and deletes its files. */
  remove(): Promise<void>
}

const PASSWORD = 'only-for-this-test'
const SIGNALS = { fast: 'SIGINT', immediate: 'SIGQUIT' } as const

/** Committed data survives a crash of the server, though not a crash of the machine. */
const SETTINGS = { fsync: 'off', full_page_writes: 'off', max_connections: '100', shared_buffers: '64MB' }

export interface ServerOptions {
  readonly settings?: Readonly<Record<string, string>>
  /** The programs of another installed PostgreSQL. Default: the embedded one. */
  readonly binaries?: Pick<Binaries, 'initdb' | 'postgres'>
  /** It begins as a copy of this server, which must be stopped. */
  readonly copyOf?: Pick<TestServer, 'data'>
  /** The copy replicates from this server, by streaming, under the name `standby`. */
  readonly standbyOf?: Pick<TestServer, 'url'>
}

/** Creates and starts a server. */
export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const directory = await temporaryDirectory()
  const data = join(directory, 'data')
  const watchdog = startWatchdog(directory)
  const account = await serverAccount(data)
  const binaries = options.binaries ?? (await prepareBinaries(account))
  const port = await freePort()
  let running: ChildProcess | undefined

  async function start(): Promise<void> {
    const settings = {
      ...SETTINGS,
      ...(options.standbyOf === undefined
        ? {}
        : { primary_conninfo: conninfo(options.standbyOf.url, 'standby') }),
      ...options.settings,
      port,
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
    }
    const args = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    running = spawnProgram(binaries.postgres, ['-D', data, ...args], account, {
      stdio: ['ignore', 'ignore', 'pipe'],
      detached: false,
    })
    await ready(running)
  }

  async function end(signal: NodeJS.Signals): Promise<void> {
    const server = running
    running = undefined
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill(signal)
    await ended
  }

  const stop = async (mode: StopMode): Promise<void> => end(SIGNALS[mode])

  async function remove(): Promise<void> {
    await stop('immediate')
    await removeDirectory(directory)
    watchdog.release()
  }

  try {
    if (options.copyOf !== undefined) await copyServer(options.copyOf.data, data, account)
    else if (options.binaries === undefined)
      await initialise(data, PASSWORD, await prepareBinaries(account), account, false)
    else await initialiseOther(data, options.binaries.initdb, account)
    if (options.standbyOf !== undefined) await writeFile(join(data, 'standby.signal'), '')
    await start()
  } catch (error) {
    await remove()
    throw error
  }
  return {
    url: `postgresql://${SUPERUSER}:${PASSWORD}@127.0.0.1:${port}/postgres`,
    data,
    start,
    stop,
    kill: async () => end('SIGKILL'),
    async restart(mode) {
      await stop(mode)
      await start()
    },
    remove,
  }
}

/** How another server connects to this one. */
export function conninfo(url: string, applicationName: string): string {
  const { hostname, port, username, password, pathname } = new URL(url)
  return `host=${hostname} port=${port} user=${username} password=${password} dbname=${pathname.slice(1)} application_name=${applicationName}`
}

/** By the account of the server, which has to own the copy. */
async function copyServer(from: string, to: string, account: Account | undefined): Promise<void> {
  await mkdir(to, { mode: 0o700 })
  if (account !== undefined) await chown(to, account.uid, account.gid)
  const result = await runProgram('cp', ['-a', `${from}/.`, to], account)
  if (result.outcome === 'failed') throw new Error(`cp failed (${result.status}): ${result.output}`)
}

/** Older servers do not have the locale provider that the embedded one uses. */
async function initialiseOther(data: string, initdb: string, account: Account | undefined): Promise<void> {
  await mkdir(data, { mode: 0o700 })
  if (account !== undefined) await chown(data, account.uid, account.gid)
  const args = ['-D', data, '-U', SUPERUSER, '--auth=trust', '--encoding=UTF8', '--locale=C', '--no-sync']
  const result = await runProgram(initdb, args, account)
  if (result.outcome === 'failed') throw new Error(`initdb failed (${result.status}): ${result.output}`)
}

/** Waits for the line of the log that says so. The log is read to its end, because otherwise the server would block. */
async function ready(server: ChildProcess): Promise<void> {
  const { stderr } = server
  if (stderr === null) throw new Error('the log of the server is not read')
  const log: string[] = []
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: stderr }).on('line', (line) => {
      log.push(line)
      if (/database system is ready to accept (?:read-only )?connections/.test(line)) resolve()
    })
    server.once('error', reject)
    server.once('exit', () => reject(new Error(`PostgreSQL did not start:\n${log.join('\n')}`)))
  })
}

/**
 * Returns the process ids of the PostgreSQL servers that run in this directory. A new backend has the command line of
 * its server for up to 100 ms, until the client has sent its name; it is recognised by its parent.
 */
export async function serversOf(directory: string): Promise<number[]> {
  const found = await processesOn(directory)
  const pids = new Set(found.map(({ pid }) => pid))
  return found.filter(({ parent }) => !pids.has(parent)).map(({ pid }) => pid)
}

/** The processes with the command line of a server in `.leasehold` of this directory, or in a folder of it. */
export async function processesOn(directory: string): Promise<Process[]> {
  const data = join(directory, '.leasehold', '/')
  return (await processes()).filter(({ command }) => command.includes(`postgres -D ${data}`))
}

export interface Process {
  readonly pid: number
  readonly parent: number
  readonly command: string
}

/** A minimal Linux has no `ps`, and macOS has no /proc. */
async function processes(): Promise<Process[]> {
  if (process.platform !== 'linux') {
    const { stdout } = await promisify(execFile)('ps', ['-axww', '-o', 'pid=,ppid=,command='])
    return stdout.split('\n').map((line) => {
      const [pid, parent] = line.trim().split(/\s+/)
      return { pid: Number(pid), parent: Number(parent), command: line }
    })
  }
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  return Promise.all(
    pids.map(async (pid) => {
      // The process may end while it is being read.
      const read = async (name: string): Promise<string> =>
        readFile(`/proc/${pid}/${name}`, 'utf8').catch(() => '')
      const parent = Number(/^PPid:\s*(\d+)$/m.exec(await read('status'))?.[1])
      return { pid: Number(pid), parent, command: (await read('cmdline')).replaceAll('\0', ' ') }
    }),
  )
}

/** Creates a temporary directory. After the test its servers are killed, which only a failed test leaves, and it is deleted. */
export async function emptyDirectory(): Promise<string> {
  const directory = await temporaryDirectory()
  onTestFinished(async () => {
    await killServers(directory)
    await removeDirectory(directory)
  })
  return directory
}

export async function killServers(directory: string): Promise<void> {
  for (const pid of await serversOf(directory)) process.kill(pid, 'SIGKILL')
}

/** Client programs and the server of the same version: pg_dump refuses a server that is newer than itself. */
export interface PostgresPrograms {
  readonly pgDump: string
  readonly pgRestore: string
  readonly initdb: string
  readonly postgres: string
}

/** Debian's directory of all major versions. The embedded server has no client programs. */
const HOME = '/usr/lib/postgresql'

const MISSING = `${HOME} has no pg_dump with its server. To run these tests: apt-get install postgresql`

/**
 * Returns undefined if they are not installed. Then the tests that need them are skipped, and the reason is printed.
 * With LEASEHOLD_REQUIRE_BROKERS=1, as in CI, this is an error.
 */
export async function findClientPrograms(): Promise<PostgresPrograms | undefined> {
  const versions = (await readdir(HOME).catch(() => [])).toSorted((a, b) => Number(b) - Number(a))
  for (const version of versions) {
    const at = (name: string): string => join(HOME, version, 'bin', name)
    const found = {
      pgDump: at('pg_dump'),
      pgRestore: at('pg_restore'),
      initdb: at('initdb'),
      postgres: at('postgres'),
    }
    const areThere = await Promise.all(
      Object.values(found).map(async (path) =>
        access(path, constants.X_OK).then(
          () => true,
          () => false,
        ),
      ),
    )
    if (areThere.every(Boolean)) return found
  }
  if (process.env['LEASEHOLD_REQUIRE_BROKERS'] === '1') throw new Error(MISSING)
  process.stderr.write(`skipped: ${MISSING}\n`)
  return undefined
}

/** Runs the program and returns its output. */
export async function runClientProgram(
  program: string,
  args: readonly string[],
  input?: Buffer,
): Promise<Buffer> {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] })
  const ended = once(child, 'close')
  child.stdin.end(input)
  const [output, errors, [code]] = await Promise.all([buffer(child.stdout), text(child.stderr), ended])
  if (code !== 0) throw new Error(`${program} ended with ${String(code)}: ${errors}`)
  return output
}
