import { unlink } from 'node:fs/promises'

import { LeaseholdError } from '../errors.ts'
import { serverAccount, type Account } from './account.ts'
import { locatePackage, prepareBinaries, type Binaries, type LocatePackage } from './binaries.ts'
import { examineUntilSettled, type Settled } from './examine.ts'
import { hasData, initialise } from './initialise.ts'
import { launch } from './launch.ts'
import { takeOwnership, type OwnerSession } from './owner.ts'
import { pidFilePath, readPidFile } from './pid-file.ts'
import {
  createPassword,
  dataDirectory,
  makeDirectory,
  placeData,
  placeOf,
  readPassword,
  type Place,
} from './place.ts'
import { DATABASE, ownedServer, sharedServer, type EmbeddedServer } from './server.ts'
import { withSession } from './session.ts'
import { checkSettings } from './settings.ts'
import { acquireStartLock } from './start-lock.ts'
import { hasCode } from './system-errors.ts'
import { terminate } from './terminate.ts'

export interface EmbeddedOptions {
  /** Where data, password and log are kept; `.leasehold` under the working directory unless given. */
  readonly directory?: string
  /** PostgreSQL settings, such as `{ fsync: 'off' }`; a server that is already running keeps its own. */
  readonly settings?: Readonly<Record<string, string>>
  /** Hears what is done, a line at a time. The server's own log is `postgres.log` in the directory. */
  readonly onLog?: (line: string) => void
}

interface Start {
  readonly place: Place
  readonly account: Account | undefined
  readonly binaries: Binaries
  readonly settings: Readonly<Record<string, string>>
  readonly log: (line: string) => void
}

export const DEFAULT_DIRECTORY = '.leasehold'

export async function start(
  options: EmbeddedOptions,
  locate: LocatePackage = locatePackage,
): Promise<EmbeddedServer> {
  if (process.platform === 'win32') throw notOnWindows()
  const settings = checkSettings(options.settings ?? {})
  const place = placeOf(options.directory ?? DEFAULT_DIRECTORY)
  try {
    const account = await serverAccount(await dataDirectory(place))
    const binaries = await prepareBinaries(account, locate)
    await makeDirectory(place)
    const release = await acquireStartLock(place.lock)
    try {
      return await startLocked({ place, account, binaries, settings, log: options.onLog ?? (() => {}) })
    } finally {
      await release()
    }
  } catch (error) {
    throw explain(error, place)
  }
}

async function startLocked(start: Start): Promise<EmbeddedServer> {
  const { place, account, binaries, settings, log } = start
  await placeData(place, account, log)
  const data = await dataDirectory(place)

  if (!(await hasData(data, binaries))) {
    const password = (await readPassword(place)) ?? (await createPassword(place))
    log(`initialising PostgreSQL ${binaries.major} in ${data}`)
    await initialise(data, password, binaries, account, settings['fsync'] !== 'off')
    return launchOwned(start, data, password, 'initialised')
  }

  const password = await readPassword(place)
  if (password === undefined) throw passwordLost(place)
  const found = await examineUntilSettled(data, password, (reason) =>
    log(`waiting for the server: ${reason}`),
  )
  if (found.state === 'running') return join(start, data, password, found)
  if (found.state === 'stale') await removeStalePidFile(data, found, log)
  return launchOwned(start, data, password, 'started')
}

/** Whether a running server is an orphan or somebody's is decided by its owner lock alone. */
async function join(
  { place, log }: Start,
  data: string,
  password: string,
  found: Extract<Settled, { state: 'running' }>,
): Promise<EmbeddedServer> {
  const running = { place, data, password, port: found.port }
  const ownership = await takeOwnership(found.port, password)
  if (ownership.outcome === 'held') {
    log(`sharing the server that another process runs on port ${found.port}`)
    return sharedServer(running)
  }
  log(`adopting the server that was left running on port ${found.port} (process ${found.process.pid})`)
  await orClose(ownership.session, () => ensureDatabase(found.port, password))
  return ownedServer(running, 'adopted', found.process, ownership.session)
}

async function launchOwned(
  start: Start,
  data: string,
  password: string,
  origin: 'initialised' | 'started',
): Promise<EmbeddedServer> {
  const { process, port } = await launch({ ...start, data, password })
  start.log(`PostgreSQL ${start.binaries.major} runs on port ${port} (process ${process.pid})`)
  try {
    const ownership = await takeOwnership(port, password)
    if (ownership.outcome === 'held')
      throw new LeaseholdError('EMBEDDED_FAILED', `Another process took over ${data}.`)
    await orClose(ownership.session, () => ensureDatabase(port, password))
    return ownedServer({ place: start.place, data, password, port }, origin, process, ownership.session)
  } catch (error) {
    await terminate(process)
    throw error
  }
}

async function orClose(session: OwnerSession, work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    await session.close()
    throw error
  }
}

/** Asked at every start: the first one may have been killed between initdb and this. */
async function ensureDatabase(port: number, password: string): Promise<void> {
  await withSession(port, password, async (client) => {
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

/** Shutdown by signal, the process group and the account have no equal there; nobody has tried it. */
function notOnWindows(): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    'The embedded PostgreSQL runs on Linux and macOS, not on Windows.',
    {
      remedy: 'Set DATABASE_URL to a server of your own, or use WSL.',
    },
  )
}

function passwordLost(place: Place): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `${place.data} exists but its password file ${place.password} does not.`,
    {
      remedy: 'Put the file back, or move the data away to begin with an empty database.',
    },
  )
}

/** Whatever goes wrong on the way, from a full disk to a server killed meanwhile, the error has a code. */
function explain(error: unknown, place: Place): LeaseholdError {
  if (error instanceof LeaseholdError) return error
  const message = error instanceof Error ? error.message : String(error)
  const remedy = hasCode(error, 'EACCES', 'EPERM', 'EROFS')
    ? 'Start it as the user who made the directory, or choose another directory.'
    : `Look into ${place.log}, and start again.`
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `The embedded server in ${place.directory} could not be started: ${message}.`,
    { remedy, cause: error },
  )
}
