/**
 * The embedded server that all test processes of a project share. The process that needs it first starts it, in a
 * process of its own (`server-process.ts`), and the others find it by its directory. Each test process holds a
 * connection to that process for as long as it needs the server. A connection ends with its process, however that ends,
 * so the server always learns when the last one has gone: then it stops, and its directory is deleted.
 */
import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { lstat, mkdir, open, readFile, realpath, rename, rm, rmdir } from 'node:fs/promises'
import { createConnection } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'

import { dataDirectory, filesOf, makeDirectory } from '../embedded/directory.ts'
import { acquireStartLock } from '../embedded/start-lock.ts'
import { ERROR_CODES, hasCode, LeaseholdError, messageOf } from '../errors.ts'
import { distrust } from '../file-trust.ts'
import { packageLocation, packageVersion } from '../package-files.ts'

/** Without durability, which costs time and which no test needs. */
export const FAST_SETTINGS = {
  fsync: 'off',
  synchronous_commit: 'off',
  full_page_writes: 'off',
  max_connections: '300',
}

/** A hold on the shared server: it runs at least until `release`, or until this process has ended. */
export interface ServerHold {
  /** The URL of a superuser, on TCP, because some drivers do not use Unix sockets. */
  readonly url: string
  release(): void
}

/** A server may stop at the moment when it is found. */
const MAX_ATTEMPTS = 10
/** How long the process of the server may take to answer. It does nothing but answer, so it takes a moment. */
const ANSWER_TIMEOUT_MS = 30_000
const OWN_SERVER = 'To use a server of your own in tests, set TEST_DATABASE_URL.'

/** Holds the server of this project, which is started if it does not run. */
export async function holdTestServer(answerTimeoutMs = ANSWER_TIMEOUT_MS): Promise<ServerHold> {
  const entry = serverProcessFile()
  const directory = await serverDirectory()
  let stderr = ''
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
    // Before anything in the directory is used: others can compute its path, and create it.
    if ((await makeTrustedDirectory(directory)) === 'deleted') continue
    const hold = await connect(directory, answerTimeoutMs)
    if (hold !== undefined) return hold
    const release = await lockDirectory(directory)
    // The server has just stopped, and its directory is gone.
    if (release === undefined) continue
    const started = await startUnlessRunning(entry, directory, release, answerTimeoutMs)
    if (started.hold !== undefined) return started.hold
    stderr = started.stderr
  }
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `The embedded server for tests in ${directory} ended as soon as it had started, ${MAX_ATTEMPTS} times.${stderr === '' ? '' : ` It reported:\n${stderr}\n`}`,
    { remedy: OWN_SERVER },
  )
}

/** The compiled program of the server's process, also when this file runs as TypeScript. */
function serverProcessFile(): string {
  const location = packageLocation()
  const isSource = location.endsWith('.ts')
  const file = fileURLToPath(
    new URL(isSource ? '../dist/testing/server-process.js' : './testing/server-process.js', location),
  )
  if (existsSync(file)) return file
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `The embedded server for tests cannot be started, because ${file} does not exist.`,
    {
      remedy: isSource
        ? 'Run npm run build.'
        : `If leasehold is part of a bundle, leave it out (declare it as external). ${OWN_SERVER}`,
    },
  )
}

/** One for each user, project and installed version, so that neither schemas nor programs of several are mixed. */
export async function serverDirectory(): Promise<string> {
  const identity = [
    process.getuid?.() ?? 0,
    await realpath(process.cwd()),
    serverProcessFile(),
    packageVersion(),
  ]
  const name = `leasehold-test-${createHash('sha256').update(identity.join('\n')).digest('hex').slice(0, 12)}`
  const parent = await realpath(tmpdir())
  // A Unix socket has a path of at most 103 bytes.
  return join(Buffer.byteLength(socketPath(join(parent, name))) <= 103 ? parent : '/tmp', name)
}

/**
 * Refuses a directory that another user controls, or could. A symbolic link is refused as well, because its owner could
 * let it point elsewhere after the check. `deleted`: a server that stopped has deleted it meanwhile.
 */
async function makeTrustedDirectory(directory: string): Promise<'trusted' | 'deleted'> {
  try {
    await mkdir(directory, { recursive: true, mode: 0o755 })
    const found = await lstat(directory)
    const problem = found.isSymbolicLink()
      ? 'is a symbolic link'
      : distrust(found, process.geteuid?.() ?? found.uid)?.what
    if (problem !== undefined) {
      throw new LeaseholdError(
        'EMBEDDED_FAILED',
        `The directory ${directory} is not used for the embedded PostgreSQL, because it ${problem}.`,
        { remedy: `Remove it. ${OWN_SERVER}` },
      )
    }
    await makeDirectory(filesOf(directory))
    return 'trusted'
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return 'deleted'
    throw error
  }
}

export function socketPath(directory: string): string {
  return join(directory, 'hold.sock')
}

/** Lets one process at a time start or delete the server. Undefined: the directory was deleted meanwhile. */
export async function lockDirectory(directory: string): Promise<(() => Promise<void>) | undefined> {
  try {
    return await acquireStartLock(join(directory, 'hold.lock'))
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
}

/**
 * Deletes the directory of a server that does not run. The caller holds the lock, which is deleted as well. The directory
 * is renamed first, so that another process can start a server under the old name at once.
 */
export async function discardDirectory(directory: string): Promise<void> {
  const removed = `${directory}-${randomBytes(4).toString('hex')}`
  // For root the data may be elsewhere.
  const data = await dataDirectory(filesOf(directory))
  await rename(directory, removed)
  if (dirname(data) !== directory) {
    await rm(data, { recursive: true, force: true })
    await rmdir(dirname(data)).catch(() => {})
  }
  await rm(removed, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
}

type Started =
  | { readonly hold: ServerHold }
  /** The process has ended, or is about to. */
  | { readonly hold: undefined; readonly stderr: string }

/** The caller holds the lock, which this releases. */
async function startUnlessRunning(
  entry: string,
  directory: string,
  release: () => Promise<void>,
  answerTimeoutMs: number,
): Promise<Started> {
  let isDiscarded = false
  try {
    const running = await connect(directory, answerTimeoutMs)
    if (running !== undefined) return { hold: running }
    // That of a process that was killed.
    await rm(socketPath(directory), { force: true })
    try {
      await startProcess(entry, directory)
    } catch (error) {
      // It deletes the lock as well. From then on the lock at this path may be that of another process.
      isDiscarded = true
      await discardDirectory(directory)
      throw error
    }
    const hold = await connect(directory, answerTimeoutMs)
    return hold === undefined ? { hold, stderr: await lastStderr(directory) } : { hold }
  } finally {
    if (!isDiscarded) await release()
  }
}

/** Undefined: no server runs there, or it is about to stop. */
async function connect(directory: string, answerTimeoutMs: number): Promise<ServerHold | undefined> {
  const socket = createConnection(socketPath(directory)).setEncoding('utf8')
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(noAnswer(directory, answerTimeoutMs))
      socket.destroy()
    }, answerTimeoutMs)
    let received = ''
    socket.on('data', (chunk: string) => {
      received += chunk
      if (!received.endsWith('\n')) return
      clearTimeout(timer)
      // A process that has nothing else to do must not wait for this connection.
      socket.unref()
      resolve({ url: received.trim(), release: () => socket.destroy() })
    })
    socket.on('error', () => {})
    socket.on('close', () => {
      clearTimeout(timer)
      resolve(undefined)
    })
  })
}

function noAnswer(directory: string, timeoutMs: number): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `The process of the embedded server for tests in ${directory} has not answered for ${timeoutMs / 1000} s.`,
    { remedy: `End that process (its command line contains the directory), or continue it. ${OWN_SERVER}` },
  )
}

/** Variables by which the test runner, a debugger or a coverage tool would affect the process of the server. */
const NOT_INHERITED = new Set(['NODE_OPTIONS', 'NODE_V8_COVERAGE', 'NODE_TEST_CONTEXT', 'NODE_CHANNEL_FD'])

/** Returns when the server accepts connections. The process prints why it could not start, or nothing. */
async function startProcess(entry: string, directory: string): Promise<void> {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !NOT_INHERITED.has(name)))
  // Not a pipe: this process may end before that of the server.
  const stderr = await open(stderrPath(directory), 'w', 0o600)
  try {
    const child = spawn(process.execPath, [entry, directory], {
      // Ctrl-C in the terminal does not reach it: it ends when the test processes have.
      detached: true,
      stdio: ['ignore', 'pipe', stderr.fd],
      env,
    })
    child.unref()
    await once(child, 'spawn').catch((error: unknown) => {
      throw new LeaseholdError(
        'EMBEDDED_FAILED',
        `The process of the embedded server for tests could not be started: ${messageOf(error)}.`,
        { remedy: OWN_SERVER, cause: error },
      )
    })
    // The type does not know that stdout is a pipe.
    const output = child.stdout === null ? '' : await text(child.stdout)
    if (output !== '') throw failure(output)
  } finally {
    await stderr.close()
  }
}

function stderrPath(directory: string): string {
  return join(directory, 'process.log')
}

const MAX_STDERR_CHARACTERS = 2_000

async function lastStderr(directory: string): Promise<string> {
  const written = await readFile(stderrPath(directory), 'utf8')
  return written.trim().slice(-MAX_STDERR_CHARACTERS)
}

export interface Failure {
  readonly code: string
  readonly message: string
}

function failure(output: string): LeaseholdError {
  // It was written by `server-process.ts`.
  const { code, message } = JSON.parse(output) as Failure
  const known = ERROR_CODES.find((each) => each === code) ?? 'EMBEDDED_FAILED'
  return new LeaseholdError(known, message, { remedy: OWN_SERVER })
}
