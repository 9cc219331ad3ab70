/**
 * Live updates as server-sent events. One reader serves all who listen. Every event is a whole overview, so that a client
 * that reconnects (`Last-Event-ID`) has missed nothing once it has the newest. Points of the history are sent as they are
 * made; a client that was away asks for those it has missed.
 */
import { randomUUID } from 'node:crypto'
import { readOverview } from './overview.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { isUnavailable } from '../../postgres/failures.ts'
import { actingAs } from './acting.ts'
import type { HistoryPoints } from './history.ts'
import { ConnectionLimiter } from './limits.ts'

export interface LiveOptions {
  readonly db: Database
  readonly schema: string
  readonly prefix: () => Promise<string>
  readonly statementTimeoutMs: number
  readonly onError: (error: unknown) => void
}

interface Listener {
  /** Who listens. */
  readonly principal: string
  readonly send: (text: string) => void
  readonly close: () => void
  readonly isCurrent: () => Promise<boolean>
}

const READ_EVERY_MS = 1_000

/** A comment, so that proxies keep the connection and a client that has gone is noticed. */
const KEEP_ALIVE_EVERY_MS = 15_000

/** How often it is asked whether the key of a client is still valid. */
const CHECK_EVERY_MS = 5_000

const MAX_LISTENERS = 100
/** Of one caller, so that it does not keep out the others. */
const MAX_LISTENERS_OF_CALLER = 20

/** A client that does not read so much is cut off; it reconnects and gets the newest. */
const MAX_UNREAD_EVENTS = 20

const HEADERS = {
  'content-type': 'text/event-stream',
  // Proxies such as nginx would collect what is sent.
  'x-accel-buffering': 'no',
}

export class Live {
  readonly #options: LiveOptions
  readonly #listeners = new Set<Listener>()
  /** Another process, or this one after a restart, numbers from the start. */
  readonly #stream = randomUUID()
  #number = 0
  #latest: { readonly id: string; readonly data: string } | undefined
  #timer: NodeJS.Timeout | undefined
  #keepAlive: NodeJS.Timeout | undefined
  #checking: NodeJS.Timeout | undefined
  readonly #connections: ConnectionLimiter
  #isReading = false
  #isFailing = false
  #isStopped = false

  constructor(options: LiveOptions) {
    this.#options = options
    // Requests need the others of the pool.
    this.#connections = new ConnectionLimiter({ atOnce: 1, waitMs: options.statementTimeoutMs })
  }

  respond(request: Request, principal: string, isCurrent: () => Promise<boolean>): Response {
    // Nobody would read a body.
    if (request.method === 'HEAD') return new Response(null, { headers: HEADERS })
    if (this.#isStopped)
      throw new LeaseholdError('DATABASE_UNAVAILABLE', 'This server is stopping.', {
        remedy: 'Connect to another one, or a little later.',
      })
    if (this.#listeners.size >= MAX_LISTENERS)
      throw new LeaseholdError('TOO_MANY_REQUESTS', `There are ${MAX_LISTENERS} live connections already.`, {
        remedy: 'Close others, or read /overview from time to time.',
      })
    const ofCaller = [...this.#listeners].filter((each) => each.principal === principal)
    if (ofCaller.length >= MAX_LISTENERS_OF_CALLER)
      throw new LeaseholdError(
        'TOO_MANY_REQUESTS',
        `${JSON.stringify(principal)} has ${MAX_LISTENERS_OF_CALLER} live connections already.`,
        { remedy: 'Close others, or use another key for other people.' },
      )
    const lastId = request.headers.get('last-event-id')
    const encoder = new TextEncoder()
    // The stream calls `start` at once.
    let listener!: Listener
    const body = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          listener = {
            principal,
            send: (text) => {
              if ((controller.desiredSize ?? 0) <= 0) this.#drop(listener)
              else controller.enqueue(encoder.encode(text))
            },
            close: () => controller.close(),
            isCurrent,
          }
          this.#add(listener, lastId)
        },
        cancel: () => {
          this.#remove(listener)
        },
      },
      new CountQueuingStrategy({ highWaterMark: MAX_UNREAD_EVENTS }),
    )
    request.signal.addEventListener('abort', () => this.#drop(listener), { once: true })
    if (request.signal.aborted) this.#drop(listener)
    return new Response(body, { headers: HEADERS })
  }

  sendPoint(point: HistoryPoints): void {
    if (this.#listeners.size > 0) this.#sendAll(`event: history\ndata: ${JSON.stringify(point)}\n\n`)
  }

  stop(): void {
    this.#isStopped = true
    for (const listener of this.#listeners) this.#drop(listener)
  }

  #add(listener: Listener, lastId: string | null): void {
    this.#listeners.add(listener)
    listener.send('retry: 2000\n\n')
    if (this.#timer === undefined) {
      this.#timer = setInterval(() => void this.#read(), READ_EVERY_MS).unref()
      this.#keepAlive = setInterval(() => this.#sendAll(': keep-alive\n\n'), KEEP_ALIVE_EVERY_MS).unref()
      this.#checking = setInterval(() => void this.#dropOutdated(), CHECK_EVERY_MS).unref()
      void this.#read()
    } else if (this.#latest !== undefined && this.#latest.id !== lastId) {
      listener.send(eventText(this.#latest))
    }
  }

  #drop(listener: Listener): void {
    if (!this.#listeners.has(listener)) return
    this.#remove(listener)
    listener.close()
  }

  #remove(listener: Listener): void {
    this.#listeners.delete(listener)
    if (this.#listeners.size > 0) return
    clearInterval(this.#timer)
    clearInterval(this.#keepAlive)
    clearInterval(this.#checking)
    this.#timer = undefined
    // Whoever comes next gets what is read then.
    this.#latest = undefined
  }

  /** A stream ends with the key that opened it. */
  async #dropOutdated(): Promise<void> {
    for (const listener of this.#listeners) {
      // While the database is away nobody knows, and nothing is sent.
      const isCurrent = await listener.isCurrent().catch((error: unknown) => isUnavailable(error))
      if (!isCurrent) this.#drop(listener)
    }
  }

  async #read(): Promise<void> {
    if (this.#isReading) return
    this.#isReading = true
    const { schema, prefix, statementTimeoutMs, onError } = this.#options
    const db = this.#connections.limit(this.#options.db, 'live')
    try {
      const acting = {
        role: 'reader',
        tenant: null,
        principal: 'live',
        statementTimeoutMs,
        readOnly: true,
      } as const
      const overview = await readOverview(actingAs(db, acting, await prefix()), { schema })
      const data = JSON.stringify(overview)
      this.#isFailing = false
      // Whoever listened has gone meanwhile. It must not count as sent to those who come.
      if (this.#listeners.size === 0) return
      if (data !== this.#latest?.data) {
        this.#number += 1
        this.#latest = { id: `${this.#stream}.${this.#number}`, data }
        this.#sendAll(eventText(this.#latest))
      }
    } catch (error) {
      // Once for each outage, and not every second. After the stop the database may have been closed.
      if (!this.#isFailing && !this.#isStopped) onError(error)
      this.#isFailing = true
      this.#sendAll('event: unavailable\ndata: {}\n\n')
    } finally {
      await db.close()
      this.#isReading = false
    }
  }

  #sendAll(text: string): void {
    for (const listener of this.#listeners) listener.send(text)
  }
}

function eventText({ id, data }: { readonly id: string; readonly data: string }): string {
  return `id: ${id}\nevent: overview\ndata: ${data}\n\n`
}
