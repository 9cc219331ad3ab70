import { open, readFile, rename, stat } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'

import { hasCode, LeaseholdError } from '../errors.ts'
import type { Account } from './account.ts'
import { spawnProgram, type Binaries } from './binaries.ts'
import { socketDirectory, type ServerFiles } from './directory.ts'
import { identifyProcess, terminate, type ServerProcess } from './processes.ts'
import { proveIdentity, type ServerAddress } from './running-server.ts'

const ATTEMPTS = 10
const ATTEMPT_PAUSE_MS = 500
/** Long, because a start may include a crash recovery. */
const READY_TIMEOUT_MS = 300_000
const READY_POLL_MS = 25
const LOG_LIMIT_BYTES = 10 * 1024 * 1024
const LOG_TAIL_LINES = 20

/** Children of a killed postmaster are still running. */
const RETRYABLE_LOG = /pre-existing shared memory block/

/** It only names the socket file: no other server uses the directory. */
const DEFAULT_PORT = 5432

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
  readonly address: ServerAddress
}

type Attempt =
  | { readonly outcome: 'ready'; readonly server: LaunchedServer }
  | { readonly outcome: 'exited'; readonly log: string; readonly status: string }

/** Starts the server. Returns once it answers and is proved to be the server of this data directory. */
export async function launch(options: LaunchOptions): Promise<LaunchedServer> {
  await rotateLog(options.files.log)
  const address = {
    directory: await socketDirectory(options.data, options.account),
    port: Number(options.settings['port'] ?? DEFAULT_PORT),
  }
  for (let attempt = 1; ; attempt += 1) {
    const result = await launchAt(address, options)
    if (result.outcome === 'ready') return result.server
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

async function launchAt(address: ServerAddress, options: LaunchOptions): Promise<Attempt> {
  // A file, because a pipe whose reader was killed would block or kill the server.
  const log = await open(options.files.log, 'a', 0o600)
  const logStart = (await log.stat()).size
  const child = spawnProgram(options.binaries.postgres, serverArguments(address, options), options.account, {
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
    const answer = await proveIdentity(options.data, address, options.password)
    if (answer.outcome === 'ours' && identity !== undefined) {
      return { outcome: 'ready', server: { process: { ...identity, child }, address } }
    }
    if (performance.now() > deadline && identity !== undefined) {
      await terminate({ ...identity, child })
      ended = `no answer for ${READY_TIMEOUT_MS / 1000} s`
    }
    await delay(READY_POLL_MS)
  }
  return { outcome: 'exited', status: ended, log: await readFrom(options.files.log, logStart) }
}

/** The server listens on TCP only if the caller's settings say so. */
function serverArguments(address: ServerAddress, options: LaunchOptions): string[] {
  const settings = {
    listen_addresses: '',
    ...options.settings,
    port: String(address.port),
    unix_socket_directories: `"${address.directory.replaceAll('"', '""')}"`,
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
