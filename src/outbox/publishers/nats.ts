/**
 * Events to a stream of NATS JetStream. The event id is the message id, so that the stream drops what it already has.
 */
import type { NatsConnection, NodeConnectionOptions } from '@nats-io/transport-node'

import type { OutboxEvent } from '../event.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { within } from '../../postgres/deadline.ts'
import { PermanentError } from '../../worker/completion/outcome.ts'
import { BINDINGS, encode, type Envelope, usableEnvelope } from './cloudevents.ts'
import { headerText } from './header-text.ts'
import { natsConnection, type NatsLink } from './nats-link.ts'
import { refuse, wholeNumber } from './options.ts'
import { publishEach } from './publish-each.ts'
import { untilAborted } from '../../worker/waiting.ts'
import { unavailable } from './unavailable.ts'

export interface NatsPublisherOptions {
  /** What the client connects with: `{ servers: 'nats://127.0.0.1:4222' }`, credentials, TLS. */
  readonly connect?: Omit<NodeConnectionOptions, 'reconnect' | 'timeout'>
  /** A connection you have already: the publisher never closes it. */
  readonly connection?: NatsConnection
  /** Where an event goes. Default: its type, behind `prefix`. A stream must listen there. */
  readonly subject?: (event: OutboxEvent) => string
  /** Put in front of the type: `events.` makes `events.order.paid` of `order.paid`. Default: nothing. */
  readonly prefix?: string
  readonly envelope?: Envelope
  /** How long the acknowledgements of a batch may take. Default 5000. */
  readonly timeoutMs?: number
  /** Default 5000. */
  readonly connectTimeoutMs?: number
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
}

/** Not those by which NATS itself is commanded (`$JS.API…`) or answered: an event's type must not reach them. */
const SUBJECT = /^(?!\$|_INBOX\.)[^\s.*>]+(?:\.[^\s.*>]+)*$/
/** The server takes 4 KB for the whole line; a longer one ends the connection. */
const LONGEST_SUBJECT = 2_000
/** Headers by which a message steers the stream: roll it up, expect a sequence. They are not the producer's to set. */
const RESERVED = /^nats-/i
const MESSAGE_TOO_LARGE = 10_054
const NO_ROOM_OR_NO_LEADER = 503
const PING_MS = 2_000

export function natsPublisher(options: NatsPublisherOptions): Publisher {
  const envelope = usableEnvelope('nats', options.envelope)
  const timeoutMs = wholeNumber('nats', 'timeoutMs', options.timeoutMs ?? 5_000)
  const connectTimeoutMs = wholeNumber('nats', 'connectTimeoutMs', options.connectTimeoutMs ?? 5_000)
  const maxBatch = wholeNumber('nats', 'maxBatch', options.maxBatch ?? 100)
  if ((options.connect === undefined) === (options.connection === undefined)) {
    refuse('nats', 'connect', undefined, 'Give either connect or connection.')
  }
  const { prefix = '', subject: chosen } = options
  const subjectOf = chosen ?? ((event: OutboxEvent) => `${prefix}${event.type}`)
  const connection = natsConnection(options.connect, options.connection, connectTimeoutMs)

  async function send(link: NatsLink, event: OutboxEvent): Promise<void> {
    const subject = subjectOf(event)
    if (!SUBJECT.test(subject) || Buffer.byteLength(subject) > LONGEST_SUBJECT)
      throw new PermanentError(`${JSON.stringify(subject.slice(0, 200))} is no subject for an event in NATS`)
    const { body, contentType, headers } = encode(event, envelope, BINDINGS.nats)
    const carried = link.headers()
    for (const [name, value] of Object.entries(headerText('nats', headers, RESERVED)))
      carried.set(name, value)
    carried.set('content-type', contentType)
    const losses = link.losses()
    try {
      // A duplicate is acknowledged like a new one: the stream has the event.
      const { stream, seq } = await link.stream.publish(subject, body, {
        msgID: event.eventId,
        headers: carried,
        timeout: timeoutMs + PING_MS,
      })
      if (typeof stream !== 'string' || typeof seq !== 'number')
        throw new Error(`what answered on the subject '${subject}' is no stream`)
    } catch (error) {
      throw await meaningOf(error, subject, link, losses)
    }
  }

  return {
    name: 'nats',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      const link = await untilAborted(signal, async () => connection.get()).catch((error: unknown) => {
        throw signal.aborted ? error : unavailable('nats', 'cannot connect', error)
      })
      if (!link.isUp()) throw unavailable('nats', 'has lost its connection')
      return publishEach(events, {
        signal,
        timeoutMs,
        send: async (event) => send(link, event),
        silence: async () => {
          if (await answers(link)) {
            return new Error(`no acknowledgement from the stream within ${timeoutMs} ms; has it no_ack set?`)
          }
          connection.drop()
          return unavailable('nats', `had no answer within ${timeoutMs} ms`)
        },
      })
    },
    async probe(signal) {
      await untilAborted(signal, async () => {
        const link = await connection.get()
        if (!link.isUp()) throw unavailable('nats', 'has lost its connection')
        await link.connection.flush()
      })
    },
    close: async () => connection.close(),
  }
}

async function answers(link: NatsLink): Promise<boolean> {
  const answered = link.connection.flush().then(
    () => true,
    () => false,
  )
  return (await within(PING_MS, answered)) && answered
}

/** The classes of the client may come from another copy of it than ours, so that errors are known by their names. */
async function meaningOf(error: unknown, subject: string, link: NatsLink, losses: number): Promise<unknown> {
  if (!(error instanceof Error)) return error
  // The client takes it for a sign of something else.
  if (hasName(error, 'JetStreamNotEnabled') || hasName(error, 'NoRespondersError'))
    return missingStream(subject, link)
  if (!link.isUp() || link.losses() !== losses) return unavailable('nats', 'lost its connection', error)
  const permanent = hasName(error, 'InvalidArgumentError')
  if (permanent || codeOf(error, 'code') === MESSAGE_TOO_LARGE) return new PermanentError(error.message)
  if (codeOf(error, 'status') !== NO_ROOM_OR_NO_LEADER) return error
  return unavailable('nats', `was refused by the stream of '${subject}'`, error)
}

/** Nobody listens on the subject: no stream has it, or the one that has it is not up yet. */
async function missingStream(subject: string, link: NatsLink): Promise<Error> {
  try {
    const manager = await link.manager()
    const stream = await manager.streams.find(subject)
    return unavailable('nats', `cannot reach the stream '${stream}' yet`)
  } catch (error) {
    if (error instanceof Error && error.name === 'StreamNotFoundError') {
      return new Error(`no stream of NATS listens on the subject '${subject}'`)
    }
    return unavailable('nats', 'cannot reach JetStream', error)
  }
}

function hasName(error: unknown, name: string): boolean {
  return error instanceof Error && (error.name === name || hasName(error.cause, name))
}

function codeOf(error: object, field: 'code' | 'status'): unknown {
  return field in error ? Reflect.get(error, field) : undefined
}
