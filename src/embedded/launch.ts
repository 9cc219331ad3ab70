import { once } from 'node:events'
import { open, readFile, rename, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

import { hasCode, LeaseholdError } from '../errors.ts'
import type { Account } from './account.ts'
import { spawnProgram, type Binaries } from './binaries.ts'
import type { ServerFiles } from './directory.ts'
import { identifyProcess, terminate, type ServerProcess } from './processes.ts'
import { proveIdentity } from './running-server.ts'

const ATTEMPTS = 10
const ATTEMPT_PAUSE_MS = 500
/** Long, because a start may include a crash recovery. */
const READY_TIMEOUT_MS = 300_000
const READY_POLL_MS = 25
const LOG_LIMIT_BYTES = 10 * 1024 * 1024
const LOG_TAIL_LINES = 20

/** Another process has bound the port since it was chosen, or children of a killed postmaster are still running. */
const RETRYABLE_LOG =
  /Address already in use|could not create any TCP\/IP sockets|pre-existing shared memory block/

export interface LaunchOptions {
  readonly files: ServerFiles
  readonly data: string
  readonly password: string
  readonly binaries: Binaries
  readonly account: Account | undefined
  readonly settings: Readonly<Record<string, string>>
}

export interface LaunchedServer {
  readonly process: ServerProcess
  readonly port: number
}

type Attempt =
  | { readonly outcome: 'ready'; readonly server: LaunchedServer }
  | { readonly outcome: 'exited'; readonly log: string; readonly status: string }

/** Starts the server on a free port. Returns once it answers and is proved to be the server of this data directory. */
export async function launch(options: LaunchOptions): Promise<LaunchedServer> {
  await rotateLog(options.files.log)
  for (let attempt = 1; ; attempt += 1) {
    const result = await launchOn(await choosePort(options.files.port), options)
    if (result.outcome === 'ready') {
      await rememberPort(result.server.port, options.files.port)
      return result.server
    }
    if (attempt === ATTEMPTS || !RETRYABLE_LOG.test(result.log)) {
      const tail = result.log.trimEnd().split('\n').slice(-LOG_TAIL_LINES).join('\n')
      throw new LeaseholdError(
        'EMBEDDED_FAILED',
        `PostgreSQL ended while starting in ${options.data} (${result.status}); its log ends with:\n${tail}\n`,
        { remedy: `The whole log is ${options.files.log}.` },
      )
    }
    await delay(ATTEMPT_PAUSE_MS)
  }
}

async function launchOn(port: number, options: LaunchOptions): Promise<Attempt> {
  // A file, because a pipe whose reader was killed would block or kill the server.
  const log = await open(options.files.log, 'a', 0o600)
  const logStart = (await log.stat()).size
  const child = spawnProgram(options.binaries.postgres, serverArguments(port, options), options.account, {
    stdio: ['ignore', log.fd, log.fd],
    // Its own process group, so that Ctrl-C in the terminal only reaches our process, which stops the server in order.
    detached: true,
  })
  let ended: string | undefined
  child.once('error', (error) => (ended = error.message))
  child.once('exit', (code, signal) => (ended = signal ?? `exit code ${code}`))
  child.unref()
  await log.close()

  const identity = child.pid === undefined ? undefined : await identifyProcess(child.pid)
  const deadline = performance.now() + READY_TIMEOUT_MS
  while (ended === undefined) {
    const answer = await proveIdentity(options.data, port, options.password)
    if (answer.outcome === 'ours' && identity !== undefined) {
      return { outcome: 'ready', server: { process: { ...identity, child }, port } }
    }
    if (performance.now() > deadline && identity !== undefined) {
      await terminate({ ...identity, child })
      ended = `no answer on port ${port} for ${READY_TIMEOUT_MS / 1000} s`
    }
    await delay(READY_POLL_MS)
  }
  return { outcome: 'exited', status: ended, log: await readFrom(options.files.log, logStart) }
}

function serverArguments(port: number, options: LaunchOptions): string[] {
  const settings = {
    ...options.settings,
    listen_addresses: '127.0.0.1',
    port: String(port),
    unix_socket_directories: '',
  }
  return [
    '-D',
    options.data,
    ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
  ]
}

/** A large log is renamed, and only one old log exists: this bounds the logs of all runs but the current one. */
async function rotateLog(path: string): Promise<void> {
  try {
    const { size } = await stat(path)
    if (size > LOG_LIMIT_BYTES) await rename(path, `${path}.old`)
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error
  }
}

async function readFrom(path: string, start: number): Promise<string> {
  return (await readFile(path)).subarray(start).toString('utf8')
}

/**
 * Returns a port that is free now: that of the last run if possible, so that saved URLs and processes that share the
 * server remain valid; otherwise one that the kernel chooses. The caller retries if the port is bound in the meantime.
 */
export async function choosePort(portFile: string): Promise<number> {
  const lastPort = Number(await readFile(portFile, 'utf8').catch(() => ''))
  const isPort = Number.isInteger(lastPort) && lastPort > 1023 && lastPort < 65_536
  return ((isPort ? await portIfFree(lastPort) : undefined) ?? (await portIfFree(0))) || noFreePort()
}

async function rememberPort(port: number, portFile: string): Promise<void> {
  await writeFile(portFile, `${port}\n`)
}

/** Returns `undefined` if another process has bound the port. */
async function portIfFree(port: number): Promise<number | undefined> {
  const server = createServer()
  server.listen(port, '127.0.0.1')
  try {
    await once(server, 'listening')
  } catch {
    return undefined
  }
  const address = server.address()
  server.close()
  await once(server, 'close')
  return address === null || typeof address === 'string' ? undefined : address.port
}

function noFreePort(): never {
  throw new Error('no port on 127.0.0.1 is free')
}
