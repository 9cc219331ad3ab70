import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { pauseAfter } from './back-off.ts'
import { isUnavailable, unavailable } from './failures.ts'
import { quoteIdentifier } from './identifiers.ts'
import type { Statement } from './queryable.ts'
import { assertUsableUrl } from './url.ts'
import { within } from './deadline.ts'

export type ListenerEvent =
  /** Notifications arrive from now on. Some may have been missed before: look for work once. */
  | { readonly type: 'listening' }
  /** Notifications do not arrive; the listener tries again by itself after `retryInMs`. */
  | { readonly type: 'disconnected'; readonly error: Error; readonly retryInMs: number }

export interface ListenerOptions {
  /** Not that of a transaction-mode pooler: it would swallow the LISTEN. */
  readonly url: string
  readonly channels: readonly string[]
  /** Must not throw. */
  readonly onNotification: (channel: string, payload: string) => void
  /** Must not throw. */
  readonly onEvent?: (event: ListenerEvent) => void
  readonly applicationName?: string
  /** Bounds connecting, and the LISTEN itself. Default 5,000. */
  readonly connectTimeoutMs?: number
  /**
   * What the connection is asked to show that it is alive, given the backend that the server says serves it: once
   * when it listens, then at every interval. Default `select 1`.
   */
  readonly probe?: (backendPid: number) => Statement
  /** Gets the rows of every probe. Must not throw. */
  readonly onProbe?: (rows: readonly object[]) => void
  /** How often it is asked. Default 5,000. */
  readonly probeIntervalMs?: number
  /** How long it may take to say so. Default 3,000. */
  readonly probeTimeoutMs?: number
  /** Spreads the return of many listeners. A number from 0 to 1. */
  readonly random?: () => number
}

/** Short: a worker that is away for longer than a reaper's grace is taken for dead. */
const BACK_OFF = { firstMs: 100, longestMs: 1_000 }
const GOODBYE_MS = 1_000

/**
 * One connection outside the pool that waits for NOTIFY, and comes back whenever it is lost. A connection that
 * only listens would never notice that the network swallows everything, so it is asked now and then.
 */
export class Listener {
  readonly #options: ListenerOptions
  #stopping = new AbortController()
  #stopped: Promise<void> | undefined

  constructor(options: ListenerOptions) {
    assertUsableUrl(options.url)
    this.#options = options
  }

  /** Returns at once; `listening` tells when it is. */
  start(): void {
    if (this.#stopped !== undefined) return
    this.#stopping = new AbortController()
    this.#stopped = keepListening(this.#options, this.#stopping.signal)
  }

  /** Prompt, whatever it is doing. No notification is delivered after it. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#stopped
    this.#stopped = undefined
  }
}

async function keepListening(options: ListenerOptions, stop: AbortSignal): Promise<void> {
  const random = options.random ?? Math.random
  let failures = 0
  while (!stop.aborted) {
    try {
      await listenOnce(options, stop, () => {
        failures = 0
      })
    } catch (cause) {
      if (stop.aborted) return
      const error = isUnavailable(cause) || !(cause instanceof Error) ? unavailable(cause) : cause
      failures += 1
      const retryInMs = pauseAfter(failures, BACK_OFF, random)
      options.onEvent?.({ type: 'disconnected', error, retryInMs })
      await pauseFor(retryInMs, stop)
    }
  }
}

/** Resolves when stopped, rejects when the connection is lost. */
async function listenOnce(options: ListenerOptions, stop: AbortSignal, onAlive: () => void): Promise<void> {
  const connectTimeoutMs = options.connectTimeoutMs ?? 5_000
  const probeTimeoutMs = options.probeTimeoutMs ?? 3_000
  const client = new Client({
    connectionString: options.url,
    application_name: options.applicationName ?? 'leasehold listener',
    connectionTimeoutMillis: connectTimeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
  })
  // Ends a pause: the connection is gone, or the listener is to stop.
  const over = new AbortController()
  let resting = false
  let lost: Error | undefined
  client.on('error', (error) => {
    lost ??= error
  })
  client.on('end', () => over.abort())
  client.on('notification', ({ channel, payload }) => {
    if (!stop.aborted) options.onNotification(channel, payload ?? '')
  })
  const onStop = (): void => {
    over.abort()
    // Whatever it waits for from the network may never come.
    if (!resting) client.connection.stream.destroy()
  }
  stop.addEventListener('abort', onStop, { once: true })
  async function probe(): Promise<void> {
    const statement = options.probe?.(backendOf(client)) ?? { text: 'select 1' }
    const rows = await answer(client, statement, probeTimeoutMs)
    if (!stop.aborted) options.onProbe?.(rows)
  }
  try {
    await client.connect()
    await answer(client, { text: listenStatement(options.channels) }, connectTimeoutMs)
    await probe()
    onAlive()
    if (!stop.aborted) options.onEvent?.({ type: 'listening' })
    while (!stop.aborted) {
      resting = true
      await pauseFor(options.probeIntervalMs ?? 5_000, over.signal)
      resting = false
      if (stop.aborted) return
      if (over.signal.aborted) throw lost ?? new Error('Connection terminated unexpectedly')
      await probe()
    }
  } finally {
    stop.removeEventListener('abort', onStop)
    await farewell(client, stop.aborted && lost === undefined)
  }
}

/** Waits for the answer. Without one in time the connection is as good as gone, and is destroyed. */
async function answer(client: Client, statement: Statement, timeoutMs: number): Promise<readonly object[]> {
  const { values, ...rest } = statement
  const answered = client.query<object>(values === undefined ? rest : { ...rest, values: [...values] })
  if (await within(timeoutMs, answered)) return (await answered).rows
  client.connection.stream.destroy()
  // The query ends with its socket; only then is nothing left behind.
  await answered.catch(() => undefined)
  throw unavailable(undefined, `The listening connection did not answer within ${timeoutMs} ms.`)
}

/** 0, which is nobody's, where the other side did not say. */
function backendOf(client: Client): number {
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- `pg` keeps the backend's key here; its types do not say so
  return (client as unknown as { readonly processID: number | null }).processID ?? 0
}

async function farewell(client: Client, politely: boolean): Promise<void> {
  if (politely) await within(GOODBYE_MS, client.end())
  client.connection.stream.destroy()
}

/** One message for all channels; a LISTEN holds from the end of its transaction. */
function listenStatement(channels: readonly string[]): string {
  return channels.map((channel) => `listen ${quoteIdentifier(channel)}`).join('; ')
}

async function pauseFor(ms: number, until: AbortSignal): Promise<void> {
  // It rejects for one reason only, which is that the pause is over.
  await delay(ms, undefined, { signal: until }).catch(() => undefined)
}
