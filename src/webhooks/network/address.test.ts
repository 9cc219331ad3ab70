import fc from 'fast-check'
import ipaddr from 'ipaddr.js'
import { describe, expect, it } from 'vitest'

import { reasonNotPublic } from './address.ts'

/** Copied from the registries a second time, so that a mistake in one list is found by the other. */
const NOT_PUBLIC_4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.31.196.0/24',
  '192.52.193.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '192.175.48.0/24',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '255.255.255.255/32',
]
const NOT_PUBLIC_6 = [
  '::/128',
  '::1/128',
  '::/96',
  '::/8',
  '::ffff:0:0:0/96',
  '64:ff9b:1::/48',
  '100::/64',
  '100:0:0:1::/64',
  '200::/7',
  '400::/6',
  '800::/5',
  '1000::/4',
  '2001::/32',
  '2001:2::/48',
  '2001:3::/32',
  '2001:4:112::/48',
  '2001:10::/28',
  '2001:20::/28',
  '2001:30::/28',
  '2001::/23',
  '2001:db8::/32',
  '2002::/16',
  '2620:4f:8000::/48',
  '3ffe::/16',
  '3fff::/20',
  '4000::/3',
  '5f00::/16',
  '6000::/3',
  '8000::/3',
  'a000::/3',
  'c000::/3',
  'e000::/4',
  'f000::/5',
  'f800::/6',
  'fc00::/7',
  'fe00::/9',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
]

interface Span {
  readonly first: bigint
  readonly last: bigint
  readonly size: number
}

function span(cidr: string): Span {
  const [network, bits] = ipaddr.parseCIDR(cidr)
  const size = network.kind() === 'ipv4' ? 32 : 128
  const first = toNumber(network.toByteArray())
  return { first, last: first + (1n << BigInt(size - bits)) - 1n, size }
}

function toNumber(bytes: readonly number[]): bigint {
  return bytes.reduce((sum, byte) => sum * 256n + BigInt(byte), 0n)
}

function toText(value: bigint, size: number): string {
  const bytes = Array.from({ length: size / 8 }, (_, i) => Number((value >> BigInt(size - 8 - 8 * i)) & 255n))
  return ipaddr.fromByteArray(bytes).toString()
}

function isIn(value: bigint, { first, last }: Span): boolean {
  return value >= first && value <= last
}

function isPublicUnicast(address: string): boolean {
  return reasonNotPublic(address) === undefined
}

const spans4 = NOT_PUBLIC_4.map(span)
const spans6 = NOT_PUBLIC_6.map(span)

describe('ranges that are not public unicast', () => {
  it.each([...NOT_PUBLIC_4, ...NOT_PUBLIC_6])('%s is refused from its first to its last address', (cidr) => {
    const { first, last, size } = span(cidr)
    for (const value of [first, (first + last) / 2n, last]) {
      expect(reasonNotPublic(toText(value, size)), toText(value, size)).toEqual(expect.any(String))
    }
  })

  it.each(NOT_PUBLIC_4)('the addresses next to %s are public, unless they are in another range', (cidr) => {
    const { first, last } = span(cidr)
    for (const value of [first - 1n, last + 1n].filter((n) => n >= 0n && n < 1n << 32n)) {
      const text = toText(value, 32)
      expect(isPublicUnicast(text), text).toBe(!spans4.some((range) => isIn(value, range)))
    }
  })

  it('every other IPv4 address is public', () => {
    fc.assert(
      fc.property(fc.bigInt({ min: 0n, max: (1n << 32n) - 1n }), (value) => {
        expect(isPublicUnicast(toText(value, 32))).toBe(!spans4.some((range) => isIn(value, range)))
      }),
      { numRuns: 2_000 },
    )
  })

  it('the public IPv6 addresses are those in 2000::/3 that are in none of the ranges', () => {
    const { first, last } = span('2000::/3')
    fc.assert(
      fc.property(fc.bigInt({ min: first, max: last }), (value) => {
        const isatap = ((value >> 32n) & 0xfcffffffn) === 0x5efen
        const expected = !isatap && !spans6.some((range) => isIn(value, range))
        expect(isPublicUnicast(toText(value, 128))).toBe(expected)
      }),
      { numRuns: 2_000 },
    )
  })
})

it.each([
  '1.1.1.1',
  '8.8.8.8',
  '93.184.216.34',
  '2606:4700::1111',
  '2a00:1450::8a',
  '2001:4860::8888',
  '3fff:1000::1',
])('%s is public', (address) => {
  expect(reasonNotPublic(address)).toBeUndefined()
})

describe('an IPv4 address inside an IPv6 address', () => {
  it.each([
    ['mapped', '::ffff:127.0.0.1'],
    ['mapped, in hexadecimal', '::ffff:7f00:1'],
    ['mapped metadata', '::ffff:a9fe:a9fe'],
    ['mapped, written out', '0:0:0:0:0:ffff:0a00:0001'],
    ['compatible', '::127.0.0.1'],
    ['compatible and public', '::8.8.8.8'],
    ['translated', '::ffff:0:127.0.0.1'],
    ['NAT64', '64:ff9b::127.0.0.1'],
    ['NAT64 of a private one', '64:ff9b::a00:1'],
    ['NAT64 of metadata', '64:ff9b::a9fe:a9fe'],
    ['local NAT64, even of a public one', '64:ff9b:1::808:808'],
    ['6to4', '2002:7f00:1::'],
    ['6to4 of a public one', '2002:808:808::1'],
    ['Teredo', '2001:0:4136:e378:8000:63bf:80ff:fffe'],
    ['ISATAP', '2606:4700::5efe:10.0.0.1'],
    ['ISATAP, universal', '2606:4700::200:5efe:8.8.8.8'],
    ['ISATAP, link-local', 'fe80::5efe:127.0.0.1'],
  ])('an embedded IPv4 address is refused (%s): %s', (_form, address) => {
    expect(reasonNotPublic(address)).toEqual(expect.any(String))
  })

  it('a mapped address and the well-known NAT64 prefix are judged by the embedded IPv4 address', () => {
    expect(reasonNotPublic('::ffff:8.8.8.8')).toBeUndefined()
    expect(reasonNotPublic('64:ff9b::8.8.8.8')).toBeUndefined()
    expect(reasonNotPublic('64:ff9b::10.0.0.1')).toBe('NAT64 of 10.0.0.1, private')
  })
})

it.each([
  ['fe80::1%eth0', 'bound to an interface'],
  ['2606:4700::1111%1', 'bound to an interface'],
  ['0177.0.0.1', 'not an address'],
  ['0x7f.1', 'not an address'],
  ['127.1', 'not an address'],
  ['2130706433', 'not an address'],
  ['8.8.8.8/32', 'not an address'],
  ['[::1]', 'not an address'],
  ['example.com', 'not an address'],
  ['', 'not an address'],
])('%j is refused because it is not a plain address', (text, reason) => {
  expect(reasonNotPublic(text)).toBe(reason)
})
