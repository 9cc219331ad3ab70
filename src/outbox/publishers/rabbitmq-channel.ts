import type { Duplex } from 'node:stream'

import type { ChannelModel, ConfirmChannel, Message } from 'amqplib'

import { type Connection, dialledConnection } from './connection.ts'
import { loadClient } from './load-client.ts'
import { unavailable } from './unavailable.ts'

/** What is needed of a connection you have already; one that recovers by itself fits too. */
export type RabbitConnection = Pick<ChannelModel, 'createConfirmChannel'> & {
  on(event: string, listener: (reason: string) => void): unknown
  off(event: string, listener: (reason: string) => void): unknown
}

/** A confirm channel, and what became of it. */
export interface RabbitChannel {
  readonly channel: ConfirmChannel
  /** Messages that came back because no queue wanted them, by message id; the acknowledgement follows. */
  readonly returned: Map<string, string>
  /** Why the server takes nothing at the moment, or the error with which it closed the channel. */
  trouble(): { readonly blocked?: string; readonly error?: Error } | undefined
  /** Round trip. */
  ping(): Promise<void>
}

export interface ChannelSettings {
  readonly exchange: string
  readonly connectTimeoutMs: number
}

const HEARTBEAT_S = 10

export function rabbitConnection(
  url: URL | undefined,
  given: RabbitConnection | undefined,
  settings: ChannelSettings,
): Connection<RabbitChannel> {
  if (given !== undefined) return onGivenConnection(given, settings)
  return dialledConnection(async () => {
    const amqp = await loadClient('rabbitmq', 'amqplib', async () => import('amqplib'))
    const address = new URL(url ?? '')
    if (!address.searchParams.has('heartbeat')) address.searchParams.set('heartbeat', String(HEARTBEAT_S))
    const model = await amqp.connect(address.href, { timeout: settings.connectTimeoutMs, noDelay: true })
    // Without a listener an error of the connection would end the process; the channel closes with it.
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

/** The channel is ours, the connection is not. */
function onGivenConnection(given: RabbitConnection, settings: ChannelSettings): Connection<RabbitChannel> {
  const channels = dialledConnection(async () => {
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
  return channels
}

async function openChannel(model: RabbitConnection, { exchange }: ChannelSettings) {
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
    // The declarations know the fields of a delivery only; a return has the reason in this one.
    const reason = 'replyText' in fields ? String(fields.replyText) : 'no route'
    returned.set(String(properties.messageId), reason)
  })
  // Publishing to an exchange that is not there closes the channel with all that is in flight: look first.
  if (exchange !== '') {
    try {
      await channel.checkExchange(exchange)
    } catch (cause) {
      throw unavailable('rabbitmq', `finds no exchange '${exchange}'; declare it`, cause)
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
      // Asks for a passive look at what every server has.
      await channel.checkExchange('amq.direct')
    },
  }
  return { state, isOpen: () => open, release }
}

async function closeQuietly(channel: ConfirmChannel): Promise<void> {
  try {
    await channel.close()
  } catch {
    // It was closed already.
  }
}

/** There is no call that ends a connection whose other side is silent; closing its socket does. */
function destroy(model: ChannelModel): void {
  // The declarations leave it out, and every version has it.
  const { stream } = model.connection as { stream?: Duplex }
  stream?.destroy()
}
