/** Events to an exchange of RabbitMQ, persistent, mandatory and confirmed. */
import type { OutboxEvent } from '../event.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { PermanentError, type SaturatedError } from '../../worker/completion/outcome.ts'
import { BINDINGS, encode, type Envelope, usableEnvelope } from './cloudevents.ts'
import { refuse, usableUrl, wholeNumber } from './options.ts'
import { publishEach } from './publish-each.ts'
import { untilAborted } from '../../worker/waiting.ts'
import { rabbitConnection, type RabbitChannel, type RabbitConnection } from './rabbitmq-channel.ts'
import { unavailable } from './unavailable.ts'

export type { RabbitConnection } from './rabbitmq-channel.ts'

export interface RabbitPublisherOptions {
  /** `amqp://user:password@127.0.0.1:5672` or `amqps://…` */
  readonly url?: string
  /** A connection you have already: the publisher opens a channel on it and never closes it. */
  readonly connection?: RabbitConnection
  /** The exchange, which must exist. `''` is the default exchange: the routing key is then the name of a queue. */
  readonly exchange: string
  /** Default: the type of the event. */
  readonly routingKey?: (event: OutboxEvent) => string
  readonly envelope?: Envelope
  /** How long the confirms of a batch may take. Default 10000. */
  readonly timeoutMs?: number
  /** Default 5000. */
  readonly connectTimeoutMs?: number
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
}

const LONGEST_SHORT_STRING = 255
/** Headers that RabbitMQ reads as further routing keys, and closes the channel over when they are text. */
const STEERING = /^b?cc$/i
/** Replies with which the server closes a channel over its configuration, not over a message. */
const OF_THE_CONFIGURATION = new Set([403, 404])

export function rabbitPublisher(options: RabbitPublisherOptions): Publisher {
  const envelope = usableEnvelope('rabbitmq', options.envelope)
  const timeoutMs = wholeNumber('rabbitmq', 'timeoutMs', options.timeoutMs ?? 10_000)
  const connectTimeoutMs = wholeNumber('rabbitmq', 'connectTimeoutMs', options.connectTimeoutMs ?? 5_000)
  const maxBatch = wholeNumber('rabbitmq', 'maxBatch', options.maxBatch ?? 100)
  const { exchange, url, connection: given, routingKey = (event: OutboxEvent) => event.type } = options
  if ((url === undefined) === (given === undefined)) {
    refuse('rabbitmq', 'url', undefined, 'Give either url or connection.')
  }
  const address = url === undefined ? undefined : usableUrl('rabbitmq', url, ['amqp:', 'amqps:'])
  const connection = rabbitConnection(address, given, { exchange, connectTimeoutMs })

  async function send(state: RabbitChannel, event: OutboxEvent): Promise<void> {
    const key = routingKey(event)
    if (Buffer.byteLength(key) > LONGEST_SHORT_STRING) {
      throw new PermanentError(`its routing key is longer than the ${LONGEST_SHORT_STRING} bytes of AMQP`)
    }
    const { body, contentType, headers } = encode(event, envelope, BINDINGS.amqp)
    for (const name of Object.keys(headers)) {
      if (Buffer.byteLength(name) > LONGEST_SHORT_STRING) {
        throw new PermanentError(`AMQP cannot carry a header named '${name.slice(0, 40)}…'`)
      }
    }
    const content = {
      persistent: true,
      mandatory: true,
      messageId: event.eventId,
      contentType,
      contentEncoding: 'utf-8',
      timestamp: Math.floor(event.createdAt.getTime() / 1_000),
      headers: Object.fromEntries(Object.entries(headers).filter(([name]) => !STEERING.test(name))),
    }
    const error = await new Promise<unknown>((resolve) => {
      state.channel.publish(exchange, key, Buffer.from(body), content, resolve)
    }).catch((thrown: unknown) => thrown)
    // A message that comes back does so before its confirm.
    const reason = state.returned.get(event.eventId)
    state.returned.delete(event.eventId)
    if (error !== null) throw meaningOf(error, state)
    if (reason !== undefined) {
      throw new Error(`no queue of the exchange '${exchange}' takes the routing key '${key}' (${reason})`)
    }
  }

  return {
    name: 'rabbitmq',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      const state = await untilAborted(signal, async () => connection.get()).catch((error: unknown) => {
        throw signal.aborted ? error : unavailable('rabbitmq', 'cannot connect', error)
      })
      const blocked = blockedBy(state)
      if (blocked !== undefined) throw blocked
      return publishEach(events, {
        signal,
        timeoutMs,
        send: async (event) => send(state, event),
        silence: async () => {
          const blocked = blockedBy(state)
          if (blocked !== undefined) return blocked
          connection.drop()
          return unavailable('rabbitmq', `had no confirm within ${timeoutMs} ms`)
        },
      })
    },
    async probe(signal) {
      await untilAborted(signal, async () => {
        const state = await connection.get()
        const blocked = blockedBy(state)
        if (blocked !== undefined) throw blocked
        await state.ping()
      })
    },
    close: async () => connection.close(),
  }
}

/** The server is out of memory or disk and reads nothing from connections that publish. */
function blockedBy(state: RabbitChannel): SaturatedError | undefined {
  const blocked = state.trouble()?.blocked
  return blocked === undefined ? undefined : unavailable('rabbitmq', `is blocked by the server: ${blocked}`)
}

function meaningOf(error: unknown, state: RabbitChannel): unknown {
  if (!(error instanceof Error)) return error
  if (error.message === 'message nacked') return new Error('the server refused it (nack)')
  if (error instanceof RangeError || error instanceof TypeError) return new PermanentError(error.message)
  const closedBy = state.trouble()?.error
  if (closedBy === undefined) return unavailable('rabbitmq', 'lost its connection', error)
  const code = 'code' in closedBy ? Number(closedBy.code) : 0
  // One message can close the channel: to count it keeps such a message from doing so for ever.
  return OF_THE_CONFIGURATION.has(code) ? unavailable('rabbitmq', 'was refused', closedBy) : closedBy
}
