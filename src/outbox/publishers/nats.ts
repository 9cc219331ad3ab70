/**
 * Events to a stream of NATS JetStream. The event id is the message id, so that the stream drops what it already has.
 */
import type { JetStreamClient, JetStreamManager } from '@nats-io/jetstream'
import type { MsgHdrs, NatsConnection, NodeConnectionOptions } from '@nats-io/transport-node'

import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { untilAborted, within } from '../../timeout.ts'
import { PermanentError } from '../../worker/completion/outcome.ts'
import type { OutboxEvent } from '../event.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { type Connection, dialledConnection, givenConnection, loadClient } from './connection.ts'
import { BINDINGS, encode, type Envelope, headerText, usableEnvelope } from './envelope.ts'
import {
  probeTarget,
  publishEach,
  refuse,
  type Target,
  targetAt,
  unavailable,
  wholeNumber,
} from './publishing.ts'

export interface NatsPublisherOptions {
  /** What the client connects with: `{ servers: 'nats://127.0.0.1:4222' }`, credentials, TLS. */
  readonly connect?: Omit<NodeConnectionOptions, 'reconnect' | 'timeout'>
  /** A connection you have already: the publisher never closes it. */
  readonly connection?: NatsConnection
  /** The subject of an event. Default: its type, prefixed with `prefix`. A stream must listen on it. */
  readonly subject?: (event: OutboxEvent) => string
  /** Prefix of the type: `events.` makes `events.order.paid` of `order.paid`. Default `leasehold.`. */
  readonly prefix?: string
  readonly envelope?: Envelope
  /** How long the acknowledgements of a batch may take. Default 5000. */
  readonly timeoutMs?: number
  /** Default 5000. */
  readonly connectTimeoutMs?: number
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
}

const OPTION_NAMES = namesOf<NatsPublisherOptions>({
  connect: true,
  connection: true,
  subject: true,
  prefix: true,
  envelope: true,
  timeoutMs: true,
  connectTimeoutMs: true,
  maxBatch: true,
})

/** Excludes the subjects of NATS' own API (`$JS.API…`) and of replies: an event's type must not address them. */
const SUBJECT = /^(?!\$|_INBOX\.)[^\s.*>]+(?:\.[^\s.*>]+)*$/
/** The server closes the connection over a protocol line of more than 4 KB. */
const MAX_SUBJECT_BYTES = 2_000
/** Headers that control the stream (roll-up, expected sequence). An event must not set them. */
const RESERVED = /^nats-/i
const MESSAGE_TOO_LARGE = 10_054
const NO_ROOM_OR_NO_LEADER = 503
/** How long the server may take to answer a ping before the connection counts as lost. */
const PING_TIMEOUT_MS = 2_000

/** Publishes to a stream of NATS JetStream. An event is published when the stream has acknowledged it. */
export function natsPublisher(options: NatsPublisherOptions): Publisher {
  refuseUnknownOptions('natsPublisher', options, OPTION_NAMES)
  const envelope = usableEnvelope('nats', options.envelope)
  const timeoutMs = wholeNumber('nats', 'timeoutMs', options.timeoutMs ?? 5_000)
  const connectTimeoutMs = wholeNumber('nats', 'connectTimeoutMs', options.connectTimeoutMs ?? 5_000)
  const maxBatch = wholeNumber('nats', 'maxBatch', options.maxBatch ?? 100)
  if ((options.connect === undefined) === (options.connection === undefined)) {
    refuse('nats', 'connect', undefined, 'Give either connect or connection.')
  }
  const { prefix = 'leasehold.', subject: chosen } = options
  const subjectOf = chosen ?? ((event: OutboxEvent) => `${prefix}${event.type}`)
  const { port = 4_222, servers = `127.0.0.1:${port}` } = options.connect ?? {}
  const target = options.connect === undefined ? 'nats' : targetAt('nats', ...[servers].flat())
  const connection = natsConnection(options.connect, options.connection, connectTimeoutMs)

  async function send(link: NatsLink, event: OutboxEvent): Promise<void> {
    const subject = subjectOf(event)
    if (!SUBJECT.test(subject) || Buffer.byteLength(subject) > MAX_SUBJECT_BYTES)
      throw new PermanentError(`${JSON.stringify(subject.slice(0, 200))} is no subject for an event in NATS`)
    const { body, contentType, headers } = encode(event, envelope, BINDINGS.nats)
    const carried = link.headers()
    for (const [name, value] of Object.entries(headerText('nats', headers, RESERVED)))
      carried.set(name, value)
    carried.set('content-type', contentType)
    const losses = link.losses()
    try {
      // The stream acknowledges a duplicate like a new message: it has the event.
      const { stream, seq } = await link.stream.publish(subject, body, {
        msgID: event.eventId,
        headers: carried,
        timeout: timeoutMs + PING_TIMEOUT_MS,
      })
      if (typeof stream !== 'string' || typeof seq !== 'number')
        throw new Error(`what answered on the subject '${subject}' is no stream`)
    } catch (error) {
      throw await classified(error, target, subject, link, losses)
    }
  }

  return {
    name: 'nats',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      const link = await untilAborted(signal, async () => connection.get()).catch((error: unknown) => {
        throw signal.aborted ? error : unavailable(target, 'cannot connect', error)
      })
      if (!link.isUp()) throw unavailable(target, 'has lost its connection')
      return publishEach(events, {
        signal,
        timeoutMs,
        send: async (event) => send(link, event),
        unansweredError: async () => {
          if (await answersPing(link)) {
            return new Error(`no acknowledgement from the stream within ${timeoutMs} ms; has it no_ack set?`)
          }
          connection.drop()
          return unavailable(target, `had no answer within ${timeoutMs} ms`)
        },
      })
    },
    async probe(signal) {
      await probeTarget(target, signal, async () => {
        const link = await connection.get()
        if (!link.isUp()) throw unavailable(target, 'has lost its connection')
        await link.connection.flush()
      })
    },
    close: async () => connection.close(),
  }
}

async function answersPing(link: NatsLink): Promise<boolean> {
  const answered = link.connection.flush().then(
    () => true,
    () => false,
  )
  return (await within(PING_TIMEOUT_MS, answered)) && answered
}

/** Errors are recognised by their names: their classes may come from another copy of the client than ours. */
async function classified(
  error: unknown,
  target: Target,
  subject: string,
  link: NatsLink,
  losses: number,
): Promise<unknown> {
  if (!(error instanceof Error)) return error
  // With no responder, the client concludes that JetStream is not enabled. Usually no stream listens on the subject.
  if (hasName(error, 'JetStreamNotEnabled') || hasName(error, 'NoRespondersError'))
    return missingStream(target, subject, link)
  if (!link.isUp() || link.losses() !== losses) return unavailable(target, 'lost its connection', error)
  const permanent = hasName(error, 'InvalidArgumentError')
  if (permanent || codeOf(error, 'code') === MESSAGE_TOO_LARGE) return new PermanentError(error.message)
  if (codeOf(error, 'status') !== NO_ROOM_OR_NO_LEADER) return error
  return unavailable(target, `was refused by the stream of '${subject}'`, error)
}

/** There was no responder: either no stream has the subject, or its stream is not up yet. */
async function missingStream(target: Target, subject: string, link: NatsLink): Promise<Error> {
  try {
    const manager = await link.manager()
    const stream = await manager.streams.find(subject)
    return unavailable(target, `cannot reach the stream '${stream}' yet`)
  } catch (error) {
    if (error instanceof Error && error.name === 'StreamNotFoundError') {
      return new Error(`no stream of NATS listens on the subject '${subject}'`)
    }
    return unavailable(target, 'cannot reach JetStream', error)
  }
}

function hasName(error: unknown, name: string): boolean {
  return error instanceof Error && (error.name === name || hasName(error.cause, name))
}

function codeOf(error: object, field: 'code' | 'status'): unknown {
  return field in error ? Reflect.get(error, field) : undefined
}

/** What is used of a connection and of the client library. */
interface NatsLink {
  readonly connection: NatsConnection
  readonly stream: JetStreamClient
  /** Finds streams. Creating it sends nothing to the server. */
  manager(): Promise<JetStreamManager>
  headers(): MsgHdrs
  /** How often the connection was lost. What was sent before a loss may never be answered. */
  readonly losses: () => number
  readonly isUp: () => boolean
}

const PACKAGES = '@nats-io/transport-node @nats-io/jetstream'
const PING_INTERVAL_MS = 10_000

function natsConnection(
  own: Omit<NodeConnectionOptions, 'reconnect' | 'timeout'> | undefined,
  given: NatsConnection | undefined,
  connectTimeoutMs: number,
): Connection<NatsLink> {
  if (given !== undefined) return givenConnection(async () => linkTo(given))
  return dialledConnection(async () => {
    const { connect } = await loadTransport()
    const connection = await connect({
      name: 'leasehold',
      pingInterval: PING_INTERVAL_MS,
      // Otherwise the client captures a stack trace for each request in flight.
      noAsyncTraces: true,
      ...own,
      timeout: connectTimeoutMs,
      // A client that reconnects buffers messages and sends them later, when another relay may hold the lease.
      reconnect: false,
    })
    const link = await linkTo(connection)
    return {
      client: link,
      isOpen: () => !connection.isClosed(),
      close: async () => connection.drain(),
      destroy: () => void connection.close().catch(() => {}),
    }
  }, connectTimeoutMs)
}

async function loadTransport() {
  return loadClient('nats', PACKAGES, async () => import('@nats-io/transport-node'))
}

async function linkTo(connection: NatsConnection): Promise<NatsLink> {
  const { headers } = await loadTransport()
  const { jetstream, jetstreamManager } = await loadClient(
    'nats',
    PACKAGES,
    async () => import('@nats-io/jetstream'),
  )
  let losses = 0
  let isUp = true
  // This loop ends when the connection is closed.
  void (async () => {
    for await (const { type } of connection.status()) {
      if (type === 'disconnect') {
        losses += 1
        isUp = false
      }
      if (type === 'reconnect') isUp = true
    }
  })()
  return {
    connection,
    stream: jetstream(connection),
    manager: async () => jetstreamManager(connection, { checkAPI: false }),
    headers,
    losses: () => losses,
    isUp: () => isUp && !connection.isClosed(),
  }
}
