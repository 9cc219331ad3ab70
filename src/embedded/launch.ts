import { open, readFile, rename, stat } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'

import { LeaseholdError } from '../errors.ts'
import type { Account } from './account.ts'
import type { Binaries } from './binaries.ts'
import { proveIdentity } from './identity.ts'
import type { Place } from './place.ts'
import { choosePort, rememberPort } from './port.ts'
import { identifyProcess } from './process-identity.ts'
import { spawnProgram } from './programs.ts'
import { hasCode } from './system-errors.ts'
import { terminate, type ServerProcess } from './terminate.ts'

const ATTEMPTS = 10
const ATTEMPT_PAUSE_MS = 500
/** Crash recovery is part of a start. */
const READY_TIMEOUT_MS = 300_000
const READY_POLL_MS = 25
const LOG_LIMIT_BYTES = 10 * 1024 * 1024
const LOG_TAIL_LINES = 20

/** The port was taken between choosing and binding, or children of a killed postmaster are still winding down. */
const WORTH_ANOTHER_TRY =
  /Address already in use|could not create any TCP\/IP sockets|pre-existing shared memory block/

export interface Launch {
  readonly place: Place
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

/** Starts the server on a free port and returns once it answers as the server of this data directory. */
export async function launch(options: Launch): Promise<LaunchedServer> {
  await rotateLog(options.place.log)
  for (let attempt = 1; ; attempt += 1) {
    const result = await launchOn(await choosePort(options.place.port), options)
    if (result.outcome === 'ready') {
      await rememberPort(result.server.port, options.place.port)
      return result.server
    }
    if (attempt === ATTEMPTS || !WORTH_ANOTHER_TRY.test(result.log)) {
      const tail = result.log.trimEnd().split('\n').slice(-LOG_TAIL_LINES).join('\n')
      throw new LeaseholdError(
        'EMBEDDED_FAILED',
        `PostgreSQL ended while starting in ${options.data} (${result.status}); its log ends with:\n${tail}\n`,
        { remedy: `The whole log is ${options.place.log}.` },
      )
    }
    await delay(ATTEMPT_PAUSE_MS)
  }
}

async function launchOn(port: number, options: Launch): Promise<Attempt> {
  // A file, not a pipe: a pipe whose reader was killed would block or kill the server.
  const log = await open(options.place.log, 'a', 0o600)
  const logStart = (await log.stat()).size
  const child = spawnProgram(options.binaries.postgres, serverArguments(port, options), options.account, {
    stdio: ['ignore', log.fd, log.fd],
    // A process group of its own: the terminal's Ctrl-C reaches the parent, which decides the order.
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
  return { outcome: 'exited', status: ended, log: await readFrom(options.place.log, logStart) }
}

function serverArguments(port: number, options: Launch): string[] {
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

/** The log is bounded by what one run writes: a big one is set aside, and only one is kept. */
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
