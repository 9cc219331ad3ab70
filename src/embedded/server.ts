import { unlink } from 'node:fs/promises'
import { dirname } from 'node:path'

import { hasCode, LeaseholdError, messageOf } from '../errors.ts'
import { serverAccount, type Account } from './account.ts'
import { locatePackage, prepareBinaries, type Binaries, type LocatePackage } from './binaries.ts'
import {
  createPassword,
  dataDirectory,
  filesOf,
  hasData,
  initialise,
  linkDataDirectory,
  makeDirectory,
  readPassword,
  type ServerFiles,
} from './directory.ts'
import { launch } from './launch.ts'
import { terminate, type ServerProcess } from './processes.ts'
import {
  examine,
  examineUntilSettled,
  pidFilePath,
  readPidFile,
  takeOwnership,
  urlOf,
  withSession,
  type Ownership,
  type OwnerSession,
  type ServerAddress,
  type Settled,
} from './running-server.ts'
import { acquireStartLock } from './start-lock.ts'

const DEFAULT_DIRECTORY = '.leasehold'
const DATABASE = 'leasehold'

/** After the crash of a backend the server ends all others and recovers before it answers. */
const RECOVERY_TIMEOUT_MS = 60_000

export interface EmbeddedOptions {
  /** The directory of data, password and log. Default: `.leasehold` in the working directory. */
  readonly directory?: string
  /**
   * PostgreSQL settings, such as `{ fsync: 'off' }`. They do not change a server that is already running. The server
   * has only a Unix socket, unless these settings open a TCP port: `{ listen_addresses: 'localhost', port: '54320' }`.
   */
  readonly settings?: Readonly<Record<string, string>>
  /** Is called with each step, as one line of text. The server's own log is `postgres.log` in the directory. */
  readonly onLog?: (line: string) => void
}

export interface EmbeddedServer {
  /**
   * The URL of a superuser: `postgresql://postgres:<password>@localhost:5432/leasehold?host=<directory>`. It leads to
   * a Unix socket that only this account can reach.
   */
  readonly url: string
  readonly directory: string
  readonly processId: number
  /**
   * `initialised`: the data directory is new. `started`: it existed. `adopted`: the server was still running after its
   * owner had died. `shared`: another live process owns the server.
   */
  readonly origin: 'initialised' | 'started' | 'adopted' | 'shared'
  /** Stops the server and returns when its process has ended. Leaves a shared server running. May be called twice. */
  stop(): Promise<void>
}

interface Start {
  readonly files: ServerFiles
  readonly account: Account | undefined
  readonly binaries: Binaries
  readonly settings: Readonly<Record<string, string>>
  readonly log: (line: string) => void
}

export async function start(
  options: EmbeddedOptions,
  locate: LocatePackage = locatePackage,
): Promise<EmbeddedServer> {
  if (process.platform === 'win32') throw notOnWindows()
  const settings = checkSettings(options.settings ?? {})
  const files = filesOf(options.directory ?? DEFAULT_DIRECTORY)
  try {
    const account = await serverAccount(await dataDirectory(files))
    const binaries = await prepareBinaries(account, locate)
    await makeDirectory(files)
    const log = options.onLog ?? (() => {})
    const release = await acquireStartLock(files.lock, log)
    try {
      return await startLocked({ files, account, binaries, settings, log })
    } finally {
      await release()
    }
  } catch (error) {
    throw explain(error, files)
  }
}

async function startLocked(start: Start): Promise<EmbeddedServer> {
  const { files, account, binaries, settings, log } = start
  await linkDataDirectory(files, account, log)
  const data = await dataDirectory(files)

  if (!(await hasData(data, binaries))) {
    const password = (await readPassword(files)) ?? (await createPassword(files))
    log(`initialising PostgreSQL ${binaries.major} in ${data}, which is done once and takes some seconds`)
    await initialise(data, password, binaries, account, settings['fsync'] !== 'off')
    return launchOwned(start, data, password, 'initialised')
  }

  const password = await readPassword(files)
  if (password === undefined) throw passwordLost(files)
  const found = await examineUntilSettled(data, password, (reason, waitMs) =>
    log(`waiting up to ${waitMs / 1000} s for the server: ${reason}`),
  )
  if (found.state === 'running') return joinServer(start, data, password, found)
  if (found.state === 'stale') await removeStalePidFile(data, found, log)
  return launchOwned(start, data, password, 'started')
}

/** Adopts or shares a running server. Whether it has an owner is decided by its owner lock alone. */
async function joinServer(
  { files, log }: Start,
  data: string,
  password: string,
  found: Extract<Settled, { state: 'running' }>,
): Promise<EmbeddedServer> {
  const { address } = found
  const running = { files, data, password, address, process: found.process }
  const ownership = await takeOwnership(address, password)
  if (ownership.outcome === 'held') {
    log(`sharing the server that another process runs (process ${found.process.pid})`)
    return sharedServer(running)
  }
  log(`adopting the server without an owner (process ${found.process.pid})`)
  await closeOnError(ownership.session, () => ensureDatabase(address, password))
  return ownedServer(running, 'adopted', ownership.session)
}

async function launchOwned(
  start: Start,
  data: string,
  password: string,
  origin: 'initialised' | 'started',
): Promise<EmbeddedServer> {
  const { process, address } = await launch({ ...start, data, password })
  start.log(`PostgreSQL ${start.binaries.major} runs (process ${process.pid})`)
  try {
    const ownership = await takeOwnership(address, password)
    if (ownership.outcome === 'held')
      throw new LeaseholdError('EMBEDDED_FAILED', `Another process took over ${data}.`)
    await closeOnError(ownership.session, () => ensureDatabase(address, password))
    return ownedServer({ files: start.files, data, password, address, process }, origin, ownership.session)
  } catch (error) {
    await terminate(process)
    throw error
  }
}

async function closeOnError(session: OwnerSession, work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    await session.close()
    throw error
  }
}

/** Checked at every start, because the first one may have been killed between initdb and this step. */
async function ensureDatabase(address: ServerAddress, password: string): Promise<void> {
  await withSession(address, password, async (client) => {
    const { rowCount } = await client.query('select from pg_database where datname = $1', [DATABASE])
    if (rowCount === 0) await client.query(`create database ${DATABASE}`)
  })
}

async function removeStalePidFile(
  data: string,
  { pidFile, reason }: Extract<Settled, { state: 'stale' }>,
  log: (line: string) => void,
): Promise<void> {
  if ((await readPidFile(data))?.text !== pidFile.text) return
  log(`removing a stale postmaster.pid: ${reason}`)
  await unlink(pidFilePath(data))
}

/** Returns the running server of this directory, if it answers and is proved to be ours. Never starts one. */
export async function findEmbedded(
  directory: string = DEFAULT_DIRECTORY,
): Promise<{ readonly url: string } | undefined> {
  const files = filesOf(directory)
  const password = await readPassword(files)
  if (password === undefined) return undefined
  const found = await examine(await dataDirectory(files), password)
  if (found.state !== 'running') return undefined
  return { url: urlOf(found.address, password, DATABASE) }
}

/**
 * Returns the directory of the embedded server to which this URL belongs, whether it runs or not: `directory`, or the
 * one in which the socket of the URL is.
 */
export async function embeddedDirectoryOf(url: string, directory: string): Promise<string | undefined> {
  if (!URL.canParse(url)) return undefined
  const { password, pathname, searchParams } = new URL(url)
  const socket = searchParams.get('host')
  if (socket === null || pathname !== `/${DATABASE}`) return undefined
  for (const candidate of [directory, dirname(socket)]) {
    // Another account's files cannot be read, and its URL is not ours.
    const own = await readPassword(filesOf(candidate)).catch(() => undefined)
    if (own !== undefined && own === decodeURIComponent(password)) return candidate
  }
  return undefined
}

interface Running {
  readonly files: ServerFiles
  readonly data: string
  readonly password: string
  readonly address: ServerAddress
  readonly process: ServerProcess
}

function sharedServer(running: Running): EmbeddedServer {
  return { ...connectionOf(running), origin: 'shared', stop: async () => {} }
}

function ownedServer(
  running: Running,
  origin: 'initialised' | 'started' | 'adopted',
  session: OwnerSession,
): EmbeddedServer {
  let stopped: Promise<void> | undefined
  return {
    ...connectionOf(running),
    origin,
    async stop() {
      stopped ??= stopOwned(running, session)
      await stopped
    },
  }
}

function connectionOf({ files, address, password, process }: Running) {
  return { url: urlOf(address, password, DATABASE), directory: files.directory, processId: process.pid }
}

/**
 * The owner session stays open until the server ends it. If it were closed before, another process could adopt a server
 * that is about to stop. If the session was lost earlier (a backend crashed, or the server died), ownership is taken
 * once more; if another process has become the owner, the server is left to it.
 */
async function stopOwned(running: Running, session: OwnerSession): Promise<void> {
  const server = running.process
  if (session.isOpen()) {
    await terminate(server)
    await session.close()
    return
  }
  const ownership = await retakeOwnership(running)
  if (ownership === undefined || ownership.outcome === 'held') return
  await terminate(server)
  await ownership.session.close()
}

async function retakeOwnership(running: Running): Promise<Ownership | undefined> {
  const found = await examineUntilSettled(running.data, running.password, () => {}, RECOVERY_TIMEOUT_MS)
  const isSameServer = found.state === 'running' && found.process.startedAt === running.process.startedAt
  return isSameServer ? takeOwnership(found.address, running.password) : undefined
}

const RESERVED_SETTINGS = new Set(['unix_socket_directories', 'data_directory'])

/** Refuses settings that would change the directories of the server. */
function checkSettings(settings: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  for (const [name, value] of Object.entries(settings)) {
    if (RESERVED_SETTINGS.has(name.toLowerCase())) {
      throw new LeaseholdError(
        'SETTING_INVALID',
        `The PostgreSQL setting ${name} (${value}) is chosen by the embedded server.`,
        {
          remedy: 'Leave it out, or run a server of your own and set DATABASE_URL.',
        },
      )
    }
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) {
      throw new LeaseholdError(
        'SETTING_INVALID',
        `"${name}" (${value}) is not the name of a PostgreSQL setting.`,
      )
    }
  }
  return settings
}

/** Shutdown signals, process groups and accounts have no counterpart on Windows, and it was never tested there. */
function notOnWindows(): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    'The embedded PostgreSQL runs on Linux and macOS, not on Windows.',
    {
      remedy: 'Set DATABASE_URL to a server of your own, or use WSL.',
    },
  )
}

function passwordLost(files: ServerFiles): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `${files.data} exists but its password file ${files.password} does not.`,
    {
      remedy: 'Restore the file, or move the data directory to another path to begin with an empty database.',
    },
  )
}

/** Every other failure, from a full disk to a server that was killed during the start, gets an error code too. */
function explain(error: unknown, files: ServerFiles): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  const message = messageOf(error)
  const remedy = hasCode(error, 'EACCES', 'EPERM', 'EROFS')
    ? 'Start it as the user who created the directory, or choose another directory.'
    : `Read ${files.log}, and start again.`
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `The embedded server in ${files.directory} could not be started: ${message}.`,
    { remedy, cause: error },
  )
}
