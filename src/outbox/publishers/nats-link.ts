import type { JetStreamClient, JetStreamManager } from '@nats-io/jetstream'
import type { MsgHdrs, NatsConnection, NodeConnectionOptions } from '@nats-io/transport-node'

import { type Connection, dialledConnection, givenConnection } from './connection.ts'
import { loadClient } from './load-client.ts'

/** What is needed of a connection, and of the client that made it. */
export interface NatsLink {
  readonly connection: NatsConnection
  readonly stream: JetStreamClient
  /** Looks for streams; nothing is asked of the server to make it. */
  manager(): Promise<JetStreamManager>
  headers(): MsgHdrs
  /** Grows with every loss of the connection: what was sent before may never be answered. */
  readonly losses: () => number
  readonly isUp: () => boolean
}

const PACKAGES = '@nats-io/transport-node @nats-io/jetstream'
const PING_MS = 10_000

export function natsConnection(
  own: Omit<NodeConnectionOptions, 'reconnect' | 'timeout'> | undefined,
  given: NatsConnection | undefined,
  connectTimeoutMs: number,
): Connection<NatsLink> {
  if (given !== undefined) return givenConnection(async () => linkTo(given))
  return dialledConnection(async () => {
    const { connect } = await loadTransport()
    const connection = await connect({
      name: 'leasehold',
      pingInterval: PING_MS,
      // One line for each request in flight, for a trace that nobody reads.
      noAsyncTraces: true,
      ...own,
      timeout: connectTimeoutMs,
      // The client would keep what was sent meanwhile and send it later, when the event may be another relay's.
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
  // Ends with the connection.
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
