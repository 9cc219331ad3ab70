import type { ClientBase, ClientConfig } from 'pg'
import { statedTargetSession, TARGET_SESSIONS, targetSessionOf, urlsOfHosts } from '../database-url.ts'
import { LeaseholdError, messageOf } from '../errors.ts'
import { deadline, within } from '../timeout.ts'
import { addressOf, DatabaseClient } from './client.ts'
import { isUnavailable, unavailable } from './failures.ts'

const DEFAULT_CHECK_TIMEOUT_MS = 5_000
const DISCONNECT_TIMEOUT_MS = 1_000

/**
 * The hosts of one pool or listener. New clients connect to the current host, which is at first the first one in the
 * URL. If it cannot be reached, or its server is not one that `target_session_attrs` permits, the next host becomes the
 * current one, and stays it for as long as it can be used.
 */
export interface Hosts {
  readonly urls: readonly string[]
  /** The class of clients that connect to the current host. */
  readonly Client: new (config?: ClientConfig) => DatabaseClient
  /** The server of this client takes no writes. Its connection is outdated, and so is every one opened before now. */
  leave(client: ClientBase): void
  /** Whether a client must not be used any more, because it was opened before its server was given up. */
  isOutdated(client: ClientBase): boolean
  /** The error after every host has failed, from one error for each of them. */
  noneOf(failures: readonly unknown[]): unknown
}

/** What a server says about its sessions. */
type SessionState = 'standby' | 'read-only' | 'read-write'

/** Asked instead of read from the messages of the start, which older servers do not send and poolers repeat. */
const ASK_STATE = `select case when pg_catalog.pg_is_in_recovery() then 'standby'
  when pg_catalog.current_setting('transaction_read_only') = 'on' then 'read-only'
  else 'read-write' end as state`

interface Origin {
  /** The index of its host. */
  readonly host: number
  /** How many times a server had been given up when it was opened. */
  readonly departures: number
}

/** Throws for a URL that cannot be used. No connection is made. */
export function hostsOf(url: string): Hosts {
  const urls = urlsOfHosts(url)
  const target = targetSessionOf(url)
  if (target === undefined) throw unknownTarget(url)
  const origins = new WeakMap<ClientBase, Origin>()
  /** The address of the host at which a connection failed. */
  const addresses = new WeakMap<object, string>()
  let current = 0
  let departures = 0

  /** Of several clients that failed at the same host, only the first changes the current one. */
  function moveOn(client: ClientBase): void {
    if (origins.get(client)?.host === current) current = (current + 1) % urls.length
  }

  function isOutdated(client: ClientBase): boolean {
    return (origins.get(client)?.departures ?? departures) < departures
  }

  class HostClient extends DatabaseClient {
    readonly #checkTimeoutMs: number

    constructor(config: ClientConfig = {}) {
      super({ ...config, connectionString: urls[current] ?? url })
      this.#checkTimeoutMs = config.connectionTimeoutMillis ?? DEFAULT_CHECK_TIMEOUT_MS
      origins.set(this, { host: current, departures })
    }

    override connect(): Promise<this>
    override connect(callback: (error: Error | null) => void): void
    override connect(callback?: (error: Error | null) => void): Promise<this> | undefined {
      if (callback === undefined) {
        return new Promise((resolve, reject) => {
          this.connect((error) => (error === null ? resolve(this) : reject(error)))
        })
      }
      super.connect((error: Error | null) => {
        if (error !== null) callback(this.#failed(error))
        else if (target === 'any') callback(null)
        else void this.#check(callback)
      })
      return undefined
    }

    async #check(callback: (error: Error | null) => void): Promise<void> {
      // The pool listens for errors only once it is told that the client is connected.
      const ignore = (): void => {}
      this.on('error', ignore)
      const refusal = await this.#refusal()
      if (refusal === undefined) {
        callback(null)
        this.off('error', ignore)
      } else {
        this.#disconnect()
        callback(this.#failed(refusal))
      }
    }

    /** Why a connection to this server may not be used, if it may not. */
    async #refusal(): Promise<Error | undefined> {
      const limit = deadline(this.#checkTimeoutMs, () => this.connection.stream.destroy())
      try {
        const { rows } = await this.query<{ state: SessionState }>(ASK_STATE)
        const state = rows[0]?.state ?? 'read-only'
        const isPermitted = target === 'primary' ? state !== 'standby' : state === 'read-write'
        return isPermitted ? undefined : notPermitted(addressOf(this), state)
      } catch (error) {
        return error instanceof Error ? error : new Error(messageOf(error))
      } finally {
        limit.cancel()
      }
    }

    #disconnect(): void {
      const destroy = (): void => void this.connection.stream.destroy()
      within(DISCONNECT_TIMEOUT_MS, this.end()).then(destroy, destroy)
    }

    /** A server that refuses the user or the password decides for all hosts, as in libpq. */
    #failed(error: Error): Error {
      if (isUnavailable(error)) moveOn(this)
      addresses.set(error, addressOf(this))
      return error
    }
  }

  function notPermitted(address: string, state: SessionState): LeaseholdError {
    const what = state === 'standby' ? 'is a standby' : 'begins its transactions read-only'
    const message = `The server at ${address} ${what}, and target_session_attrs is ${target}.`
    return new LeaseholdError(
      'DATABASE_UNAVAILABLE',
      message,
      // With several hosts this is one of several reasons, and the remedy follows them.
      urls.length > 1
        ? {}
        : { remedy: 'Name the server that takes writes in the database URL, or promote this one.' },
    )
  }

  function reasonOf(failure: unknown): string {
    const message = messageOf(failure).replace(/\.$/, '')
    // The pool replaces the error of a timeout, and gives it as the cause.
    const address = [failure, failure instanceof Error ? failure.cause : undefined]
      .filter((each) => typeof each === 'object' && each !== null)
      .map((each) => addresses.get(each))
      .find((found) => found !== undefined)
    return address === undefined || message.includes(address) ? message : `${address}: ${message}`
  }

  return {
    urls,
    Client: HostClient,
    leave(client) {
      moveOn(client)
      if (!isOutdated(client)) departures += 1
    },
    isOutdated,
    noneOf(failures) {
      const [only] = failures
      if (urls.length === 1) return only
      return unavailable(
        new AggregateError(failures),
        `None of the ${urls.length} hosts of the database URL can be used: ${failures.map(reasonOf).join('; ')}.`,
      )
    },
  }
}

function unknownTarget(url: string): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    `The database URL has target_session_attrs = ${statedTargetSession(url)}.`,
    { remedy: `Give one of ${TARGET_SESSIONS.join(', ')}.` },
  )
}
