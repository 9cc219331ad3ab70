/**
 * The embedded server that all test processes of a project share. The process that needs it first starts it, in a
 * process of its own (`server-process.ts`), and the others find it by its directory. Each test process holds a
 * connection to that process for as long as it needs the server. A connection ends with its process, however that ends,
 * so the server always learns when the last one has gone: then it stops, and its directory is deleted.
 */
import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { realpath, rename, rm, rmdir } from 'node:fs/promises'
import { createConnection } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'

import { dataDirectory, filesOf, makeDirectory } from '../embedded/directory.ts'
import { acquireStartLock } from '../embedded/start-lock.ts'
import { ERROR_CODES, hasCode, LeaseholdError } from '../errors.ts'
import { packageVersion } from '../package-files.ts'

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

/** The compiled entry, also when this file runs as TypeScript. */
const ENTRY = fileURLToPath(
  new URL(
    import.meta.url.endsWith('.ts') ? '../../dist/testing/server-process.js' : './server-process.js',
    import.meta.url,
  ),
)

/** A server may stop at the moment when it is found. */
const MAX_ATTEMPTS = 10
const OWN_SERVER = 'To use a server of your own in tests, set TEST_DATABASE_URL.'

/** Holds the server of this project, which is started if it does not run. */
export async function holdTestServer(): Promise<ServerHold> {
  const directory = await serverDirectory()
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
    const hold = await connect(directory)
    if (hold !== undefined) return hold
    await makeDirectory(filesOf(directory))
    const release = await lockDirectory(directory)
    // The server has just stopped, and its directory is gone.
    if (release === undefined) continue
    const started = await startUnlessRunning(directory)
    if (started.outcome === 'failed') {
      // It deletes the lock as well. From then on the lock at this path may be that of another process.
      await discardDirectory(directory)
      throw started.error
    }
    await release()
    if (started.hold !== undefined) return started.hold
  }
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `The embedded server for tests in ${directory} ended as soon as it had started, ${MAX_ATTEMPTS} times.`,
    { remedy: OWN_SERVER },
  )
}

/** One for each user, project and installed version, so that neither schemas nor programs of several are mixed. */
async function serverDirectory(): Promise<string> {
  const identity = [process.getuid?.() ?? 0, await realpath(process.cwd()), ENTRY, packageVersion()]
  const name = `leasehold-test-${createHash('sha256').update(identity.join('\n')).digest('hex').slice(0, 12)}`
  const parent = await realpath(tmpdir())
  // A Unix socket has a path of at most 103 bytes.
  return join(Buffer.byteLength(socketPath(join(parent, name))) <= 103 ? parent : '/tmp', name)
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
  | { readonly outcome: 'started'; readonly hold: ServerHold | undefined }
  | { readonly outcome: 'failed'; readonly error: unknown }

async function startUnlessRunning(directory: string): Promise<Started> {
  try {
    const running = await connect(directory)
    if (running !== undefined) return { outcome: 'started', hold: running }
    // That of a process that was killed.
    await rm(socketPath(directory), { force: true })
    await startProcess(directory)
    return { outcome: 'started', hold: await connect(directory) }
  } catch (error) {
    return { outcome: 'failed', error }
  }
}

/** Undefined: no server runs there, or it is about to stop. */
async function connect(directory: string): Promise<ServerHold | undefined> {
  const socket = createConnection(socketPath(directory)).setEncoding('utf8')
  return new Promise((resolve) => {
    let received = ''
    socket.on('data', (chunk: string) => {
      received += chunk
      if (!received.endsWith('\n')) return
      // A process that has nothing else to do must not wait for this connection.
      socket.unref()
      resolve({ url: received.trim(), release: () => socket.destroy() })
    })
    socket.on('error', () => {})
    socket.on('close', () => resolve(undefined))
  })
}

/** Variables by which the test runner, a debugger or a coverage tool would affect the process of the server. */
const NOT_INHERITED = new Set(['NODE_OPTIONS', 'NODE_V8_COVERAGE', 'NODE_TEST_CONTEXT', 'NODE_CHANNEL_FD'])

/** Returns when the server accepts connections. The process prints why it could not start, or nothing. */
async function startProcess(directory: string): Promise<void> {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !NOT_INHERITED.has(name)))
  const child = spawn(process.execPath, [ENTRY, directory], {
    // Ctrl-C in the terminal does not reach it: it ends when the test processes have.
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
    env,
  })
  child.unref()
  const output = await text(child.stdout)
  if (output !== '') throw failure(output)
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
