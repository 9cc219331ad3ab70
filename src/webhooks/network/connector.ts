/**
 * How undici's agent connects: a judged socket, and TLS on top of it that verifies the name of the URL. Name and SNI
 * stay what they were; only the address is ours. Counts what is open, so that the poster keeps no more than it may.
 */
import type { Socket } from 'node:net'
import type { TLSSocket } from 'node:tls'

import { buildConnector } from 'undici'

import { deadline } from '../../postgres/deadline.ts'
import { messageOf, NetworkFailure } from './failure.ts'
import { type Destination, type Open, unlessAborted } from './open.ts'

export interface TlsOptions {
  /** Certificates to trust instead of those that Node brings: of a private authority. */
  readonly ca?: string | readonly string[]
}

export interface ConnectorOptions {
  readonly open: Open
  readonly connectTimeoutMs: number
  readonly tls?: TlsOptions
}

export interface Connector {
  /** For the `connect` option of an agent. */
  readonly connect: buildConnector.connector
  /** Connections that are open now or on their way, idle ones included. */
  opened(origin?: string): number
  /** Gives up every connection that is on its way. */
  close(): void
}

type Asked = buildConnector.Options

export function createConnector({ open, connectTimeoutMs, tls = {} }: ConnectorOptions): Connector {
  const { ca } = tls
  const secureConnect = buildConnector({ timeout: 0, ...(ca === undefined ? {} : { ca: [ca].flat() }) })
  const underway = new Set<AbortController>()
  const openSockets = new Map<string, number>()
  let total = 0

  async function secured(raw: Socket, asked: Asked, signal: AbortSignal): Promise<Socket | TLSSocket> {
    const handshake = new Promise<Socket | TLSSocket>((resolve, reject) => {
      secureConnect({ ...asked, httpSocket: raw }, (error, socket) => {
        if (error === null) resolve(socket)
        else reject(error)
      })
    })
    try {
      return await unlessAborted(signal, handshake)
    } catch (error) {
      raw.destroy()
      signal.throwIfAborted()
      throw new NetworkFailure('tls', `no TLS with ${asked.hostname}: ${messageOf(error)}`, error)
    }
  }

  async function connected(asked: Asked): Promise<Socket | TLSSocket> {
    const attempt = new AbortController()
    const { hostname } = asked
    const patience = deadline(connectTimeoutMs, () =>
      attempt.abort(
        new NetworkFailure('timeout', `no connection to ${hostname} within ${connectTimeoutMs} ms`),
      ),
    )
    underway.add(attempt)
    try {
      const raw = await open(destinationOf(asked), attempt.signal)
      return asked.protocol === 'https:' ? await secured(raw, asked, attempt.signal) : raw
    } finally {
      patience.cancel()
      underway.delete(attempt)
    }
  }

  function count(origin: string, change: 1 | -1): void {
    const left = (openSockets.get(origin) ?? 0) + change
    if (left > 0) openSockets.set(origin, left)
    else openSockets.delete(origin)
    total += change
  }

  async function handOver(asked: Asked, take: buildConnector.Callback): Promise<void> {
    const origin = `${asked.protocol}//${asked.host ?? asked.hostname}`
    // From its start: a burst would otherwise find nothing open yet, and keep all that it opens.
    count(origin, 1)
    let socket: Socket | TLSSocket
    try {
      socket = await connected(asked)
      if (socket.destroyed)
        throw new NetworkFailure('reset', `${asked.hostname} closed the connection at once`)
    } catch (error) {
      count(origin, -1)
      return take(error instanceof Error ? error : new Error(String(error)), null)
    }
    socket.once('close', () => count(origin, -1))
    return take(null, socket)
  }

  return {
    connect: (asked, take) => void handOver(asked, take),
    opened: (origin) => (origin === undefined ? total : (openSockets.get(origin) ?? 0)),
    close() {
      for (const attempt of underway) attempt.abort(new NetworkFailure('closed', 'the poster is closed'))
    },
  }
}

function destinationOf({ protocol, hostname, port }: Asked): Destination {
  const isHttps = protocol === 'https:'
  return {
    protocol: isHttps ? 'https:' : 'http:',
    host: hostname,
    port: port === '' ? (isHttps ? 443 : 80) : Number(port),
  }
}
