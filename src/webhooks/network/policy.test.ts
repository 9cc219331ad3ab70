import { describe, expect, it } from 'vitest'

import { LOOPBACK, networkPolicy, type NetworkPolicyOptions, reasonRefused } from './policy.ts'

describe('by default', () => {
  const policy = networkPolicy()
  it('https reaches what is public and nothing else', () => {
    expect(reasonRefused(policy, '8.8.8.8', 'https:')).toBeUndefined()
    expect(reasonRefused(policy, '127.0.0.1', 'https:')).toBe('loopback')
    expect(reasonRefused(policy, '::1', 'https:')).toBe('loopback')
    expect(reasonRefused(policy, 'example.com', 'https:')).toBe('not an address')
  })

  it('http reaches nothing', () => {
    expect(reasonRefused(policy, '8.8.8.8', 'http:')).toContain('plain http')
  })
})

describe('allow', () => {
  const policy = networkPolicy({ allow: [...LOOPBACK, '10.1.0.0/16', '192.168.7.7'] })
  it('opens its ranges, for http too, and no others', () => {
    for (const address of ['127.0.0.1', '127.255.255.255', '::1', '10.1.255.255', '192.168.7.7']) {
      expect(reasonRefused(policy, address, 'http:'), address).toBeUndefined()
      expect(reasonRefused(policy, address, 'https:'), address).toBeUndefined()
    }
    for (const address of ['126.255.255.255', '8.8.8.8']) {
      expect(reasonRefused(policy, address, 'http:'), address).toContain('plain http')
    }
    for (const address of ['10.2.0.0', '10.0.255.255', '192.168.7.8', '::2', '169.254.169.254']) {
      expect(reasonRefused(policy, address, 'https:'), address).toEqual(expect.any(String))
    }
  })

  it('takes a mapped address for what it is, but no other way into the range', () => {
    expect(reasonRefused(policy, '::ffff:127.0.0.1', 'https:')).toBeUndefined()
    expect(reasonRefused(policy, '64:ff9b::127.0.0.1', 'https:')).toEqual(expect.any(String))
    expect(reasonRefused(policy, '2002:7f00:1::', 'https:')).toEqual(expect.any(String))
    expect(reasonRefused(policy, '127.0.0.1%lo', 'https:')).toEqual(expect.any(String))
  })
})

it('refuse closes ranges that are public, and wins over allow', () => {
  const policy = networkPolicy({ refuse: ['8.8.8.0/24', '127.0.0.2'], allow: ['127.0.0.0/8'] })
  expect(reasonRefused(policy, '8.8.8.8', 'https:')).toBe('in a refused range')
  expect(reasonRefused(policy, '::ffff:8.8.8.8', 'https:')).toBe('in a refused range')
  expect(reasonRefused(policy, '8.8.9.8', 'https:')).toBeUndefined()
  expect(reasonRefused(policy, '127.0.0.2', 'https:')).toBe('in a refused range')
})

it('allowHttp opens http to what is public, and not to what is not', () => {
  const policy = networkPolicy({ allowHttp: true })
  expect(reasonRefused(policy, '8.8.8.8', 'http:')).toBeUndefined()
  expect(reasonRefused(policy, '10.0.0.1', 'http:')).toBe('private')
})

it.each<[NetworkPolicyOptions, string, string]>([
  [{ allow: ['127.0.0.0/33'] }, "'127.0.0.0/33'", 'Give a network'],
  [{ allow: ['127.0.0.0/-1'] }, "'127.0.0.0/-1'", 'Give a network'],
  [{ allow: ['127.0.0.0/'] }, "'127.0.0.0/'", 'Give a network'],
  [{ allow: ['127.0.0.0/8/8'] }, "'127.0.0.0/8/8'", 'Give a network'],
  [{ allow: ['0177.0.0.0/8'] }, "'0177.0.0.0/8'", 'Give a network'],
  [{ allow: ['localhost'] }, "'localhost'", 'Give a network'],
  [{ allow: [''] }, "''", 'Give a network'],
  [{ allow: ['fe80::%eth0/10'] }, "'fe80::%eth0/10'", 'Give a network'],
  [{ allow: ['127.0.0.1/8'] }, "'127.0.0.1/8'", '127.0.0.0/8'],
  [{ allow: ['::1/64'] }, "'::1/64'", '::/64'],
  [{ refuse: ['::ffff:10.0.0.0/104'] }, "'::ffff:10.0.0.0/104'", 'Give it as IPv4'],
  [{ ports: [0] }, '0', '1 to 65535'],
  [{ ports: [443, 70_000] }, '70000', '1 to 65535'],
])('%j is refused with its value and the remedy', (options, value, remedy) => {
  const attempt = () => networkPolicy(options)
  expect(attempt).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  expect(attempt).toThrow(value)
  expect(attempt).toThrow(remedy)
})
