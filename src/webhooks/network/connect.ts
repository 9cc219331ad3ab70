/**
 * Opens connections to hosts that strangers chose. A name is resolved once, here. Every address in the answer must be
 * permitted, and the connection goes to one of those addresses, so a name that changes its meaning a moment later (DNS
 * rebinding) changes nothing. Through an egress proxy, the proxy resolves the name and must refuse internal addresses.
 */
import { constants } from 'node:crypto'
import { connect, isIPv6, Socket } from 'node:net'
import type { TLSSocket } from 'node:tls'

import { buildConnector, Client } from 'undici'

import { messageOf } from '../../errors.ts'
import { deadline, untilAborted } from '../../timeout.ts'
import { parseAddress } from './address.ts'
import { NetworkFailure } from './failure.ts'
import {
  type NetworkPolicy,
  type Protocol,
  proxyCredentials,
  reasonRefused,
  toldToTenants,
} from './policy.ts'
import type { Resolve } from './resolve.ts'

export interface Dialled {
  /** An address, never a name. */
  readonly address: string
  readonly family: 4 | 6
  readonly port: number
}

/** Begins to connect and returns the socket at once, as `net.connect` does. */
export type Dial = (to: Dialled) => Socket

export interface Destination {
  readonly protocol: Protocol
  /** A name or an address, without brackets. */
  readonly host: string
  readonly port: number
}

/** Opens a connected socket, before TLS. Once the signal fires it rejects, and no socket stays open. */
export type OpenSocket = (to: Destination, signal: AbortSignal) => Promise<Socket>

export interface DirectOptions {
  readonly policy: NetworkPolicy
  readonly resolve: Resolve
  readonly dial?: Dial
  /** For all addresses together. Each gets an equal part, so an unresponsive address leaves time for the next. */
  readonly connectTimeoutMs: number
}

/** A name can have hundreds of addresses. Trying them all would let an endpoint's owner scan other people's hosts. */
const MAX_ADDRESSES_TRIED = 4

const dialTcp: Dial = ({ address, family, port }) => connect({ host: address, family, port, noDelay: true })

export function openDirectly({
  policy,
  resolve,
  dial = dialTcp,
  connectTimeoutMs,
}: DirectOptions): OpenSocket {
  return async (to, signal) => {
    const addresses = await permittedAddresses(to, policy, resolve, signal)
    const timeoutMs = Math.max(1, Math.floor(connectTimeoutMs / addresses.length))
    let failure: unknown
    for (const address of addresses) {
      signal.throwIfAborted()
      try {
        const socket = dial({ address, family: isIPv6(address) ? 6 : 4, port: to.port })
        return checkPeer(await connected(socket, timeoutMs, signal), to, policy)
      } catch (error) {
        if (error instanceof NetworkFailure && error.failure === 'refusedAddress') throw error
        failure = error
      }
    }
    signal.throwIfAborted()
    if (failure instanceof NetworkFailure) throw failure
    throw new NetworkFailure('connect', `cannot connect to ${to.host}: ${withoutAddress(failure)}`, failure)
  }
}

/** A DNS answer with one refused address is refused whole: it is an attack or a mistake, and must not depend on luck. */
async function permittedAddresses(
  { host, protocol }: Destination,
  policy: NetworkPolicy,
  resolve: Resolve,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const isAddress = parseAddress(host) !== undefined
  const addresses = isAddress ? [host] : await resolveHost(host, resolve, signal)
  const permitted = addresses.map((address) => {
    const reason = reasonRefused(policy, address, protocol)
    // In the normalized form that was checked, so that the dialler cannot read it differently.
    if (reason === undefined) return parseAddress(address)?.toString() ?? address
    throw new NetworkFailure(
      'refusedAddress',
      isAddress ? `${host} is ${reason}` : `${host} resolves to an address that is ${toldToTenants(reason)}`,
    )
  })
  return [...new Set(permitted)].slice(0, MAX_ADDRESSES_TRIED)
}

async function resolveHost(host: string, resolve: Resolve, signal: AbortSignal): Promise<readonly string[]> {
  let addresses: readonly string[]
  try {
    addresses = await untilAborted(signal, async () => resolve(host, signal))
  } catch (error) {
    signal.throwIfAborted()
    throw new NetworkFailure('dns', `cannot resolve ${host}: ${messageOf(error)}`, error)
  }
  if (addresses.length === 0) throw new NetworkFailure('dns', `${host} has no address`)
  return addresses
}

/** The messages of Node contain the address, which may be that of an internal host or of the proxy. */
function withoutAddress(error: unknown): string {
  const isSystemError = error instanceof Error && 'syscall' in error && 'code' in error
  return isSystemError ? String(error.code) : messageOf(error)
}

/** Checks the address that the kernel reports for the connected socket, whatever the dialler was told. */
function checkPeer(socket: Socket, { host, protocol }: Destination, policy: NetworkPolicy): Socket {
  const { remoteAddress } = socket
  const reason = remoteAddress === undefined ? 'unknown' : reasonRefused(policy, remoteAddress, protocol)
  if (reason === undefined) return socket
  socket.destroy()
  throw new NetworkFailure(
    'refusedAddress',
    `${host} was connected to an address that is ${toldToTenants(reason)}`,
  )
}

async function connected(socket: Socket, timeoutMs: number, signal: AbortSignal): Promise<Socket> {
  // This listener stays: until the caller adds its own, an error of the socket would end the process.
  socket.on('error', () => {})
  const abort = (): void => {
    socket.destroy(new Error('given up'))
  }
  const timeout = deadline(timeoutMs, () =>
    socket.destroy(new NetworkFailure('timeout', `no connection in ${timeoutMs} ms`)),
  )
  signal.addEventListener('abort', abort, { once: true })
  try {
    return await new Promise<Socket>((resolve, reject) => {
      socket.once('connect', () => resolve(socket))
      socket.once('error', reject)
      socket.once('close', () => reject(new Error('closed before it was connected')))
    })
  } finally {
    timeout.cancel()
    signal.removeEventListener('abort', abort)
  }
}

/** Opens CONNECT tunnels. The operator chose the proxy, so its own address is not checked. */
export function openThroughProxy(proxy: URL, connectTimeoutMs: number): OpenSocket {
  const credentials = proxyCredentials(proxy) ?? ''
  const authorization =
    proxy.username === ''
      ? {}
      : { 'proxy-authorization': `Basic ${Buffer.from(credentials).toString('base64')}` }
  return async ({ host, port }, signal) => {
    const authority = `${isIPv6(host) ? `[${host}]` : host}:${port}`
    // One client for each tunnel: the client's connection becomes the tunnel.
    const client = new Client(proxy.origin, {
      connect: { timeout: connectTimeoutMs, rejectUnauthorized: true },
      headersTimeout: 0,
    })
    try {
      const headers = { host: authority, ...authorization }
      // undici ignores the signal until it is connected to the proxy.
      const { socket, statusCode } = await untilAborted(signal, async () =>
        client.connect({ path: authority, headers, signal }),
      )
      socket.on('error', () => {})
      // undici types the tunnel as a Duplex; TLS needs a Socket.
      if (statusCode === 200 && socket instanceof Socket) return socket
      socket.destroy()
      throw new NetworkFailure('proxy', `the proxy answered HTTP ${statusCode} for ${host}`)
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof NetworkFailure) throw error
      throw new NetworkFailure('proxy', `no connection through the proxy: ${withoutAddress(error)}`, error)
    } finally {
      await client.destroy()
    }
  }
}

export interface TlsOptions {
  /** The certificates to trust instead of those that Node ships with: of a private certificate authority. */
  readonly ca?: string | readonly string[]
}

export interface ConnectorOptions {
  readonly open: OpenSocket
  readonly connectTimeoutMs: number
  readonly tls?: TlsOptions
}

export interface Connector {
  /** For the `connect` option of an undici agent. */
  readonly connect: buildConnector.connector
  /** How many connections are open or being opened, idle ones included: to this origin, or to all. */
  openConnections(origin?: string): number
  /** Gives up every connection that is being opened. */
  close(): void
}

type ConnectRequest = buildConnector.Options

/**
 * How undici's agent connects: a socket from `open`, and TLS on top of it that verifies the name in the URL. Host header,
 * SNI and certificate name are those of the URL; only the address is ours.
 */
export function createConnector({ open, connectTimeoutMs, tls = {} }: ConnectorOptions): Connector {
  const { ca } = tls
  const secureConnect = buildConnector({
    timeout: 0,
    // Whatever NODE_TLS_REJECT_UNAUTHORIZED says.
    rejectUnauthorized: true,
    // A receiver could ask for one handshake after another, which costs processor time and no bytes that we count.
    secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
    ...(ca === undefined ? {} : { ca: [ca].flat() }),
  })
  const connecting = new Set<AbortController>()
  const openByOrigin = new Map<string, number>()
  let openInAll = 0

  async function startTls(
    raw: Socket,
    request: ConnectRequest,
    signal: AbortSignal,
  ): Promise<Socket | TLSSocket> {
    try {
      return await untilAborted(
        signal,
        async () =>
          new Promise<Socket | TLSSocket>((resolve, reject) => {
            secureConnect({ ...request, httpSocket: raw }, (error, socket) => {
              if (error === null) resolve(socket)
              else reject(error)
            })
          }),
      )
    } catch (error) {
      raw.destroy()
      signal.throwIfAborted()
      throw new NetworkFailure('tls', `no TLS with ${request.hostname}: ${messageOf(error)}`, error)
    }
  }

  async function openConnection(request: ConnectRequest): Promise<Socket | TLSSocket> {
    const attempt = new AbortController()
    const { hostname } = request
    const timeout = deadline(connectTimeoutMs, () =>
      attempt.abort(
        new NetworkFailure('timeout', `no connection to ${hostname} within ${connectTimeoutMs} ms`),
      ),
    )
    connecting.add(attempt)
    try {
      const raw = await open(destinationOf(request), attempt.signal)
      return request.protocol === 'https:' ? await startTls(raw, request, attempt.signal) : raw
    } finally {
      timeout.cancel()
      connecting.delete(attempt)
    }
  }

  function count(origin: string, change: 1 | -1): void {
    const now = (openByOrigin.get(origin) ?? 0) + change
    if (now > 0) openByOrigin.set(origin, now)
    else openByOrigin.delete(origin)
    openInAll += change
  }

  async function connectFor(request: ConnectRequest, callback: buildConnector.Callback): Promise<void> {
    const origin = `${request.protocol}//${request.host ?? request.hostname}`
    // Counted from the start: otherwise a burst of requests would find nothing open yet and keep every connection.
    count(origin, 1)
    let socket: Socket | TLSSocket
    try {
      socket = await openConnection(request)
      if (socket.destroyed)
        throw new NetworkFailure('reset', `${request.hostname} closed the connection at once`)
    } catch (error) {
      count(origin, -1)
      return callback(error instanceof Error ? error : new Error(String(error)), null)
    }
    socket.once('close', () => count(origin, -1))
    return callback(null, socket)
  }

  return {
    connect: (request, callback) => void connectFor(request, callback),
    openConnections: (origin) => (origin === undefined ? openInAll : (openByOrigin.get(origin) ?? 0)),
    close() {
      for (const attempt of connecting) attempt.abort(new NetworkFailure('closed', 'the poster is closed'))
    },
  }
}

function destinationOf({ protocol, hostname, port }: ConnectRequest): Destination {
  const isHttps = protocol === 'https:'
  return {
    protocol: isHttps ? 'https:' : 'http:',
    host: hostname,
    port: port === '' ? (isHttps ? 443 : 80) : Number(port),
  }
}
