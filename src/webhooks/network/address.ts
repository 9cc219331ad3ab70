/**
 * Whether an address belongs to a host on the public internet. The registries change and libraries lag, so two sources
 * must agree that an address is public: the ranges below, from the IANA special-purpose registries, and ipaddr.js.
 */
import { isIP } from 'node:net'

import ipaddr from 'ipaddr.js'

export type Address = ipaddr.IPv4 | ipaddr.IPv6
export type Range = readonly [network: Address, bits: number]

/** The ranges of IPv4 that are not public unicast, and what they are for. */
const IPV4: readonly (readonly [cidr: string, what: string])[] = [
  ['0.0.0.0/8', 'this network'],
  ['10.0.0.0/8', 'private'],
  ['100.64.0.0/10', 'for carrier-grade NAT'],
  ['127.0.0.0/8', 'loopback'],
  // Azure serves its virtual machines from this address, keys included, although the address looks public.
  ['168.63.129.16/32', 'the platform address of Azure'],
  ['169.254.0.0/16', 'link-local, where clouds keep their metadata'],
  ['172.16.0.0/12', 'private'],
  ['192.0.0.0/24', 'reserved for protocols'],
  ['192.0.2.0/24', 'for documentation'],
  ['192.31.196.0/24', 'AS112'],
  ['192.52.193.0/24', 'AMT'],
  ['192.88.99.0/24', 'the 6to4 relay'],
  ['192.168.0.0/16', 'private'],
  ['192.175.48.0/24', 'AS112'],
  ['198.18.0.0/15', 'for benchmarks'],
  ['198.51.100.0/24', 'for documentation'],
  ['203.0.113.0/24', 'for documentation'],
  ['224.0.0.0/4', 'multicast'],
  ['255.255.255.255/32', 'broadcast'],
  ['240.0.0.0/4', 'reserved'],
]

/** The same for IPv6. Nothing outside 2000::/3 is public; such ranges are listed only for a better message. */
const IPV6: readonly (readonly [cidr: string, what: string])[] = [
  ['::/128', 'unspecified'],
  ['::1/128', 'loopback'],
  ['::/96', 'an IPv4-compatible address'],
  ['::ffff:0:0:0/96', 'a translated IPv4 address'],
  ['64:ff9b:1::/48', 'local NAT64'],
  ['100::/64', 'discarded'],
  ['2001::/32', 'Teredo'],
  ['2001:10::/28', 'ORCHID'],
  ['2001:20::/28', 'ORCHID'],
  ['2001::/23', 'reserved for protocols'],
  ['2001:db8::/32', 'for documentation'],
  ['2002::/16', '6to4'],
  ['2620:4f:8000::/48', 'AS112'],
  ['3ffe::/16', 'of the 6bone, returned'],
  ['3fff::/20', 'for documentation'],
  ['5f00::/16', 'segment routing'],
  ['fc00::/7', 'unique local'],
  ['fe80::/10', 'link-local'],
  ['fec0::/10', 'site-local'],
  ['ff00::/8', 'multicast'],
]

const NOT_PUBLIC = [...IPV4, ...IPV6].map(([cidr, what]) => ({ range: ipaddr.parseCIDR(cidr), what }))
const GLOBAL_UNICAST = ipaddr.parseCIDR('2000::/3')
const NAT64 = ipaddr.parseCIDR('64:ff9b::/96')

/**
 * Parses a plain address; an IPv4-mapped address is returned as IPv4. Returns undefined for the octal, hexadecimal and
 * short forms that ipaddr.js would accept, and for an address with a zone id, which names an interface of this machine.
 */
export function parseAddress(text: string): Address | undefined {
  if (isIP(text) === 0 || text.includes('%')) return undefined
  return isIP(text) === 4 ? ipaddr.IPv4.parse(text) : ipaddr.process(withoutDots(text))
}

/** ipaddr.js reads ::8.8.8.8 as ::ffff:8.8.8.8; the kernel does not. The hexadecimal form is unambiguous. */
function withoutDots(text: string): string {
  return new URL(`http://[${text}]`).hostname.slice(1, -1)
}

export function isWithin(address: Address, [network, bits]: Range): boolean {
  return address.kind() === network.kind() && address.match(network, bits)
}

/** Why this is not the address of a public host; undefined when it is one. */
export function reasonNotPublic(text: string): string | undefined {
  const address = parseAddress(text)
  if (address === undefined) return text.includes('%') ? 'bound to an interface' : 'not an address'
  return reasonOf(address)
}

function reasonOf(address: Address): string | undefined {
  // An IPv6-only network reaches every IPv4 host through NAT64, so the embedded IPv4 address decides.
  if (isWithin(address, NAT64)) return ofNat64(address)
  const listed = NOT_PUBLIC.find(({ range }) => isWithin(address, range))
  if (listed !== undefined) return listed.what
  if (address instanceof ipaddr.IPv6) {
    if (!isWithin(address, GLOBAL_UNICAST)) return 'outside of global unicast'
    if (isIsatap(address)) return 'ISATAP'
  }
  const range = address.range()
  return range === 'unicast' ? undefined : range
}

function ofNat64(address: Address): string | undefined {
  const embedded = new ipaddr.IPv4(address.toByteArray().slice(12))
  const reason = reasonOf(embedded)
  return reason === undefined ? undefined : `NAT64 of ${embedded.toString()}, ${reason}`
}

const TRANSLATED = ['::/96', '::ffff:0:0:0/96', '64:ff9b::/96'].map((cidr) => ipaddr.parseCIDR(cidr))
const LOCAL_NAT64 = ipaddr.parseCIDR('64:ff9b:1::/48')
const TEREDO = ipaddr.parseCIDR('2001::/32')
const SIX_TO_FOUR = ipaddr.parseCIDR('2002::/16')

/**
 * The IPv4 addresses that a packet to this IPv6 address may be sent on to: by a translator (NAT64, SIIT) or a tunnel
 * (6to4, Teredo, ISATAP). IPv4-mapped addresses are IPv4 addresses already, see `parseAddress`.
 */
export function embeddedIpv4(address: Address): readonly Address[] {
  if (address.kind() === 'ipv4') return []
  const bytes = address.toByteArray()
  const at = (...positions: readonly number[]): Address =>
    new ipaddr.IPv4(positions.map((i) => bytes[i] ?? 0))
  if (TRANSLATED.some((range) => isWithin(address, range))) return [at(12, 13, 14, 15)]
  // RFC 6052: where the IPv4 address is depends on the length of the prefix, /48 to /96, which only the network knows.
  if (isWithin(address, LOCAL_NAT64))
    return [at(6, 7, 9, 10), at(7, 9, 10, 11), at(9, 10, 11, 12), at(12, 13, 14, 15)]
  if (isWithin(address, SIX_TO_FOUR)) return [at(2, 3, 4, 5)]
  // RFC 4380: the server, and the client with its bits inverted.
  if (isWithin(address, TEREDO))
    return [at(4, 5, 6, 7), new ipaddr.IPv4(bytes.slice(12).map((byte) => byte ^ 0xff))]
  return address instanceof ipaddr.IPv6 && isIsatap(address) ? [at(12, 13, 14, 15)] : []
}

/** RFC 5214: an interface id of 0000:5efe and an IPv4 address, under any prefix; two of its bits may be set. */
function isIsatap({ parts }: ipaddr.IPv6): boolean {
  const [high = -1, low = -1] = parts.slice(4)
  return (high & 0xfcff) === 0 && low === 0x5efe
}
