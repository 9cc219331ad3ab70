/** The server that runs on a data directory: how it is found, how it proves that it is ours, and who owns it. */
import { open, readFile, realpath } from 'node:fs/promises'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

import type { Client } from 'pg'

import { hasCode, LeaseholdError, messageOf } from '../errors.ts'
import { DatabaseClient } from '../postgres/client.ts'
import { SUPERUSER } from './directory.ts'
import { examineProcess, identifyProcess, isRunning, isZombie, type ProcessIdentity } from './processes.ts'

/** Where the server listens: the directory of its Unix socket, and the port, which is a part of the socket's name. */
export interface ServerAddress {
  readonly directory: string
  readonly port: number
}

/** The contents of postmaster.pid. */
export interface PidFile {
  readonly pid: number
  readonly dataDirectory: string
  /** Seconds since the epoch. */
  readonly startedAt: number
  /** Absent while the server has only just started. */
  readonly address: ServerAddress | undefined
  /** The whole text, to detect whether the file was replaced. */
  readonly text: string
}

export function pidFilePath(data: string): string {
  return join(data, 'postmaster.pid')
}

export async function readPidFile(data: string): Promise<PidFile | undefined> {
  let text: string
  try {
    text = await readFile(pidFilePath(data), 'utf8')
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
  const [pid = '', dataDirectory = '', startedAt = '', port = '', directory = ''] = text.split('\n')
  return {
    pid: Number.parseInt(pid, 10),
    dataDirectory,
    startedAt: Number.parseInt(startedAt, 10),
    address: /^\d+$/.test(port) && directory !== '' ? { directory, port: Number(port) } : undefined,
    text,
  }
}

const CONNECT_TIMEOUT_MS = 5_000

/** In the form that `pg`, libpq and most other drivers understand: the parameter takes precedence over the host name. */
export function urlOf({ directory, port }: ServerAddress, password: string, database: string): string {
  const host = encodeURIComponent(directory).replaceAll('%2F', '/')
  return `postgresql://${SUPERUSER}:${encodeURIComponent(password)}@localhost:${port}/${database}?host=${host}`
}

/** Runs `use` with a session on the maintenance database, and closes the session. */
export async function withSession<Value>(
  address: ServerAddress,
  password: string,
  use: (client: Client) => Promise<Value>,
): Promise<Value> {
  const client = await openSession(address, password, 'leasehold embedded')
  try {
    return await use(client)
  } finally {
    await client.end()
  }
}

/** Opens a session on the `postgres` database, because the application's own may not exist yet and may be dropped. */
export async function openSession(
  address: ServerAddress,
  password: string,
  name: string,
  socket = new Socket(),
): Promise<Client> {
  const client = new DatabaseClient({
    connectionString: urlOf(address, password, 'postgres'),
    application_name: name,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    stream: () => socket,
  })
  // The user of the session notices when the server ends it. Without a listener the error would end the process.
  client.on('error', () => {})
  try {
    await client.connect()
    return client
  } catch (error) {
    await client.end().catch(() => {})
    throw error
  }
}

/** The server's start time is taken a little later than the one in the pid file. */
const START_TIME_TOLERANCE_S = { before: 2, after: 60 }

export type Identity =
  | { readonly outcome: 'ours' }
  /** Nothing answers, or the answer is that the server is starting, in recovery or shutting down. */
  | { readonly outcome: 'silent'; readonly reason: string }
  /** Something answers, but it is not the server of this data directory. */
  | { readonly outcome: 'other'; readonly reason: string }

/**
 * Checks that the server at this address is the server of this data directory: it accepts our password and reports the system
 * identifier, the path and the start time that are in the directory.
 */
export async function proveIdentity(
  data: string,
  address: ServerAddress,
  password: string,
): Promise<Identity> {
  let answer: ServerAnswer
  try {
    answer = await askServer(address, password)
  } catch (error) {
    const reason = messageOf(error)
    // EMBEDDED_FAILED: it does not know our password. 28P01, 28000: a PostgreSQL server that does not accept it.
    return {
      outcome: hasCode(error, 'EMBEDDED_FAILED', '28P01', '28000', '3D000') ? 'other' : 'silent',
      reason,
    }
  }
  const expected = await systemIdentifier(data)
  if (answer.systemIdentifier !== expected) {
    return other(`it is database system ${answer.systemIdentifier}, the data directory is ${expected}`)
  }
  if ((await realpath(answer.dataDirectory).catch(() => answer.dataDirectory)) !== (await realpath(data))) {
    return other(`it serves ${answer.dataDirectory}`)
  }
  const pidFile = await readPidFile(data)
  if (pidFile === undefined) return { outcome: 'silent', reason: 'there is no postmaster.pid' }
  const late = answer.startedAt - pidFile.startedAt
  if (late < -START_TIME_TOLERANCE_S.before || late > START_TIME_TOLERANCE_S.after) {
    return other(`it started ${late} s after the process that postmaster.pid names`)
  }
  return { outcome: 'ours' }
}

function other(reason: string): Identity {
  return { outcome: 'other', reason }
}

interface ServerAnswer {
  readonly systemIdentifier: string
  readonly dataDirectory: string
  readonly startedAt: number
}

async function askServer(address: ServerAddress, password: string): Promise<ServerAnswer> {
  return withSession(address, password, async (client) => {
    const { rows } = await client.query<ServerAnswer>(`
      select system_identifier::text as "systemIdentifier",
             current_setting('data_directory') as "dataDirectory",
             extract(epoch from pg_postmaster_start_time())::float8 as "startedAt"
      from pg_control_system()`)
    const row = rows[0]
    if (row === undefined) throw new Error('pg_control_system() returned no row')
    return row
  })
}

/** The first eight bytes of pg_control. All platforms of the package are little-endian. */
async function systemIdentifier(data: string): Promise<string> {
  const file = await open(join(data, 'global', 'pg_control'), 'r')
  try {
    const { buffer } = await file.read(Buffer.alloc(8), 0, 8, 0)
    return buffer.readBigInt64LE().toString()
  } finally {
    await file.close()
  }
}

/** Long, because a crash recovery may take minutes. */
const SILENT_SERVER_TIMEOUT_MS = 300_000
const SILENT_SERVER_POLL_MS = 50
const NO_ADDRESS_YET: Identity = { outcome: 'silent', reason: 'it does not listen yet' }

/** What is known for certain about the server of a data directory. */
export type Found =
  | { readonly state: 'absent' }
  | { readonly state: 'running'; readonly address: ServerAddress; readonly process: ProcessIdentity }
  /** The pid file is stale: its process has ended, or is not a postmaster of this directory. */
  | { readonly state: 'stale'; readonly pidFile: PidFile; readonly reason: string }
  /** The process is alive but does not answer: it is starting, in crash recovery, or shutting down. */
  | { readonly state: 'silent'; readonly reason: string }
  | { readonly state: 'unproved'; readonly reason: string }

export async function examine(data: string, password: string): Promise<Found> {
  const pidFile = await readPidFile(data)
  if (pidFile === undefined) return { state: 'absent' }
  // A standalone backend (`postgres --single`) writes its process id as a negative number.
  const pid = Math.abs(pidFile.pid)
  if (Number.isNaN(pid)) return { state: 'silent', reason: `${pidFilePath(data)} is empty` }
  const process = await identifyProcess(pid)
  if (process === undefined) {
    // A zombie receives signals, so PostgreSQL itself would consider it a live postmaster.
    const reason = `process ${pid} has ended`
    return (await isZombie(pid)) ? { state: 'stale', pidFile, reason } : { state: 'absent' }
  }

  const { address } = pidFile
  const identity = address === undefined ? NO_ADDRESS_YET : await proveIdentity(data, address, password)
  if (address !== undefined && identity.outcome === 'ours') return { state: 'running', address, process }
  const evidence = await examineProcess(pid, data)
  if (evidence.verdict === 'unrelated') {
    return { state: 'stale', pidFile, reason: `it names ${evidence.description}` }
  }
  const reason = `${pidFilePath(data)} names ${evidence.description}, and ${
    identity.outcome === 'ours' ? 'it answers' : identity.reason
  }`
  return { state: identity.outcome === 'silent' ? 'silent' : 'unproved', reason }
}

export type Settled = Exclude<Found, { state: 'silent' | 'unproved' }>

/** Waits for a limited time until a silent server answers or ends. Throws if its state cannot be established. */
export async function examineUntilSettled(
  data: string,
  password: string,
  onWait: (reason: string, waitMs: number) => void,
  waitMs = SILENT_SERVER_TIMEOUT_MS,
): Promise<Settled> {
  const deadline = performance.now() + waitMs
  let isReported = false
  for (;;) {
    const found = await examine(data, password)
    if (found.state !== 'silent' && found.state !== 'unproved') return found
    if (found.state === 'unproved') throw unproved(data, found.reason)
    if (!isReported) onWait(found.reason, waitMs)
    isReported = true
    if (performance.now() > deadline) throw unproved(data, found.reason)
    await delay(SILENT_SERVER_POLL_MS)
  }
}

function unproved(data: string, reason: string): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `It could not be established whether a server is running on ${data}: ${reason}.`,
    {
      remedy:
        'Nothing was changed, because a second server on the same data would destroy it. ' +
        `If that process is PostgreSQL, stop it; if you are sure that it is not, remove ${pidFilePath(data)}.`,
    },
  )
}

/** 'leaseown' in ASCII. Only the embedded server's life cycle uses an advisory lock, never a lease (SYNC-12). */
export const OWNER_LOCK = '7810756276994930542'
const OWNER_NAME = /^leasehold-owner:(\d+):(\S+)$/

/** The backend of a killed owner releases the lock as soon as it reads the closed socket. */
const DEAD_OWNER_TIMEOUT_MS = 10_000
const OWNER_POLL_MS = 25

/** A database session that holds the owner lock. The process that has it owns the server and stops it. */
export interface OwnerSession {
  readonly isOpen: () => boolean
  close(): Promise<void>
}

export type Ownership =
  | { readonly outcome: 'taken'; readonly session: OwnerSession }
  | { readonly outcome: 'held' }

/** Takes the ownership of a running server, unless a live process owns it. */
export async function takeOwnership(address: ServerAddress, password: string): Promise<Ownership> {
  const self = await identifyProcess(process.pid)
  const socket = new Socket()
  const client = await openSession(
    address,
    password,
    `leasehold-owner:${process.pid}:${self?.startedAt}`,
    socket,
  )
  let open = true
  client.once('end', () => (open = false))
  try {
    await client.query('set idle_session_timeout = 0')
    if (!(await tryLock(client))) {
      await client.end()
      return { outcome: 'held' }
    }
  } catch (error) {
    await client.end()
    throw error
  }
  // This connection must not keep alive a process that has nothing else to do.
  socket.unref()
  return { outcome: 'taken', session: { isOpen: () => open, close: () => client.end() } }
}

async function tryLock(client: Client): Promise<boolean> {
  const deadline = performance.now() + DEAD_OWNER_TIMEOUT_MS
  for (;;) {
    const { rows } = await client.query<{ taken: boolean }>('select pg_try_advisory_lock($1) as taken', [
      OWNER_LOCK,
    ])
    if (rows[0]?.taken === true) return true
    if ((await ownerIsAlive(client)) || performance.now() > deadline) return false
    await delay(OWNER_POLL_MS)
  }
}

async function ownerIsAlive(client: Client): Promise<boolean> {
  const { rows } = await client.query<{ name: string }>(
    `select a.application_name as name
     from pg_locks l join pg_stat_activity a using (pid)
     where l.locktype = 'advisory' and l.granted and l.objsubid = 1
       and (l.classid::bigint << 32 | l.objid::bigint) = $1`,
    [OWNER_LOCK],
  )
  const [, pid, startedAt] = OWNER_NAME.exec(rows[0]?.name ?? '') ?? []
  return pid !== undefined && startedAt !== undefined && (await isRunning({ pid: Number(pid), startedAt }))
}
