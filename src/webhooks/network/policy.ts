/**
 * Where requests may go: which addresses may be connected to, and which URLs may be called. A policy is parsed once and
 * belongs to one poster; connections are never shared between policies.
 */
import { inspect } from 'node:util'

import ipaddr from 'ipaddr.js'

import { LeaseholdError } from '../../errors.ts'
import { unknownNames } from '../../nearest.ts'
import { embeddedIpv4, isWithin, parseAddress, type Range, reasonNotPublic } from './address.ts'

export interface NetworkPolicyOptions {
  /** Whether http:// is permitted to every permitted address. Default false: only to addresses in `allow`. */
  readonly allowHttp?: boolean
  /** Ranges that are permitted although they are not public, for development: for example `LOOPBACK`. */
  readonly allow?: readonly string[]
  /**
   * Ranges that are refused although they are public: your own networks. They win over `allow`. A range of IPv4 also
   * refuses the IPv6 addresses in which its addresses are embedded, such as NAT64.
   */
  readonly refuse?: readonly string[]
  /** The only ports that are permitted. Default: any. */
  readonly ports?: readonly number[]
}

export interface NetworkPolicy {
  readonly allowHttp: boolean
  readonly allow: readonly Range[]
  readonly refuse: readonly Range[]
  readonly ports: ReadonlySet<number> | undefined
}

export type Protocol = 'http:' | 'https:'

/** The addresses that `localhost` may resolve to. */
export const LOOPBACK: readonly string[] = ['127.0.0.0/8', '::1/128']

// `proxied` is for those who check endpoints. They and the dispatcher may be given the same object.
const OPTION_NAMES = Object.keys({
  proxied: true,
  allowHttp: true,
  allow: true,
  refuse: true,
  ports: true,
} satisfies Record<keyof NetworkPolicyOptions | 'proxied', true>)

export function networkPolicy(options: NetworkPolicyOptions = {}): NetworkPolicy {
  const [problem] = unknownNames(options, OPTION_NAMES, 'option')
  if (problem !== undefined) {
    throw new LeaseholdError('SETTING_INVALID', `The webhook network policy: ${problem}.`, {
      remedy: 'Correct the name; an option that is not known would protect nothing.',
    })
  }
  const { allowHttp = false, allow = [], refuse = [], ports } = options
  return {
    allowHttp,
    allow: allow.map((cidr) => parseRange('allow', cidr)),
    refuse: refuse.map((cidr) => parseRange('refuse', cidr)),
    ports: ports === undefined ? undefined : new Set(ports.map(validatePort)),
  }
}

const NOT_FOR_HTTP = 'not one that plain http may be sent to'

/**
 * What a tenant is told of an address that a name was resolved to. The address itself, and what it is for, would tell
 * the tenant about the operator's network.
 */
export function toldToTenants(reason: string): string {
  return reason === NOT_FOR_HTTP ? reason : 'not public'
}

/** Why a request may not go to this address; undefined when it may. */
export function reasonRefused(policy: NetworkPolicy, text: string, protocol: Protocol): string | undefined {
  const address = parseAddress(text)
  if (address === undefined) return reasonNotPublic(text) ?? 'not an address'
  // A translator or a tunnel leads to the IPv4 address that is embedded in an IPv6 address.
  const reached = [address, ...embeddedIpv4(address)]
  if (policy.refuse.some((range) => reached.some((one) => isWithin(one, range)))) return 'in a refused range'
  if (policy.allow.some((range) => isWithin(address, range))) return undefined
  const reason = reasonNotPublic(text)
  if (reason !== undefined) return reason
  return protocol === 'https:' || policy.allowHttp ? undefined : NOT_FOR_HTTP
}

export interface TargetOptions {
  /** Whether a proxy resolves the names: their addresses are then not seen here. */
  readonly proxied?: boolean
}

export type TargetCheck =
  | { readonly permitted: true; readonly url: URL }
  | {
      readonly permitted: false
      readonly code: 'invalidUrl' | 'refusedAddress'
      readonly message: string
      readonly remedy: string
    }

const MAX_URL_CHARACTERS = 2_048
const LOCALHOST = /^(?:.+\.)?localhost$/
const GIVE_HTTPS = 'Give a URL that begins with https://.'

/**
 * Whether the URL of an endpoint may be called. This is checked when the endpoint is created or changed, and before
 * each request, because policies change. What a name resolves to is checked when a connection is opened (`connect.ts`).
 * Messages repeat only the host of a URL, because its path may be a secret.
 */
export function checkTarget(
  target: string | URL,
  policy: NetworkPolicy,
  { proxied = false }: TargetOptions = {},
): TargetCheck {
  const text = String(target)
  if (text.length > MAX_URL_CHARACTERS) {
    return invalid(`has ${text.length} characters`, `Give at most ${MAX_URL_CHARACTERS}.`)
  }
  // The URL parser drops some of these silently. The host that is called would not be the host that a person read.
  if (/[\s\p{Cc}\\]/u.test(text)) {
    return invalid(
      'has a space, a backslash or a control character in it',
      'Leave it out or percent-encode it.',
    )
  }
  if (!URL.canParse(text)) return invalid('cannot be read', GIVE_HTTPS)
  const url = new URL(text)
  const { protocol } = url
  if (protocol !== 'https:' && protocol !== 'http:') return invalid(`begins with ${protocol}`, GIVE_HTTPS)
  if (url.username !== '' || url.password !== '') {
    return invalid('has credentials in it', 'Leave them out and give them in a header.')
  }
  if (text.includes('#')) return invalid('has a fragment', 'Leave out what follows #: it is never sent.')
  // Two spellings of one name would have separate limits per host, and no certificate contains the trailing dot.
  if (url.hostname.endsWith('.')) return invalid('has a host that ends in a dot', 'Leave the dot out.')
  const port = url.port === '' ? (protocol === 'https:' ? 443 : 80) : Number(url.port)
  if (port === 0) return invalid('has port 0', 'Give a port from 1 to 65535.')
  if (policy.ports !== undefined && !policy.ports.has(port)) {
    return invalid(
      `has port ${port}`,
      `Use one of ${[...policy.ports].join(', ')}, or add it to the setting ports.`,
    )
  }
  return checkHost(url, protocol, policy, proxied)
}

function checkHost(url: URL, protocol: Protocol, policy: NetworkPolicy, proxied: boolean): TargetCheck {
  const host = url.hostname.startsWith('[') ? url.hostname.slice(1, -1) : url.hostname
  const isName = parseAddress(host) === undefined
  // The address of a name is not known yet. It may be in `allow`, unless a proxy resolves it where we cannot see it.
  const mayBeHttp = policy.allowHttp || (!proxied && policy.allow.length > 0)
  if (isName && protocol === 'http:' && !mayBeHttp) {
    return invalid(
      'begins with http:',
      `${GIVE_HTTPS} For development, add the network of its address to the setting allow (webhookAllow, --webhook-allow), or set allowHttp, which the command line does not have.`,
    )
  }
  // Every resolver agrees on localhost. Any other name is judged by its addresses, when the connection is opened.
  const addresses = LOCALHOST.test(host) ? ['127.0.0.1', '::1'] : isName ? [] : [host]
  const reasons = addresses.map((address) => reasonRefused(policy, address, protocol))
  const [reason] = reasons
  if (reason === undefined || reasons.includes(undefined)) return { permitted: true, url }
  return {
    permitted: false,
    code: 'refusedAddress',
    message: `The webhook URL leads to ${host}, which is ${reason}.`,
    remedy:
      'Give a public host; for development, add its network to the setting allow (webhookAllow, --webhook-allow).',
  }
}

function invalid(problem: string, remedy: string): TargetCheck {
  return { permitted: false, code: 'invalidUrl', message: `The webhook URL ${problem}.`, remedy }
}

function parseRange(setting: 'allow' | 'refuse', cidr: string): Range {
  const remedy = 'Give a network such as 127.0.0.0/8 or ::1/128.'
  const [text = '', prefix, ...rest] = cidr.split('/')
  const address = parseAddress(text)
  if (address === undefined || rest.length > 0) return refuseSetting(setting, cidr, remedy)
  // IPv4-mapped addresses are compared as IPv4 addresses, so a range of mapped addresses would never match.
  if (text.includes(':') && address.kind() === 'ipv4') {
    return refuseSetting(setting, cidr, `Give it as IPv4: ${address.toString()} and the bits less 96.`)
  }
  const maxBits = address.kind() === 'ipv4' ? 32 : 128
  const bits = prefix === undefined ? maxBits : /^\d{1,3}$/.test(prefix) ? Number(prefix) : Number.NaN
  if (!(bits <= maxBits)) return refuseSetting(setting, cidr, remedy)
  const network = networkOf(`${text}/${bits}`)
  if (network.toString() !== address.toString()) {
    return refuseSetting(
      setting,
      cidr,
      `That network is ${network.toString()}/${bits}; one address alone is ${text}/${maxBits}.`,
    )
  }
  return [network, bits]
}

function networkOf(cidr: string): ipaddr.IPv4 | ipaddr.IPv6 {
  return cidr.includes(':')
    ? ipaddr.IPv6.networkAddressFromCIDR(cidr)
    : ipaddr.IPv4.networkAddressFromCIDR(cidr)
}

function validatePort(port: number): number {
  if (Number.isInteger(port) && port >= 1 && port <= 65_535) return port
  return refuseSetting('ports', port, 'Give whole numbers from 1 to 65535.')
}

function refuseSetting(setting: string, value: unknown, remedy: string): never {
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The setting ${setting} of the webhook network policy cannot contain ${inspect(value)}.`,
    { remedy },
  )
}

/** The URL of a proxy, validated. Credentials in it are sent to the proxy as Basic authentication. */
export function parseProxyUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  const isHttp = url?.protocol === 'http:' || url?.protocol === 'https:'
  if (isHttp && proxyCredentials(url) !== undefined) return url
  // The value is not repeated: it may contain a password.
  throw new LeaseholdError(
    'SETTING_INVALID',
    'The setting proxy of webhooks is not the URL of an HTTP proxy.',
    {
      remedy: 'Give one such as http://proxy.example:3128; percent-encode its user and password.',
    },
  )
}

/** `user:password`, decoded; undefined if that is not possible. */
export function proxyCredentials({ username, password }: URL): string | undefined {
  try {
    return `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  } catch {
    return undefined
  }
}
