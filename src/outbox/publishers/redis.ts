/** Events to a stream of Redis, one XADD each, sent together and acknowledged one by one. */
import type { RedisClientOptions } from 'redis'

import type { OutboxEvent } from '../event.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { PermanentError } from '../../worker/completion/outcome.ts'
import { untilAborted } from '../../timeout.ts'
import { type Connection, dialledConnection, givenConnection, loadClient } from './connection.ts'
import { BINDINGS, encode, type Envelope, usableEnvelope, withoutNames } from './envelope.ts'
import {
  probeTarget,
  publishEach,
  refuse,
  type Target,
  targetAt,
  unavailable,
  usableUrl,
  wholeNumber,
} from './publishing.ts'

/** What is used of a client of the package `redis`: a client, a pool or a cluster. */
export interface RedisStreams {
  readonly isReady?: boolean
  readonly isOpen?: boolean
  xAdd(
    key: string,
    id: string,
    message: Record<string, string>,
    options?: { TRIM?: { strategy: 'MAXLEN'; strategyModifier: '~'; threshold: number } },
  ): Promise<unknown>
  ping?(): Promise<unknown>
}

export interface RedisPublisherOptions {
  /** `redis://127.0.0.1:6379` or `rediss://…` */
  readonly url?: string
  /** More for the client: credentials, TLS. */
  readonly connect?: Omit<RedisClientOptions, 'url' | 'disableOfflineQueue'>
  /** A connected client you have already: the publisher never closes it. */
  readonly client?: RedisStreams
  /** The stream, or where an event goes. Default `leasehold`: with its type, a producer could choose any key. */
  readonly stream?: string | ((event: OutboxEvent) => string)
  /** About how many entries a stream keeps (`MAXLEN ~`). Default: all. */
  readonly maxLength?: number
  readonly envelope?: Envelope
  /** How long the replies of a batch may take. Default 5000. */
  readonly timeoutMs?: number
  /** Default 5000. */
  readonly connectTimeoutMs?: number
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
}

const OPTION_NAMES = namesOf<RedisPublisherOptions>({
  url: true,
  connect: true,
  client: true,
  stream: true,
  maxLength: true,
  envelope: true,
  timeoutMs: true,
  connectTimeoutMs: true,
  maxBatch: true,
})

/** Error replies that concern the server and not the event: full, loading, failing over, unable to write. */
const SERVER_UNAVAILABLE_REPLIES = new Set([
  'OOM',
  'LOADING',
  'BUSY',
  'READONLY',
  'MASTERDOWN',
  'CLUSTERDOWN',
  'TRYAGAIN',
  'MISCONF',
  'NOREPLICAS',
  'NOAUTH',
])

/** For rediss:, whatever NODE_TLS_REJECT_UNAUTHORIZED says. The client types it with `tls: true` only, which the URL sets. */
const VERIFIED = { rejectUnauthorized: true }

/** The field of the body. A header of an event must not be taken for it. */
const RESERVED = /^payload$/i

/** Publishes to a stream of Redis. An event is published when the stream has it. */
export function redisPublisher(options: RedisPublisherOptions): Publisher {
  refuseUnknownOptions('redisPublisher', options, OPTION_NAMES)
  const envelope = usableEnvelope('redis', options.envelope)
  const timeoutMs = wholeNumber('redis', 'timeoutMs', options.timeoutMs ?? 5_000)
  const maxBatch = wholeNumber('redis', 'maxBatch', options.maxBatch ?? 100)
  const { maxLength, stream = 'leasehold' } = options
  if (maxLength !== undefined) wholeNumber('redis', 'maxLength', maxLength)
  if (stream === '') refuse('redis', 'stream', stream, 'Give the name of a stream.')
  const streamOf = typeof stream === 'function' ? stream : () => stream
  const threshold = maxLength ?? 0
  const trim = { TRIM: { strategy: 'MAXLEN', strategyModifier: '~', threshold } } as const
  const connection = redisConnection(options)
  const target = options.url === undefined ? 'redis' : targetAt('redis', new URL(options.url))

  async function send(client: RedisStreams, event: OutboxEvent): Promise<void> {
    const { body, contentType, headers } = encode(event, envelope, BINDINGS.plain)
    const entry = { ...withoutNames(headers, RESERVED), 'content-type': contentType, payload: body }
    try {
      await client.xAdd(streamOf(event), '*', entry, maxLength === undefined ? undefined : trim)
    } catch (error) {
      throw classified(error, target, streamOf(event))
    }
  }

  return {
    name: 'redis',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      const client = await untilAborted(signal, async () => connection.get()).catch((error: unknown) => {
        throw signal.aborted ? error : unavailable(target, 'cannot connect', error)
      })
      // A client with an offline queue would send the events later, when another relay may hold their leases.
      if (client.isReady === false) throw unavailable(target, 'has lost its connection')
      return publishEach(events, {
        signal,
        timeoutMs,
        send: async (event) => send(client, event),
        unansweredError: async () => {
          connection.drop()
          return unavailable(target, `had no reply within ${timeoutMs} ms`)
        },
      })
    },
    async probe(signal) {
      await probeTarget(target, signal, async () => {
        const client = await connection.get()
        if (client.isReady === false) throw unavailable(target, 'has lost its connection')
        await client.ping?.()
      })
    },
    close: async () => connection.close(),
  }
}

/** A key that is no stream (WRONGTYPE) is a retry and not dead: an operator can correct it. */
function classified(error: unknown, target: Target, stream: string): unknown {
  if (!(error instanceof Error)) return error
  // The client cannot encode it, now or ever.
  if (error instanceof TypeError) return new PermanentError(`it cannot be sent: ${error.message}`)
  const [word = ''] = error.message.split(' ', 1)
  const isReply = /^[A-Z]+$/.test(word)
  if (!isReply) return unavailable(target, 'lost its connection', error)
  if (SERVER_UNAVAILABLE_REPLIES.has(word)) return unavailable(target, 'was refused', error)
  return new Error(`the stream '${stream}' refused it: ${error.message}`)
}

function redisConnection(options: RedisPublisherOptions): Connection<RedisStreams> {
  const { url, client: given, connect } = options
  if (given !== undefined) return givenConnection(async () => given)
  if (url === undefined) refuse('redis', 'url', undefined, 'Give either url or client.')
  usableUrl('redis', url, ['redis:', 'rediss:'])
  const connectTimeoutMs = wholeNumber('redis', 'connectTimeoutMs', options.connectTimeoutMs ?? 5_000)
  return dialledConnection(async () => {
    const { createClient } = await loadClient('redis', 'redis', async () => import('redis'))
    const client = createClient({
      ...connect,
      url,
      disableOfflineQueue: true,
      // Without reconnecting, commands in flight are rejected at once, and the next batch connects anew.
      socket: {
        ...VERIFIED,
        ...connect?.socket,
        connectTimeout: connectTimeoutMs,
        reconnectStrategy: false,
      },
    })
    // Without a listener an error of the connection would end the process. The commands in flight are rejected with it.
    client.on('error', () => {})
    await client.connect()
    return {
      client,
      isOpen: () => client.isReady,
      close: async () => {
        await client.close()
      },
      destroy: () => {
        if (client.isOpen) client.destroy()
      },
    }
  }, connectTimeoutMs)
}
