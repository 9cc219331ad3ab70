import { Client, Pool, type PoolClient } from 'pg'
import { isDatabaseUrl } from '../database-url.ts'
import { LeaseholdError, messageOf } from '../errors.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { within } from '../timeout.ts'
import { isNoFreeConnection, isUnavailable, isUnsupportedParameter, unavailable } from './failures.ts'
import { type Hosts, hostsOf } from './hosts.ts'
import { explainRefusal, type NeededRole } from './permissions.ts'
import type { Queryable, Result, ResultsOf, Statement } from './queryable.ts'
import { locate } from './pipeline.ts'
import { Session, type DatabaseEvent, type SessionContext } from './session.ts'
import { valueTypes } from './value-types.ts'

export type { DatabaseEvent } from './session.ts'

export interface DatabaseOptions {
  /**
   * `postgresql://user:password@host:5432/database`. Several hosts are separated by commas; the first one that
   * `target_session_attrs` permits is used: `read-write` (the default with several hosts), `primary` or `any`.
   */
  readonly url: string
  /** The name that `pg_stat_activity` shows. Default: that of the URL, or `leasehold`. */
  readonly applicationName?: string
  /** The most connections this process opens (RULE-020-041). Default 10. */
  readonly maxConnections?: number
  /** How long opening a connection to one host, or waiting for a free one, may take. Default 5,000. */
  readonly connectTimeoutMs?: number
  /** How long a statement may take. Default 30,000. */
  readonly queryTimeoutMs?: number
  /**
   * After this time a connection is replaced by a new one. A pool that only reads needs it where servers are replaced: a
   * server that has become read-only is left when a write fails. Default: as long as the connection works.
   */
  readonly maxConnectionAgeMs?: number
  /** Set to `false` for a pooler without prepared statements: no statement names are sent. Default true. */
  readonly prepare?: boolean
  /** Which of Leasehold's roles its statements need, for the error where one is denied. Default: depends on the statement. */
  readonly neededRole?: NeededRole
  /** Is called with every event. Must not throw. */
  readonly onEvent?: (event: DatabaseEvent) => void
}

const OPTIONS = namesOf<DatabaseOptions>({
  url: true,
  applicationName: true,
  maxConnections: true,
  connectTimeoutMs: true,
  queryTimeoutMs: true,
  maxConnectionAgeMs: true,
  prepare: true,
  neededRole: true,
  onEvent: true,
})

export interface TransactionOptions {
  /** Replaces the database's `queryTimeoutMs` for every statement of this transaction. */
  readonly queryTimeoutMs?: number
  /** Every statement sees the same snapshot, and none can write. */
  readonly readOnly?: boolean
  /** When it fires, the running statement is cancelled, its connection is closed, and the transaction is rolled back. */
  readonly signal?: AbortSignal
}

export interface Database extends Queryable {
  /**
   * Sends the statements to one connection, in one round trip. They are one transaction: if one fails, none has written
   * anything. The results are in the order of the statements; the caller names the types of their rows. Each statement
   * is one SQL command.
   */
  // oxlint-disable-next-line typescript/no-unnecessary-type-parameters -- the statements, not the compiler, know the rows
  pipeline<Rows extends object[] = Record<string, unknown>[]>(
    statements: readonly Statement[],
  ): Promise<ResultsOf<Rows>>
  /** Runs the work between BEGIN and COMMIT on one connection. Any error rolls back and is thrown to the caller. */
  transaction<T>(work: (tx: Queryable) => Promise<T>, options?: TransactionOptions): Promise<T>
  /** Refuses new work, waits at most this long (`queryTimeoutMs`) for running work, and closes every connection. */
  close(options?: { readonly withinMs?: number }): Promise<void>
}

/** How long the server may take to close its side before the sockets are destroyed. */
const DISCONNECT_TIMEOUT_MS = 1_000
const LONGEST_TIMER_MS = 2_147_483_647

/** Opens a pool of connections. The first connection is made by the first statement. */
export function openDatabase(options: DatabaseOptions): Database {
  refuseUnknownOptions('openDatabase', options, OPTIONS)
  const settings = {
    maxConnections: checked('maxConnections', options.maxConnections ?? 10),
    connectTimeoutMs: checked('connectTimeoutMs', options.connectTimeoutMs ?? 5_000),
    queryTimeoutMs: checked('queryTimeoutMs', options.queryTimeoutMs ?? 30_000),
    ...(options.maxConnectionAgeMs === undefined
      ? {}
      : { maxConnectionAgeMs: checked('maxConnectionAgeMs', options.maxConnectionAgeMs) }),
  }
  const emit = options.onEvent ?? ((): void => undefined)
  const { neededRole } = options
  const hosts = usableHosts(options.url)
  /** When each connection was last known to work, and when the latest statement was sent that was not answered in time. */
  const answeredAt = new WeakMap<PoolClient, number>()
  let silentSince = Number.NEGATIVE_INFINITY
  const context: SessionContext = {
    naming: { on: options.prepare ?? true },
    neededRole,
    emit,
    leave: (client) => hosts.leave(client),
    answered: (client) => answeredAt.set(client, performance.now()),
    unanswered(sentAt) {
      silentSince = Math.max(silentSince, sentAt)
      // At once, so that the next statement opens a connection instead of waiting until one is free.
      for (let n = pool.idleCount; n > 0; n -= 1) void discardIfOutdated()
    },
  }
  const pool = openPool(options, settings, hosts)
  const connected = new Set<PoolClient>()
  pool.on('error', (error) => emit({ type: 'connectionLost', error: unavailable(error) }))
  pool.on('connect', (client) => {
    connected.add(client)
    answeredAt.set(client, performance.now())
  })
  pool.on('remove', (client) => connected.delete(client))

  /**
   * A server that lost its power, or its network, resets no connection. The first statement that it does not answer is
   * the only sign, and each further connection would cost another `queryTimeoutMs`. So those that have not answered since
   * that statement was sent are replaced; after a statement that was merely slow, that costs a few new connections.
   */
  function isOutdated(client: PoolClient): boolean {
    return hosts.isOutdated(client) || (answeredAt.get(client) ?? silentSince) < silentSince
  }

  const waiting = new Set<() => void>()
  const sessions = new Set<Session>()
  const running = new Set<Promise<unknown>>()
  let closed: Promise<void> | undefined
  let abandoned = false

  /** Returns undefined if the connection must not be used any more: its server was given up, or may have vanished. */
  async function checkOutOnce(queryTimeoutMs: number): Promise<Session | undefined> {
    return new Promise((resolve, reject) => {
      // A pool that is ending never calls back those who wait for a connection.
      const giveUp = (): void => reject(closedError())
      waiting.add(giveUp)
      // The callback form, because it runs before anything else can happen to the client: an error between the
      // checkout and the session's error listener would end the process.
      pool.connect((error, client) => {
        waiting.delete(giveUp)
        if (client === undefined) {
          reject(error ?? new Error('The pool returned no connection.'))
        } else if (abandoned) {
          client.release(true)
        } else if (isOutdated(client)) {
          client.release(true)
          // release(true) waits for a server that may never answer.
          client.connection.stream.destroy()
          resolve(undefined)
        } else {
          const session = new Session(client, queryTimeoutMs, context)
          sessions.add(session)
          resolve(session)
        }
      })
    })
  }

  async function discardIfOutdated(): Promise<void> {
    const session = await checkOutOnce(settings.queryTimeoutMs).catch(nothing)
    if (session === undefined) return
    session.end()
    sessions.delete(session)
  }

  /** Tries each host once. */
  async function checkOut(queryTimeoutMs: number): Promise<Session> {
    const failures: unknown[] = []
    for (;;) {
      if (abandoned) throw closedError()
      try {
        const session = await checkOutOnce(queryTimeoutMs)
        if (session !== undefined) return session
      } catch (error) {
        failures.push(error)
        const isOfHost = isUnavailable(error) && !isNoFreeConnection(error)
        if (!isOfHost) throw checkOutFailure(error, settings, hosts)
        if (failures.length >= hosts.urls.length) throw unavailable(hosts.noneOf(failures))
      }
    }
  }

  async function withSession<T>(queryTimeoutMs: number, work: (session: Session) => Promise<T>): Promise<T> {
    if (closed !== undefined) throw closedError()
    const task = (async () => {
      const session = await checkOut(queryTimeoutMs)
      try {
        return await work(session)
      } finally {
        session.end()
        sessions.delete(session)
      }
    })()
    const settled = task.then(nothing, nothing)
    running.add(settled)
    try {
      return await task
    } finally {
      running.delete(settled)
    }
  }

  async function closeNow(withinMs: number): Promise<void> {
    await within(withinMs, Promise.all(running))
    abandoned = true
    for (const giveUp of waiting) giveUp()
    for (const session of sessions) session.destroy(closedError())
    await pool.end()
    await within(DISCONNECT_TIMEOUT_MS, allRemoved(pool, connected))
    for (const client of connected) client.connection.stream.destroy()
  }

  return {
    async query<Row extends object = Record<string, unknown>>(statement: Statement): Promise<Result<Row>> {
      return withSession(settings.queryTimeoutMs, async (session) => session.queryAlone<Row>(statement))
    },
    async pipeline<Rows extends object[] = Record<string, unknown>[]>(statements: readonly Statement[]) {
      const results =
        statements.length === 0
          ? []
          : await withSession(settings.queryTimeoutMs, async (session) => session.pipelineAlone(statements))
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- the statements, not the compiler, know the rows
      return results as ResultsOf<Rows>
    },
    async transaction<T>(work: (tx: Queryable) => Promise<T>, choice: TransactionOptions = {}): Promise<T> {
      const queryTimeoutMs = checked('queryTimeoutMs', choice.queryTimeoutMs ?? settings.queryTimeoutMs)
      return withSession(queryTimeoutMs, async (session) =>
        unlessAborted(session, choice.signal, async () => runTransaction(session, work, choice)),
      )
    },
    async close({ withinMs = settings.queryTimeoutMs } = {}): Promise<void> {
      closed ??= closeNow(withinMs)
      await closed
    },
  }
}

/** The pipeline of a database whose transactions do not begin with its statements: it sends them one after the other. */
export function pipelineIn(
  transaction: <T>(work: (tx: Queryable) => Promise<T>) => Promise<T>,
): Database['pipeline'] {
  return async <Rows extends object[]>(statements: readonly Statement[]) =>
    transaction(async (tx) => {
      const results: Result<object>[] = []
      try {
        for (const statement of statements) results.push(await tx.query(statement))
      } catch (error) {
        locate(error, results.length)
        throw error
      }
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- the statements, not the compiler, know the rows
      return results as ResultsOf<Rows>
    })
}

async function runTransaction<T>(
  session: Session,
  work: (tx: Queryable) => Promise<T>,
  { readOnly = false }: TransactionOptions,
): Promise<T> {
  await session.query({ text: readOnly ? 'begin isolation level repeatable read, read only' : 'begin' })
  let result: T
  try {
    result = await work(session)
  } catch (error) {
    // The caller gets the error of the work. If the rollback fails too, the session is broken and gets destroyed.
    await session.query({ text: 'rollback' }).catch(nothing)
    throw error
  }
  await session.commit()
  return result
}

/** Ends the session when the signal fires, whatever it does at that moment. */
async function unlessAborted<T>(
  session: Session,
  signal: AbortSignal | undefined,
  run: () => Promise<T>,
): Promise<T> {
  if (signal === undefined) return run()
  const abort = (): void => session.abort()
  signal.addEventListener('abort', abort, { once: true })
  try {
    if (signal.aborted) abort()
    return await run()
  } finally {
    signal.removeEventListener('abort', abort)
  }
}

interface Settings {
  readonly maxConnections: number
  readonly connectTimeoutMs: number
  readonly queryTimeoutMs: number
  readonly maxConnectionAgeMs?: number
}

function openPool(options: DatabaseOptions, settings: Settings, { Client: HostClient }: Hosts): Pool {
  return new Pool({
    application_name: options.applicationName ?? 'leasehold',
    max: settings.maxConnections,
    connectionTimeoutMillis: settings.connectTimeoutMs,
    idleTimeoutMillis: 30_000,
    // 0: without limit.
    maxLifetimeSeconds: (settings.maxConnectionAgeMs ?? 0) / 1_000,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    types: valueTypes,
    Client: HostClient,
  })
}

function checked(name: string, value: number): number {
  if (Number.isInteger(value) && value >= 1 && value <= LONGEST_TIMER_MS) return value
  throw new LeaseholdError('SETTING_INVALID', `${name} is ${value}.`, {
    remedy: `Give a whole number from 1 to ${LONGEST_TIMER_MS}.`,
  })
}

function checkOutFailure(error: unknown, settings: Settings, { urls }: Hosts): unknown {
  if (isNoFreeConnection(error)) {
    return unavailable(
      error,
      `No connection became free within connectTimeoutMs = ${settings.connectTimeoutMs} ms; all of maxConnections = ${settings.maxConnections} are in use.`,
    )
  }
  if (isUnsupportedParameter(error)) return unsupportedParameter(error)
  const [connectionString = ''] = urls
  return explainRefusal(error, { text: '', role: new Client({ connectionString }).user })
}

function unsupportedParameter(error: unknown): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    `The connection pooler refuses a parameter of the database URL: ${messageOf(error)}.`,
    {
      remedy:
        'Remove it from the URL and set it for the role instead (ALTER ROLE … SET statement_timeout = …), or name it in ignore_startup_parameters of the pooler, which then ignores it.',
      cause: error,
    },
  )
}

function closedError(): LeaseholdError {
  return new LeaseholdError('DATABASE_CLOSED', 'The database has been closed.', {
    remedy: 'Stop what uses it before calling close().',
  })
}

/** Throws for a URL that cannot be parsed. The message does not repeat the URL, because it contains a password. */
export function usableHosts(url: string): Hosts {
  const remedy = 'Give one of the form postgresql://user:password@host:5432/database.'
  if (url === '') throw new LeaseholdError('SETTING_INVALID', 'The database URL is empty.', { remedy })
  const hosts = hostsOf(url)
  const isCut = hosts.urls.length > 1 && !isDatabaseUrl(url)
  try {
    if (isCut) throw new Error('a host is empty or cannot be read')
    // The constructor only parses it; no connection is made.
    for (const connectionString of hosts.urls) void new Client({ connectionString })
  } catch {
    throw new LeaseholdError('SETTING_INVALID', 'The database URL cannot be read.', { remedy })
  }
  return hosts
}

async function allRemoved(pool: Pool, connected: ReadonlySet<PoolClient>): Promise<void> {
  await new Promise<void>((resolve) => {
    const resolveWhenEmpty = (): void => {
      if (connected.size === 0) resolve()
    }
    pool.on('remove', resolveWhenEmpty)
    resolveWhenEmpty()
  })
}

function nothing(): void {}
