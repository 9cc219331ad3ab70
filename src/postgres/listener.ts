import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { within } from '../timeout.ts'
import { usableHosts } from './database.ts'
import { isReadOnly, isUnavailable, pauseAfter, unavailable } from './failures.ts'
import type { Hosts } from './hosts.ts'
import { quoteIdentifier } from './identifiers.ts'
import { explainRefusal } from './permissions.ts'
import type { Statement } from './queryable.ts'

export type ListenerEvent =
  /** Notifications arrive from now on. Earlier ones may have been lost, so check once for work. */
  | { readonly type: 'listening' }
  /**
   * Notifications do not arrive. The listener reconnects by itself after `retryInMs`. That a pooler does not deliver them
   * (`LISTEN_UNAVAILABLE`) is reported once, and tried from time to time.
   */
  | { readonly type: 'disconnected'; readonly error: Error; readonly retryInMs: number }

export interface ListenerOptions {
  /** Has to lead to PostgreSQL itself, or to a pooler in session mode. May have several hosts. */
  readonly url: string
  readonly channels: readonly string[]
  /** Must not throw. */
  readonly onNotification: (channel: string, payload: string) => void
  /** Must not throw. */
  readonly onEvent?: (event: ListenerEvent) => void
  readonly applicationName?: string
  /** How long connecting, and the LISTEN itself, may take. Default 5,000. */
  readonly connectTimeoutMs?: number
  /**
   * The statement that checks whether the connection is alive: once before it starts to listen, then at every interval.
   * It is given the process id of the connection's backend. Default `select 1`.
   */
  readonly probe?: (backendPid: number) => Statement
  /** Is called with the rows of every probe. Must not throw. */
  readonly onProbe?: (rows: readonly object[]) => void
  /** How often the probe runs. Default 5,000. */
  readonly probeIntervalMs?: number
  /** How long the probe may take before the connection is given up. Default 3,000. */
  readonly probeTimeoutMs?: number
  /** Returns a number from 0 to 1. It spreads the reconnections of many listeners. */
  readonly random?: () => number
}

/** Short, because the reaper considers a worker dead that is disconnected for longer than its grace period. */
const BACK_OFF = { firstMs: 100, longestMs: 1_000 }
const DISCONNECT_TIMEOUT_MS = 1_000
/** A pooler may be given another mode while the process runs. */
const UNDELIVERED_RETRY_MS = 60_000
/** How long notifications wait to be read, when others have just been: the first time, and while they keep coming. */
const READ_PAUSE_MS = { first: 2, longest: 20 }
/** Only sessions that a pooler hides listen on it. */
const TEST_CHANNEL = 'leasehold_listen_test'

/**
 * One connection outside the pool that waits for NOTIFY and reconnects whenever it is lost. A connection that only
 * listens would never notice that the network drops every packet, so it sends a probe at regular intervals.
 */
export class Listener {
  readonly #options: ListenerOptions
  readonly #hosts: Hosts
  #stopping = new AbortController()
  #stopped: Promise<void> | undefined

  constructor(options: ListenerOptions) {
    this.#hosts = usableHosts(options.url)
    this.#options = options
  }

  /** Returns at once. The event `listening` follows when the connection listens. */
  start(): void {
    if (this.#stopped !== undefined) return
    this.#stopping = new AbortController()
    this.#stopped = keepListening(this.#options, this.#hosts, this.#stopping.signal)
  }

  /** Stops promptly, whatever the listener is waiting for. No notification is delivered afterwards. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#stopped
    this.#stopped = undefined
  }
}

async function keepListening(options: ListenerOptions, hosts: Hosts, stop: AbortSignal): Promise<void> {
  const random = options.random ?? Math.random
  let wasListening = false
  /** How many times in a row all hosts have failed, and why those failed that were tried since. */
  let rounds = 0
  let reasons: unknown[] = []
  let isKnownUndelivered = false
  while (!stop.aborted) {
    try {
      await listenOnce(options, hosts, stop, () => {
        wasListening = true
        rounds = 0
        reasons = []
        isKnownUndelivered = false
      })
    } catch (cause) {
      if (stop.aborted) return
      if (isLeaseholdError(cause, 'LISTEN_UNAVAILABLE')) {
        const retryInMs = UNDELIVERED_RETRY_MS
        if (!isKnownUndelivered) options.onEvent?.({ type: 'disconnected', error: cause, retryInMs })
        isKnownUndelivered = true
        wasListening = false
        rounds = 0
        reasons = []
        await pauseFor(retryInMs, stop)
        continue
      }
      reasons.push(cause)
      const areAllTried = reasons.length === hosts.urls.length
      if (areAllTried) rounds += 1
      const retryInMs = pauseAfter(areAllTried ? rounds : 1, BACK_OFF, random)
      // That the first host is a standby, say, is not worth a report if the next one can be used.
      if (areAllTried || wasListening) {
        const error = areAllTried && reasons.every(isUnavailable) ? hosts.noneOf(reasons) : cause
        options.onEvent?.({ type: 'disconnected', error: asError(error), retryInMs })
      }
      if (areAllTried) reasons = []
      wasListening = false
      await pauseFor(retryInMs, stop)
    }
  }
}

function asError(cause: unknown): Error {
  return isUnavailable(cause) || !(cause instanceof Error) ? unavailable(cause) : cause
}

/** Resolves when stopped, rejects when the connection is lost. */
async function listenOnce(
  options: ListenerOptions,
  hosts: Hosts,
  stop: AbortSignal,
  onAlive: () => void,
): Promise<void> {
  const connectTimeoutMs = options.connectTimeoutMs ?? 5_000
  const probeTimeoutMs = options.probeTimeoutMs ?? 3_000
  const client = new hosts.Client({
    application_name: options.applicationName ?? 'leasehold listener',
    connectionTimeoutMillis: connectTimeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
  })
  // Ends the pause between two probes: the connection has ended, or the listener is stopping.
  const ended = new AbortController()
  let pausing = false
  let lost: Error | undefined
  client.on('error', (error) => {
    lost ??= error
  })
  client.on('end', () => ended.abort())
  const reading = readInBatches(client, (channel, payload) => {
    if (!stop.aborted && channel !== TEST_CHANNEL) options.onNotification(channel, payload)
  })
  const onStop = (): void => {
    ended.abort()
    // The answer it is waiting for may never come.
    if (!pausing) client.connection.stream.destroy()
  }
  stop.addEventListener('abort', onStop, { once: true })
  async function probe(): Promise<void> {
    const statement = options.probe?.(backendOf(client)) ?? { text: 'select 1' }
    try {
      const rows = await queryWithin(client, statement, probeTimeoutMs)
      if (!stop.aborted) options.onProbe?.(rows)
    } catch (error) {
      throw explainRefusal(error, { text: statement.text, role: client.user, needs: 'worker' })
    }
  }
  try {
    await client.connect()
    await probe()
    await requireDelivery(client, hosts, { connectTimeoutMs, probeTimeoutMs, ended: ended.signal })
    await queryWithin(client, { text: listenStatement(options.channels) }, connectTimeoutMs)
    onAlive()
    if (!stop.aborted) options.onEvent?.({ type: 'listening' })
    while (!stop.aborted) {
      pausing = true
      await pauseFor(options.probeIntervalMs ?? 5_000, ended.signal)
      pausing = false
      if (stop.aborted) return
      if (ended.signal.aborted) throw lost ?? new Error('Connection terminated unexpectedly')
      await probe()
    }
  } catch (error) {
    // A standby does not permit LISTEN, and a server that takes no writes refuses the probe of a worker.
    if (isReadOnly(error)) hosts.leave(client)
    throw error
  } finally {
    stop.removeEventListener('abort', onStop)
    reading.stop()
    await disconnect(client, stop.aborted && lost === undefined)
  }
}

/**
 * Hands over notifications; equal ones that were read together are one. Eight producers at full speed send 500 a second, and
 * each that is read by itself costs 0.2 ms of processor time. So the connection is not read again at once, and ever later
 * while notifications keep coming.
 */
function readInBatches(
  client: Client,
  deliver: (channel: string, payload: string) => void,
): { readonly stop: () => void } {
  const { stream } = client.connection
  const read = new Map<string, { readonly channel: string; readonly payload: string }>()
  let pauseMs = READ_PAUSE_MS.first
  let resumedAt = Number.NEGATIVE_INFINITY
  let timer: NodeJS.Timeout | undefined
  let isStopped = false
  const resume = (): void => {
    resumedAt = performance.now()
    stream.resume()
  }
  const handOver = (): void => {
    if (isStopped) return
    const isFollowing = performance.now() - resumedAt < pauseMs
    pauseMs = isFollowing ? Math.min(2 * pauseMs, READ_PAUSE_MS.longest) : READ_PAUSE_MS.first
    stream.pause()
    timer = setTimeout(resume, pauseMs)
    const batch = [...read.values()]
    read.clear()
    for (const { channel, payload } of batch) deliver(channel, payload)
  }
  client.on('notification', ({ channel, payload = '' }) => {
    // All that were read together come before that.
    if (read.size === 0) queueMicrotask(handOver)
    read.set(JSON.stringify([channel, payload]), { channel, payload })
  })
  return {
    stop() {
      isStopped = true
      clearTimeout(timer)
      stream.resume()
    },
  }
}

/**
 * Throws `LISTEN_UNAVAILABLE` where notifications do not reach the client. A pooler in transaction mode accepts LISTEN, and
 * drops what arrives while the client sends nothing. So where a pooler hides the session, another connection sends a
 * notification, and it has to arrive. That comes before the LISTEN for all else, which would stay in a session of the
 * pooler.
 */
async function requireDelivery(
  client: Client,
  hosts: Hosts,
  { connectTimeoutMs, probeTimeoutMs, ended }: DeliveryTest,
): Promise<void> {
  const [row] = await queryWithin(client, { text: 'select pg_backend_pid() as pid' }, probeTimeoutMs)
  if (row !== undefined && 'pid' in row && row.pid === backendOf(client)) return
  const id = randomUUID()
  const arrived = new Promise<boolean>((resolve) => {
    ended.addEventListener('abort', () => resolve(false), { once: true })
    client.on('notification', ({ channel, payload }) => {
      if (channel === TEST_CHANNEL && payload === id) resolve(true)
    })
  })
  await queryWithin(client, { text: listenStatement([TEST_CHANNEL]) }, probeTimeoutMs)
  await notifyOnce(hosts, id, { connectTimeoutMs, probeTimeoutMs, ended })
  if (await within(probeTimeoutMs, arrived)) {
    if (await arrived) return
    throw new Error('Connection terminated unexpectedly')
  }
  throw new LeaseholdError(
    'LISTEN_UNAVAILABLE',
    `A notification did not arrive within ${probeTimeoutMs} ms: the database URL leads to a connection pooler in transaction mode.`,
    {
      remedy:
        'Give a listenUrl (--listen-url, LEASEHOLD_LISTEN_URL) that leads to PostgreSQL itself, or switch LISTEN off (`listen: false`) if polling is enough.',
    },
  )
}

interface DeliveryTest {
  readonly connectTimeoutMs: number
  readonly probeTimeoutMs: number
  /** The connection that listens has ended, or the listener is stopping. */
  readonly ended: AbortSignal
}

/** Sends a notification by a connection of its own. */
async function notifyOnce(
  hosts: Hosts,
  payload: string,
  { connectTimeoutMs, probeTimeoutMs, ended }: DeliveryTest,
): Promise<void> {
  const sender = new hosts.Client({ connectionTimeoutMillis: connectTimeoutMs })
  // Whatever goes wrong rejects the promises below.
  sender.on('error', () => undefined)
  const giveUp = (): void => void sender.connection.stream.destroy()
  ended.addEventListener('abort', giveUp, { once: true })
  let isOrderly = false
  try {
    await sender.connect()
    const notify = { text: 'select pg_notify($1, $2)', values: [TEST_CHANNEL, payload] }
    await queryWithin(sender, notify, probeTimeoutMs)
    isOrderly = true
  } finally {
    ended.removeEventListener('abort', giveUp)
    await disconnect(sender, isOrderly)
  }
}

/** Runs a statement. Without an answer in time, the connection is considered lost and is destroyed. */
async function queryWithin(
  client: Client,
  statement: Statement,
  timeoutMs: number,
): Promise<readonly object[]> {
  const { values, ...rest } = statement
  const answered = client.query<object>(values === undefined ? rest : { ...rest, values: [...values] })
  if (await within(timeoutMs, answered)) return (await answered).rows
  client.connection.stream.destroy()
  // The query rejects when its socket is closed; waiting for that leaves no unhandled rejection.
  await answered.catch(() => undefined)
  throw unavailable(undefined, `The listening connection did not answer within ${timeoutMs} ms.`)
}

/** The process id of the backend, or 0 (which no process has) where the server did not send it. */
function backendOf(client: Client): number {
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- `pg` keeps the backend's key here; its types do not say so
  return (client as unknown as { readonly processID: number | null }).processID ?? 0
}

async function disconnect(client: Client, orderly: boolean): Promise<void> {
  if (orderly) await within(DISCONNECT_TIMEOUT_MS, client.end())
  client.connection.stream.destroy()
}

/** One message for all channels. */
function listenStatement(channels: readonly string[]): string {
  return channels.map((channel) => `listen ${quoteIdentifier(channel)}`).join('; ')
}

async function pauseFor(ms: number, until: AbortSignal): Promise<void> {
  // It only rejects because the pause was cut short.
  await delay(ms, undefined, { signal: until }).catch(() => undefined)
}
