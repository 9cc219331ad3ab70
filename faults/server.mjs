// A real, durable PostgreSQL in a directory of its own, always on the same port, that can be killed and restarted.
import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, writeFileSync } from 'node:fs'
import { chmod, chown, mkdir, mkdtemp, realpath, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { serverAccount } from '../dist/embedded/account.js'
import { prepareBinaries } from '../dist/embedded/binaries.js'
import { initialise, SUPERUSER } from '../dist/embedded/directory.js'

const PASSWORD = 'only-for-this-run'
const WATCHDOG = fileURLToPath(new URL('../test/support/watchdog.mjs', import.meta.url))

/** Durable, as in production. */
const SETTINGS = {
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  max_connections: '100',
  shared_buffers: '64MB',
}

/** A directory for one run. Whatever the run leaves in it is ended and removed, also if the run is killed. */
export async function createRunDirectory() {
  const directory = await mkdtemp(join(await realpath(tmpdir()), 'leasehold-faults-'))
  // The account of the server has to enter it, also if root created it.
  await chmod(directory, 0o755)
  const watchdog = spawn(process.execPath, [WATCHDOG, directory], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  watchdog.unref()
  const groups = new Set()
  const tellWatchdog = () => writeFileSync(join(directory, 'groups'), [...groups].join('\n'))
  return {
    path: directory,
    /** If the run is killed, so is the process group of this child. One that has ended is forgotten: its id may be used again. */
    watch(child) {
      groups.add(child.pid)
      tellWatchdog()
      child.once('exit', () => {
        groups.delete(child.pid)
        if (existsSync(directory)) tellWatchdog()
      })
    },
    async remove() {
      await rm(directory, { recursive: true, force: true })
      watchdog.stdin.destroy()
    },
  }
}

/**
 * `place`: where its data directory is to be, default the directory of the run. `env`: for the server alone, a library
 * that changes its clock, say.
 */
export async function startServer(run, { settings = {}, place = run.path, env = {} } = {}) {
  const data = join(place, 'data')
  const account = await serverAccount(data)
  const binaries = await prepareBinaries(account)
  const port = await freePort()
  const url = `postgresql://${SUPERUSER}:${PASSWORD}@127.0.0.1:${port}/postgres`
  let running

  async function start() {
    const options = {
      ...SETTINGS,
      ...settings,
      port,
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
    }
    const args = Object.entries(options).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    const identity = account === undefined ? {} : { uid: account.uid, gid: account.gid }
    running = spawn(binaries.postgres, ['-D', data, ...args], {
      cwd: '/',
      env: { PATH: process.env.PATH, LC_ALL: 'C', ...env },
      stdio: ['ignore', 'ignore', 'pipe'],
      // A group of its own, so that Ctrl-C ends the run, which then ends its server.
      detached: true,
      ...identity,
    })
    run.watch(running)
    await ready(running)
  }

  async function end(signal) {
    const server = running
    running = undefined
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill(signal)
    await ended
  }

  if (place !== run.path) {
    await mkdir(place, { recursive: true })
    if (account !== undefined) await chown(place, account.uid, account.gid)
  }
  await initialise(data, PASSWORD, binaries, account, true)
  await start()
  return {
    url,
    data,
    get pid() {
      return running?.pid
    },
    get hasEnded() {
      return running === undefined || running.exitCode !== null || running.signalCode !== null
    },
    /** SIGKILL for the postmaster alone; its backends end when they notice, and the next start recovers. */
    kill: async () => end('SIGKILL'),
    stop: async () => end('SIGINT'),
    /** After a kill the last backend may hold the shared memory for a moment. */
    async start() {
      for (let tries = 1; ; tries += 1) {
        try {
          await start()
          return
        } catch (error) {
          if (tries === 100) throw error
          await new Promise((resolve) => setTimeout(resolve, 100))
        }
      }
    },
  }
}

async function ready(server) {
  const log = []
  await new Promise((resolve, reject) => {
    // The log is read to its end, because otherwise the server would block.
    createInterface({ input: server.stderr }).on('line', (line) => {
      log.push(line)
      if (log.length > 200) log.shift()
      if (line.includes('database system is ready to accept connections')) resolve()
    })
    server.once('error', reject)
    server.once('exit', () => reject(new Error(`PostgreSQL did not start:\n${log.join('\n')}`)))
  })
}

/** Below the ephemeral ports, so that the system gives it to nobody while the server is away. */
async function freePort() {
  for (;;) {
    const port = randomInt(15_000, 30_000)
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

export function urlOf(server, database) {
  const url = new URL(server.url)
  url.pathname = database
  return url.href
}

/** One connection for as long as the work takes. */
export async function withClient(connectionString, work) {
  const client = new pg.Client({ connectionString, application_name: 'faults' })
  // The end of a connection is reported by its statements.
  client.on('error', () => {})
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}
