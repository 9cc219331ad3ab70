/** Where requests may go. Parsed once; a connection is kept only by the poster of its own policy. */
import { inspect } from 'node:util'

import ipaddr from 'ipaddr.js'

import { LeaseholdError } from '../../errors.ts'
import { isWithin, parseAddress, type Range, reasonNotPublic } from './address.ts'

export interface NetworkPolicyOptions {
  /** http:// to any permitted address. Default false: only to addresses in `allow`. */
  readonly allowHttp?: boolean
  /** Ranges that may be reached although they are not public, for development: for example `LOOPBACK`. */
  readonly allow?: readonly string[]
  /** Ranges that may not be reached although they are public: your own networks. They win over `allow`. */
  readonly refuse?: readonly string[]
  /** The only ports that may be reached. Default: any. */
  readonly ports?: readonly number[]
}

export interface NetworkPolicy {
  readonly allowHttp: boolean
  readonly allow: readonly Range[]
  readonly refuse: readonly Range[]
  readonly ports: ReadonlySet<number> | undefined
}

export type Protocol = 'http:' | 'https:'

/** What `localhost` may resolve to. */
export const LOOPBACK: readonly string[] = ['127.0.0.0/8', '::1/128']

export function networkPolicy(options: NetworkPolicyOptions = {}): NetworkPolicy {
  const { allowHttp = false, allow = [], refuse = [], ports } = options
  return {
    allowHttp,
    allow: allow.map((cidr) => usableRange('allow', cidr)),
    refuse: refuse.map((cidr) => usableRange('refuse', cidr)),
    ports: ports === undefined ? undefined : new Set(ports.map(usablePort)),
  }
}

/** Why a request may not go to this address; undefined when it may. */
export function reasonRefused(policy: NetworkPolicy, text: string, protocol: Protocol): string | undefined {
  const address = parseAddress(text)
  if (address === undefined) return reasonNotPublic(text) ?? 'not an address'
  if (policy.refuse.some((range) => isWithin(address, range))) return 'in a refused range'
  if (policy.allow.some((range) => isWithin(address, range))) return undefined
  const reason = reasonNotPublic(text)
  if (reason !== undefined) return reason
  return protocol === 'https:' || policy.allowHttp ? undefined : 'not one that plain http may be sent to'
}

function usableRange(setting: 'allow' | 'refuse', cidr: string): Range {
  const remedy = 'Give a network such as 127.0.0.0/8 or ::1/128.'
  const [text = '', prefix, ...rest] = cidr.split('/')
  const address = parseAddress(text)
  if (address === undefined || rest.length > 0) return refuseSetting(setting, cidr, remedy)
  // Addresses are compared as what they are: a range of mapped ones would never match.
  if (text.includes(':') && address.kind() === 'ipv4') {
    return refuseSetting(setting, cidr, `Give it as IPv4: ${address.toString()} and the bits less 96.`)
  }
  const most = address.kind() === 'ipv4' ? 32 : 128
  const bits = prefix === undefined ? most : /^\d{1,3}$/.test(prefix) ? Number(prefix) : Number.NaN
  if (!(bits <= most)) return refuseSetting(setting, cidr, remedy)
  const network = networkOf(`${text}/${bits}`)
  if (network.toString() !== address.toString()) {
    return refuseSetting(
      setting,
      cidr,
      `That network is ${network.toString()}/${bits}; one address alone is ${text}/${most}.`,
    )
  }
  return [network, bits]
}

function networkOf(cidr: string): ipaddr.IPv4 | ipaddr.IPv6 {
  return cidr.includes(':')
    ? ipaddr.IPv6.networkAddressFromCIDR(cidr)
    : ipaddr.IPv4.networkAddressFromCIDR(cidr)
}

function usablePort(port: number): number {
  if (Number.isInteger(port) && port >= 1 && port <= 65_535) return port
  return refuseSetting('ports', port, 'Give whole numbers from 1 to 65535.')
}

function refuseSetting(setting: string, value: unknown, remedy: string): never {
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The setting ${setting} of the webhook network policy cannot have ${inspect(value)} in it.`,
    { remedy },
  )
}
