/** Events to an exchange of RabbitMQ, persistent, mandatory and confirmed. */
import type { OutboxEvent } from '../event.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { PermanentError, type SaturatedError } from '../../worker/completion/outcome.ts'
import { untilAborted } from '../../timeout.ts'

import type { ChannelModel, ConfirmChannel, Message } from 'amqplib'
import type { Duplex } from 'node:stream'
import { type Connection, dialledConnection, loadClient } from './connection.ts'
import { BINDINGS, encode, type Envelope, usableEnvelope } from './envelope.ts'
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

export interface RabbitPublisherOptions {
  /** `amqp://user:password@127.0.0.1:5672` or `amqps://…` */
  readonly url?: string
  /** A connection you have already: the publisher opens a channel on it and never closes it. */
  readonly connection?: RabbitConnection
  /** The exchange, which must exist. `''` is the default exchange: the routing key is then the name of a queue, and must be given. */
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

const OPTION_NAMES = namesOf<RabbitPublisherOptions>({
  url: true,
  connection: true,
  exchange: true,
  routingKey: true,
  envelope: true,
  timeoutMs: true,
  connectTimeoutMs: true,
  maxBatch: true,
})

/** The limit of a short string in AMQP. */
const MAX_SHORT_STRING_BYTES = 255
/** RabbitMQ reads these headers as further routing keys, and closes the channel if they are text. */
const ROUTING_HEADERS = /^b?cc$/i
/** Codes with which the server closes a channel because of its configuration, not because of a message. */
const CONFIGURATION_ERROR_CODES = new Set([403, 404])

/** Publishes to an exchange of RabbitMQ. An event is published when the server has confirmed it. */
export function rabbitPublisher(options: RabbitPublisherOptions): Publisher {
  refuseUnknownOptions('rabbitPublisher', options, OPTION_NAMES)
  const envelope = usableEnvelope('rabbitmq', options.envelope)
  const timeoutMs = wholeNumber('rabbitmq', 'timeoutMs', options.timeoutMs ?? 10_000)
  const connectTimeoutMs = wholeNumber('rabbitmq', 'connectTimeoutMs', options.connectTimeoutMs ?? 5_000)
  const maxBatch = wholeNumber('rabbitmq', 'maxBatch', options.maxBatch ?? 100)
  const { exchange, url, connection: given, routingKey = (event: OutboxEvent) => event.type } = options
  if ((url === undefined) === (given === undefined)) {
    refuse('rabbitmq', 'url', undefined, 'Give either url or connection.')
  }
  if (exchange === '' && options.routingKey === undefined) {
    refuse(
      'rabbitmq',
      'routingKey',
      undefined,
      "With the default exchange it is the name of a queue: give it, because a producer would choose any queue by an event's type.",
    )
  }
  const address = url === undefined ? undefined : usableUrl('rabbitmq', url, ['amqp:', 'amqps:'])
  const target = address === undefined ? 'rabbitmq' : targetAt('rabbitmq', address)
  const connection = rabbitConnection(address, given, { target, exchange, connectTimeoutMs })

  async function send(state: RabbitChannel, event: OutboxEvent): Promise<void> {
    const key = routingKey(event)
    if (Buffer.byteLength(key) > MAX_SHORT_STRING_BYTES) {
      throw new PermanentError(`its routing key is longer than the ${MAX_SHORT_STRING_BYTES} bytes of AMQP`)
    }
    const { body, contentType, headers } = encode(event, envelope, BINDINGS.amqp)
    for (const name of Object.keys(headers)) {
      if (Buffer.byteLength(name) > MAX_SHORT_STRING_BYTES) {
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
      headers: Object.fromEntries(Object.entries(headers).filter(([name]) => !ROUTING_HEADERS.test(name))),
    }
    const error = await new Promise<unknown>((resolve) => {
      state.channel.publish(exchange, key, Buffer.from(body), content, resolve)
    }).catch((thrown: unknown) => thrown)
    // A message that no queue takes is returned before it is confirmed.
    const reason = state.returned.get(event.eventId)
    state.returned.delete(event.eventId)
    if (error !== null) throw classified(error, target, state)
    if (reason !== undefined) {
      throw new Error(`no queue of the exchange '${exchange}' takes the routing key '${key}' (${reason})`)
    }
  }

  return {
    name: 'rabbitmq',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      const state = await untilAborted(signal, async () => connection.get()).catch((error: unknown) => {
        throw signal.aborted ? error : unavailable(target, 'cannot connect', error)
      })
      const blocked = blockedBy(state, target)
      if (blocked !== undefined) throw blocked
      return publishEach(events, {
        signal,
        timeoutMs,
        send: async (event) => send(state, event),
        unansweredError: async () => {
          const blocked = blockedBy(state, target)
          if (blocked !== undefined) return blocked
          connection.drop()
          return unavailable(target, `had no confirm within ${timeoutMs} ms`)
        },
      })
    },
    async probe(signal) {
      await probeTarget(target, signal, async () => {
        const state = await connection.get()
        const blocked = blockedBy(state, target)
        if (blocked !== undefined) throw blocked
        await state.ping()
      })
    },
    close: async () => connection.close(),
  }
}

/** A server that is short of memory or disk reads nothing from connections that publish. */
function blockedBy(state: RabbitChannel, target: Target): SaturatedError | undefined {
  const blocked = state.trouble()?.blocked
  return blocked === undefined ? undefined : unavailable(target, `is blocked by the server: ${blocked}`)
}

function classified(error: unknown, target: Target, state: RabbitChannel): unknown {
  if (!(error instanceof Error)) return error
  if (error.message === 'message nacked') return new Error('the server refused it (nack)')
  if (error instanceof RangeError || error instanceof TypeError) return new PermanentError(error.message)
  const closedBy = state.trouble()?.error
  if (closedBy === undefined) return unavailable(target, 'lost its connection', error)
  const code = 'code' in closedBy ? Number(closedBy.code) : 0
  // A single message can close the channel. Counting an attempt keeps such a message from doing so for ever.
  return CONFIGURATION_ERROR_CODES.has(code) ? unavailable(target, 'was refused', closedBy) : closedBy
}

/** What is used of a connection you have already; one that reconnects by itself works too. */
export type RabbitConnection = Pick<ChannelModel, 'createConfirmChannel'> & {
  on(event: string, listener: (reason: string) => void): unknown
  off(event: string, listener: (reason: string) => void): unknown
}

/** A confirm channel and its state. */
interface RabbitChannel {
  readonly channel: ConfirmChannel
  /** Messages that were returned because no queue takes them, by message id. Their confirms follow. */
  readonly returned: Map<string, string>
  /** Why the server accepts nothing at the moment, or the error with which it closed the channel. */
  trouble(): { readonly blocked?: string; readonly error?: Error } | undefined
  /** Round trip. */
  ping(): Promise<void>
}

interface ChannelSettings {
  readonly target: Target
  readonly exchange: string
  readonly connectTimeoutMs: number
}

const HEARTBEAT_SECONDS = 10

function rabbitConnection(
  url: URL | undefined,
  given: RabbitConnection | undefined,
  settings: ChannelSettings,
): Connection<RabbitChannel> {
  if (given !== undefined) return onGivenConnection(given, settings)
  return dialledConnection(async () => {
    const amqp = await loadClient('rabbitmq', 'amqplib', async () => import('amqplib'))
    const address = new URL(url ?? '')
    if (!address.searchParams.has('heartbeat'))
      address.searchParams.set('heartbeat', String(HEARTBEAT_SECONDS))
    const model = await amqp.connect(address.href, {
      timeout: settings.connectTimeoutMs,
      noDelay: true,
      rejectUnauthorized: true,
    })
    // Without a listener an error of the connection would end the process. The channel closes with it.
    model.on('error', () => {})
    try {
      const { state, isOpen } = await openChannel(model, settings)
      return {
        client: state,
        isOpen,
        close: async () => {
          await state.channel.waitForConfirms().catch(() => {})
          await model.close()
        },
        destroy: () => destroy(model),
      }
    } catch (error) {
      destroy(model)
      throw error
    }
  }, settings.connectTimeoutMs)
}

/** The publisher owns the channel, the user the connection. */
function onGivenConnection(given: RabbitConnection, settings: ChannelSettings): Connection<RabbitChannel> {
  return dialledConnection(async () => {
    const { state, isOpen, release } = await openChannel(given, settings)
    return {
      client: state,
      isOpen,
      close: async () => {
        release()
        await state.channel.waitForConfirms().catch(() => {})
        await state.channel.close()
      },
      destroy: () => {
        release()
        void closeQuietly(state.channel)
      },
    }
  }, settings.connectTimeoutMs)
}

async function openChannel(model: RabbitConnection, { target, exchange }: ChannelSettings) {
  const channel = await model.createConfirmChannel()
  let open = true
  let blocked: string | undefined
  let error: Error | undefined
  const returned = new Map<string, string>()
  const onBlocked = (reason: string): void => {
    blocked = reason
  }
  const onUnblocked = (): void => {
    blocked = undefined
  }
  const release = (): void => {
    model.off('blocked', onBlocked)
    model.off('unblocked', onUnblocked)
  }
  model.on('blocked', onBlocked)
  model.on('unblocked', onUnblocked)
  channel.on('error', (cause) => {
    error = cause
  })
  channel.on('close', () => {
    open = false
    release()
  })
  channel.on('return', ({ properties, fields }: Message) => {
    // The type declarations list only the fields of a delivery; a return has its reason in `replyText`.
    const reason = 'replyText' in fields ? String(fields.replyText) : 'no route'
    returned.set(String(properties.messageId), reason)
  })
  // Publishing to an exchange that does not exist closes the channel with everything in flight, so check first.
  if (exchange !== '') {
    try {
      await channel.checkExchange(exchange)
    } catch (cause) {
      throw unavailable(target, `finds no exchange '${exchange}'; declare it`, cause)
    }
  }
  const state: RabbitChannel = {
    channel,
    returned,
    trouble: () => {
      if (blocked !== undefined) return { blocked }
      return error === undefined ? undefined : { error }
    },
    ping: async () => {
      // A passive declaration of an exchange that every server has.
      await channel.checkExchange('amq.direct')
    },
  }
  return { state, isOpen: () => open, release }
}

async function closeQuietly(channel: ConfirmChannel): Promise<void> {
  try {
    await channel.close()
  } catch {
    // The channel was closed already.
  }
}

/** amqplib cannot end a connection whose other side does not answer; destroying its socket does. */
function destroy(model: ChannelModel): void {
  // Missing in the type declarations, and present in every version.
  const { stream } = model.connection as { stream?: Duplex }
  stream?.destroy()
}
