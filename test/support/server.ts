import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { chown, mkdir } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

import { type Account, serverAccount } from '../../src/embedded/account.ts'
import { type Binaries, prepareBinaries, runProgram, spawnProgram } from '../../src/embedded/binaries.ts'
import { initialise, SUPERUSER } from '../../src/embedded/directory.ts'
import { urlOf } from '../../src/embedded/running-server.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'

/** `immediate` ends every process of the server at once, as a crash does; the next start recovers. */
export type StopMode = 'fast' | 'immediate'

/** A PostgreSQL of a test's own, always on the same port, that can be taken away and brought back. */
export interface TestServer {
  readonly url: string
  /** Returns when it takes connections. */
  start(): Promise<void>
  /** Returns when its last process is gone. */
  stop(mode: StopMode): Promise<void>
  restart(mode: StopMode): Promise<void>
  /** Stops it and leaves nothing behind. */
  remove(): Promise<void>
}

const PASSWORD = 'only-for-this-test'
const SIGNALS = { fast: 'SIGINT', immediate: 'SIGQUIT' } as const

/** What was committed survives the processes of the server; only the machine must not crash. */
const SETTINGS = { fsync: 'off', full_page_writes: 'off', max_connections: '100', shared_buffers: '64MB' }

/**
 * Below the ports that operating systems hand out by themselves: while the server is away, a client that dials its
 * port must neither be given that port for its own end nor reach another program that was.
 */
const PORTS = { from: 15_000, to: 30_000 }

export interface ServerOptions {
  readonly settings?: Readonly<Record<string, string>>
  /** Programs of another PostgreSQL that is installed here. Default: the embedded one. */
  readonly binaries?: Pick<Binaries, 'initdb' | 'postgres'>
}

/** The server runs when this returns. */
export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const directory = await temporaryDirectory()
  const data = join(directory, 'data')
  const watch = watchOver(directory)
  const account = await serverAccount(data)
  const binaries = options.binaries ?? (await prepareBinaries(account))
  const port = await fixedPort()
  let running: ChildProcess | undefined

  async function start(): Promise<void> {
    const settings = {
      ...SETTINGS,
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

  async function stop(mode: StopMode): Promise<void> {
    const server = running
    running = undefined
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill(SIGNALS[mode])
    await ended
  }

  async function remove(): Promise<void> {
    await stop('immediate')
    await removeDirectory(directory)
    watch.stdin.destroy()
  }

  try {
    if (options.binaries === undefined)
      await initialise(data, PASSWORD, await prepareBinaries(account), account, false)
    else await initialiseOther(data, options.binaries.initdb, account)
    await start()
  } catch (error) {
    await remove()
    throw error
  }
  return {
    url: urlOf(port, PASSWORD, 'postgres'),
    start,
    stop,
    async restart(mode) {
      await stop(mode)
      await start()
    },
    remove,
  }
}

/** Older servers lack the locale provider that the embedded one is given. */
async function initialiseOther(data: string, initdb: string, account: Account | undefined): Promise<void> {
  await mkdir(data, { mode: 0o700 })
  if (account !== undefined) await chown(data, account.uid, account.gid)
  const args = ['-D', data, '-U', SUPERUSER, '--auth=trust', '--encoding=UTF8', '--locale=C', '--no-sync']
  const result = await runProgram(initdb, args, account)
  if (result.outcome === 'failed') throw new Error(`initdb failed (${result.status}): ${result.output}`)
}

/** Its log says when; and it has to be read on, or the server would wait for its reader. */
async function ready(server: ChildProcess): Promise<void> {
  const { stderr } = server
  if (stderr === null) throw new Error('the log of the server is not read')
  const log: string[] = []
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: stderr }).on('line', (line) => {
      log.push(line)
      if (line.includes('database system is ready to accept connections')) resolve()
    })
    server.once('error', reject)
    server.once('exit', () => reject(new Error(`PostgreSQL did not start:\n${log.join('\n')}`)))
  })
}

/** A killed test run cannot stop its server; a process whose stdin it held open notices and does. */
function watchOver(directory: string) {
  const script = fileURLToPath(new URL('cluster-watch.mjs', import.meta.url))
  const watch = spawn(process.execPath, [script, directory], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  watch.unref()
  return watch
}

async function fixedPort(): Promise<number> {
  for (;;) {
    const port = randomInt(PORTS.from, PORTS.to)
    const probe = createServer()
    const free = once(probe, 'listening').then(
      () => true,
      () => false,
    )
    probe.listen(port, '127.0.0.1')
    if (!(await free)) continue
    probe.close()
    await once(probe, 'close')
    return port
  }
}
