/**
 * A connection to a host, only ever to an address that was judged first. The name is resolved once, here, every
 * address of the answer must be permitted, and what is dialled is the address itself: whatever the name means a
 * moment later (DNS rebinding), nobody asks.
 */
import { connect, isIPv6, type Socket } from 'node:net'

import { deadline } from '../../postgres/deadline.ts'
import { parseAddress } from './address.ts'
import { messageOf, NetworkFailure } from './failure.ts'
import { type NetworkPolicy, type Protocol, reasonRefused } from './policy.ts'

/** The addresses of a name, all of them, in the order in which to try them. */
export type Resolve = (host: string, signal: AbortSignal) => Promise<readonly string[]>

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

/** A connected socket, before TLS. Rejects once the signal fires, and then leaves none behind. */
export type Open = (to: Destination, signal: AbortSignal) => Promise<Socket>

export interface DirectOptions {
  readonly policy: NetworkPolicy
  readonly resolve: Resolve
  readonly dial?: Dial
  /** For all addresses together; each has its share, so that one that swallows everything leaves time for the next. */
  readonly connectTimeoutMs: number
}

/** A name with hundreds of addresses would make us knock at the doors of strangers. */
const MOST_ADDRESSES = 4

export const dialTcp: Dial = ({ address, family, port }) =>
  connect({ host: address, family, port, noDelay: true })

export function openDirect({ policy, resolve, dial = dialTcp, connectTimeoutMs }: DirectOptions): Open {
  return async (to, signal) => {
    const addresses = await permittedAddresses(to, policy, resolve, signal)
    const shareMs = Math.max(1, Math.floor(connectTimeoutMs / addresses.length))
    let failure: unknown
    for (const address of addresses) {
      signal.throwIfAborted()
      try {
        const socket = dial({ address, family: isIPv6(address) ? 6 : 4, port: to.port })
        return checked(await dialled(socket, shareMs, signal), to, policy)
      } catch (error) {
        if (error instanceof NetworkFailure && error.failure === 'refusedAddress') throw error
        failure = error
      }
    }
    signal.throwIfAborted()
    if (failure instanceof NetworkFailure) throw failure
    throw new NetworkFailure('connect', `cannot connect to ${to.host}: ${messageOf(failure)}`, failure)
  }
}

/** One address that is not permitted spoils the answer: a mixed one is an attack or a mistake, and no luck decides. */
async function permittedAddresses(
  { host, protocol }: Destination,
  policy: NetworkPolicy,
  resolve: Resolve,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const isAddress = parseAddress(host) !== undefined
  const addresses = isAddress ? [host] : await resolved(host, resolve, signal)
  const judged = addresses.map((address) => {
    const reason = reasonRefused(policy, address, protocol)
    // In the form in which it was judged, so that nobody reads it in another way.
    if (reason === undefined) return parseAddress(address)?.toString() ?? address
    const where = isAddress ? host : `${host} resolves to ${JSON.stringify(address)}, which`
    throw new NetworkFailure('refusedAddress', `${where} is ${reason}`)
  })
  return [...new Set(judged)].slice(0, MOST_ADDRESSES)
}

async function resolved(host: string, resolve: Resolve, signal: AbortSignal): Promise<readonly string[]> {
  let addresses: readonly string[]
  try {
    addresses = await unlessAborted(signal, resolve(host, signal))
  } catch (error) {
    signal.throwIfAborted()
    throw new NetworkFailure('dns', `cannot resolve ${host}: ${messageOf(error)}`, error)
  }
  if (addresses.length === 0) throw new NetworkFailure('dns', `${host} has no address`)
  return addresses
}

/** Connected where it was sent to? Whatever dialled it, the last word is the kernel's. */
function checked(socket: Socket, { host, protocol }: Destination, policy: NetworkPolicy): Socket {
  const { remoteAddress } = socket
  const reason = remoteAddress === undefined ? 'unknown' : reasonRefused(policy, remoteAddress, protocol)
  if (reason === undefined) return socket
  socket.destroy()
  throw new NetworkFailure('refusedAddress', `${host} was connected to ${remoteAddress}, which is ${reason}`)
}

async function dialled(socket: Socket, ms: number, signal: AbortSignal): Promise<Socket> {
  // Stays: between here and the one who takes it over, nobody else would hear the socket break.
  socket.on('error', () => {})
  const stop = (): void => {
    socket.destroy(new Error('given up'))
  }
  const patience = deadline(ms, () =>
    socket.destroy(new NetworkFailure('timeout', `no connection in ${ms} ms`)),
  )
  signal.addEventListener('abort', stop, { once: true })
  try {
    return await new Promise<Socket>((resolve, reject) => {
      socket.once('connect', () => resolve(socket))
      socket.once('error', reject)
      socket.once('close', () => reject(new Error('closed before it was connected')))
    })
  } finally {
    patience.cancel()
    signal.removeEventListener('abort', stop)
  }
}

/** Waits, but not once the signal has fired. What comes of the work then is nobody's any more. */
export async function unlessAborted<Result>(signal: AbortSignal, work: Promise<Result>): Promise<Result> {
  let stop = (): void => {}
  const aborted = new Promise<never>((_resolve, reject) => {
    stop = () => reject(signal.reason)
    if (signal.aborted) stop()
    else signal.addEventListener('abort', stop, { once: true })
  })
  try {
    return await Promise.race([work, aborted])
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
