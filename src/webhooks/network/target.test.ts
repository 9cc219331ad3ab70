import { describe, expect, it } from 'vitest'

import { LOOPBACK, networkPolicy } from './policy.ts'
import { judgeTarget, usableTarget } from './target.ts'

const policy = networkPolicy()
const development = networkPolicy({ allow: LOOPBACK })

it.each([
  'https://example.com/hook',
  'https://example.com:8443/hook?token=1',
  'https://8.8.8.8/',
  'https://[2606:4700::1111]/',
  'https://BÜCHER.example/x',
])('%s is usable', (url) => {
  expect(usableTarget(url, policy).href).toBe(new URL(url).href)
})

describe('a host that is an address, in whatever spelling, is judged at once', () => {
  it.each([
    '127.0.0.1',
    '127.1',
    '127.0.1',
    '2130706433',
    '0177.0.0.1',
    '017700000001',
    '0x7f.1',
    '0x7f000001',
    '0X7F.0.0.1',
    '127.0.0.1.',
    '１２７.０.０.１',
    '127。0。0。1',
    '%31%32%37.0.0.1',
    '0',
    '10.0.0.1',
    '169.254.169.254',
    '2852039166',
    '0xa9fea9fe',
    '100.100.100.200',
    '192.168.0.1',
    '[::1]',
    '[::]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[fd00:ec2::254]',
    '[fe80::1]',
    'localhost',
    'LOCALHOST',
    'anything.localhost',
  ])('%s is refused', (host) => {
    const verdict = judgeTarget(`https://${host}/hook`, policy)
    expect(verdict).toMatchObject({ usable: false, code: 'refusedAddress' })
    expect(() => usableTarget(`https://${host}/hook`, policy)).toThrow('setting allow')
  })

  it.each(['127.0.0.1', '2130706433', '0x7f.1', '[::ffff:7f00:1]', 'localhost', 'a.localhost'])(
    '%s is usable where loopback is allowed, by http too',
    (host) => {
      expect(judgeTarget(`http://${host}:3000/hook`, development)).toMatchObject({ usable: true })
    },
  )

  it('localhost is usable where either of its addresses is', () => {
    expect(judgeTarget('http://localhost/', networkPolicy({ allow: ['::1'] }))).toMatchObject({
      usable: true,
    })
    expect(judgeTarget('http://localhost/', networkPolicy({ allow: ['10.0.0.0/8'] }))).toMatchObject({
      code: 'refusedAddress',
    })
  })
})

describe('a URL of a form that cannot be called', () => {
  it.each([
    ['', 'cannot be read'],
    ['example.com/hook', 'cannot be read'],
    ['https://', 'cannot be read'],
    ['https://[fe80::1%25eth0]/', 'cannot be read'],
    ['https://256.1.1.1/', 'cannot be read'],
    ['https://a:99999/', 'cannot be read'],
    ['ftp://example.com/', 'begins with ftp:'],
    ['file:///etc/passwd', 'begins with file:'],
    ['javascript:alert(1)', 'begins with javascript:'],
    ['gopher://127.0.0.1:6379/_FLUSHALL', 'begins with gopher:'],
    ['https://user:secret@example.com/', 'credentials'],
    ['https://secret@example.com/', 'credentials'],
    ['https://example.com@127.0.0.1/', 'credentials'],
    ['https://example.com/#secret', 'fragment'],
    ['https://example.com/#', 'fragment'],
    ['https://example.com./', 'ends in a dot'],
    ['https://localhost./', 'ends in a dot'],
    ['https://example.com:0/', 'port 0'],
    ['https://example.com\\@127.0.0.1/', 'backslash'],
    ['https://exa\nmple.com/', 'control character'],
    ['https://example.com/\r\nx: y', 'control character'],
    [' https://example.com/', 'a space'],
    [`https://example.com/${'a'.repeat(2_048)}`, 'characters'],
  ])('%j is refused', (url, reason) => {
    expect(judgeTarget(url, policy)).toMatchObject({ usable: false, code: 'invalidUrl' })
    const attempt = () => usableTarget(url, policy)
    expect(attempt).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(attempt).toThrow(reason)
    expect(attempt).not.toThrow('secret')
  })
})

describe('http', () => {
  it('is refused unless somebody opened it', () => {
    expect(() => usableTarget('http://example.com/', policy)).toThrow('begins with http:')
    expect(() => usableTarget('http://8.8.8.8/', policy)).toThrow('plain http')
    expect(judgeTarget('http://example.com/', networkPolicy({ allowHttp: true }))).toMatchObject({
      usable: true,
    })
  })

  it('with an allow-list, is judged by the addresses of the name, at the connection', () => {
    expect(judgeTarget('http://receiver.test/', development)).toMatchObject({ usable: true })
    expect(judgeTarget('http://8.8.8.8/', development)).toMatchObject({ usable: false })
  })

  it('behind a proxy, where the addresses are not seen, needs allowHttp', () => {
    const proxied = { proxied: true }
    expect(judgeTarget('http://receiver.test/', development, proxied)).toMatchObject({ usable: false })
    expect(judgeTarget('http://127.0.0.1/', development, proxied)).toMatchObject({ usable: true })
    expect(judgeTarget('http://a.test/', networkPolicy({ allowHttp: true }), proxied)).toMatchObject({
      usable: true,
    })
    expect(judgeTarget('https://10.0.0.1/', policy, proxied)).toMatchObject({ code: 'refusedAddress' })
  })
})

it('ports, where they are given, are the only ones', () => {
  const few = networkPolicy({ ports: [443, 8443] })
  expect(judgeTarget('https://example.com/', few)).toMatchObject({ usable: true })
  expect(judgeTarget('https://example.com:8443/', few)).toMatchObject({ usable: true })
  expect(() => usableTarget('https://example.com:22/', few)).toThrow('443, 8443')
})
