import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

import { serverAccount } from '../../src/embedded/account.ts'
import { prepareBinaries } from '../../src/embedded/binaries.ts'
import { initialise } from '../../src/embedded/initialise.ts'
import { spawnProgram } from '../../src/embedded/programs.ts'
import { urlOf } from '../../src/embedded/session.ts'
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

/** The server runs when this returns. */
export async function startServer(): Promise<TestServer> {
  const directory = await temporaryDirectory()
  const data = join(directory, 'data')
  const watch = watchOver(directory)
  const account = await serverAccount(data)
  const binaries = await prepareBinaries(account)
  const port = await fixedPort()
  let running: ChildProcess | undefined

  async function start(): Promise<void> {
    const settings = { ...SETTINGS, port, listen_addresses: '127.0.0.1', unix_socket_directories: '' }
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
    await initialise(data, PASSWORD, binaries, account, false)
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
