import { describe, expect, it } from 'vitest'

import { checkTarget, LOOPBACK, networkPolicy, type NetworkPolicyOptions, reasonRefused } from './policy.ts'

describe('defaults', () => {
  const policy = networkPolicy()
  it('by default, https is permitted to public addresses only', () => {
    expect(reasonRefused(policy, '8.8.8.8', 'https:')).toBeUndefined()
    expect(reasonRefused(policy, '127.0.0.1', 'https:')).toBe('loopback')
    expect(reasonRefused(policy, '::1', 'https:')).toBe('loopback')
    expect(reasonRefused(policy, 'example.com', 'https:')).toBe('not an address')
  })

  it('by default, http is permitted to no address', () => {
    expect(reasonRefused(policy, '8.8.8.8', 'http:')).toContain('plain http')
  })
})

describe('allow', () => {
  const policy = networkPolicy({ allow: [...LOOPBACK, '10.1.0.0/16', '192.168.7.7'] })
  it('allow permits its ranges, also for http, and no others', () => {
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

  it('allow matches IPv4-mapped addresses, but no other embedding of an IPv4 address', () => {
    expect(reasonRefused(policy, '::ffff:127.0.0.1', 'https:')).toBeUndefined()
    expect(reasonRefused(policy, '64:ff9b::127.0.0.1', 'https:')).toEqual(expect.any(String))
    expect(reasonRefused(policy, '2002:7f00:1::', 'https:')).toEqual(expect.any(String))
    expect(reasonRefused(policy, '127.0.0.1%lo', 'https:')).toEqual(expect.any(String))
  })
})

it('refuse excludes public ranges, and wins over allow', () => {
  const policy = networkPolicy({ refuse: ['8.8.8.0/24', '127.0.0.2'], allow: ['127.0.0.0/8'] })
  expect(reasonRefused(policy, '8.8.8.8', 'https:')).toBe('in a refused range')
  expect(reasonRefused(policy, '::ffff:8.8.8.8', 'https:')).toBe('in a refused range')
  expect(reasonRefused(policy, '8.8.9.8', 'https:')).toBeUndefined()
  expect(reasonRefused(policy, '127.0.0.2', 'https:')).toBe('in a refused range')
})

describe('refuse and embedded IPv4 addresses', () => {
  // Everything is allowed that is not refused, so that only `refuse` can refuse.
  const policy = networkPolicy({ refuse: ['8.8.8.0/24'], allow: ['::/0', '0.0.0.0/0'] })

  it.each([
    ['IPv4-mapped', '::ffff:8.8.8.8', '::ffff:8.8.9.8'],
    ['IPv4-compatible', '::8.8.8.8', '::8.8.9.8'],
    ['translated (SIIT)', '::ffff:0:8.8.8.8', '::ffff:0:8.8.9.8'],
    ['NAT64', '64:ff9b::8.8.8.8', '64:ff9b::8.8.9.8'],
    ['local NAT64 of a /48', '64:ff9b:1:808:8:800::', '64:ff9b:1:808:9:800::'],
    ['local NAT64 of a /56', '64:ff9b:1:8:8:808::', '64:ff9b:1:8:9:808::'],
    ['local NAT64 of a /64', '64:ff9b:1:0:8:808:800::', '64:ff9b:1:0:8:809:800::'],
    ['local NAT64 of a /96', '64:ff9b:1::8.8.8.8', '64:ff9b:1::8.8.9.8'],
    ['6to4', '2002:808:808::1', '2002:808:908::1'],
    ['the server of Teredo', '2001:0:808:808::1', '2001:0:808:908::1'],
    ['the client of Teredo', '2001::f7f7:f7f7', '2001::f7f7:f6f7'],
    ['ISATAP', '2606:4700::5efe:808:808', '2606:4700::5efe:808:908'],
  ])('refuse of an IPv4 range refuses its addresses in IPv6: %s', (_, refused, permitted) => {
    expect(reasonRefused(policy, refused, 'https:')).toBe('in a refused range')
    expect(reasonRefused(policy, permitted, 'https:')).toBeUndefined()
  })

  it('a NAT64 address in a refused range is refused without allow, too', () => {
    const strictPolicy = networkPolicy({ refuse: ['8.8.8.0/24'] })
    expect(reasonRefused(strictPolicy, '64:ff9b::8.8.8.8', 'https:')).toBe('in a refused range')
    expect(reasonRefused(strictPolicy, '64:ff9b::8.8.9.8', 'https:')).toBeUndefined()
    expect(checkTarget('https://[64:ff9b::808:808]/', strictPolicy)).toMatchObject({ permitted: false })
  })
})

it('allowHttp permits http to public addresses only', () => {
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
  [
    JSON.parse('{"refused": ["8.8.8.8"]}'),
    'unknown option refused (did you mean refuse?)',
    'Correct the name',
  ],
  [{ ports: [0] }, '0', '1 to 65535'],
  [{ ports: [443, 70_000] }, '70000', '1 to 65535'],
])('the policy %j is refused with the value and the remedy', (options, value, remedy) => {
  const attempt = () => networkPolicy(options)
  expect(attempt).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  expect(attempt).toThrow(value)
  expect(attempt).toThrow(remedy)
})

const strict = networkPolicy()
const development = networkPolicy({ allow: LOOPBACK })

/** The error that a person sees for a URL that is not permitted. */
function refusalOf(url: string, policy = strict): string {
  const check = checkTarget(url, policy)
  return check.permitted ? 'permitted' : `${check.message} ${check.remedy}`
}

it.each([
  'https://example.com/hook',
  'https://example.com:8443/hook?token=1',
  'https://8.8.8.8/',
  'https://[2606:4700::1111]/',
  'https://BÜCHER.example/x',
])('the URL %s is permitted', (url) => {
  expect(checkTarget(url, strict)).toEqual({ permitted: true, url: new URL(url) })
})

describe('hosts that are addresses, in any spelling', () => {
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
  ])('a URL with the host %s is refused', (host) => {
    const url = `https://${host}/hook`
    expect(checkTarget(url, strict)).toMatchObject({ permitted: false, code: 'refusedAddress' })
    expect(refusalOf(url)).toContain('setting allow')
  })

  it.each(['127.0.0.1', '2130706433', '0x7f.1', '[::ffff:7f00:1]', 'localhost', 'a.localhost'])(
    'a URL with the host %s is permitted if loopback is allowed, also with http',
    (host) => {
      expect(checkTarget(`http://${host}:3000/hook`, development)).toMatchObject({ permitted: true })
    },
  )

  it('localhost is permitted if either of its addresses is', () => {
    expect(checkTarget('http://localhost/', networkPolicy({ allow: ['::1'] }))).toMatchObject({
      permitted: true,
    })
    expect(checkTarget('http://localhost/', networkPolicy({ allow: ['10.0.0.0/8'] }))).toMatchObject({
      code: 'refusedAddress',
    })
  })
})

describe('invalid URLs', () => {
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
  ])('the URL %j is refused', (url, reason) => {
    expect(checkTarget(url, strict)).toMatchObject({ permitted: false, code: 'invalidUrl' })
    expect(refusalOf(url)).toContain(reason)
    expect(refusalOf(url)).not.toContain('secret')
  })
})

describe('http', () => {
  it('http is refused unless the policy permits it', () => {
    expect(refusalOf('http://example.com/')).toContain('begins with http:')
    expect(refusalOf('http://example.com/')).toContain('the setting allow (webhookAllow, --webhook-allow)')
    expect(refusalOf('http://8.8.8.8/')).toContain('plain http')
    expect(checkTarget('http://example.com/', networkPolicy({ allowHttp: true }))).toMatchObject({
      permitted: true,
    })
  })

  it('with an allow list, http to a name is permitted here and judged by its addresses at the connection', () => {
    expect(checkTarget('http://receiver.test/', development)).toMatchObject({ permitted: true })
    expect(checkTarget('http://8.8.8.8/', development)).toMatchObject({ permitted: false })
  })

  it('through a proxy, http to a name needs allowHttp', () => {
    const proxied = { proxied: true }
    expect(checkTarget('http://receiver.test/', development, proxied)).toMatchObject({ permitted: false })
    expect(checkTarget('http://127.0.0.1/', development, proxied)).toMatchObject({ permitted: true })
    expect(checkTarget('http://a.test/', networkPolicy({ allowHttp: true }), proxied)).toMatchObject({
      permitted: true,
    })
    expect(checkTarget('https://10.0.0.1/', strict, proxied)).toMatchObject({ code: 'refusedAddress' })
  })
})

it('only the given ports are permitted', () => {
  const few = networkPolicy({ ports: [443, 8443] })
  expect(checkTarget('https://example.com/', few)).toMatchObject({ permitted: true })
  expect(checkTarget('https://example.com:8443/', few)).toMatchObject({ permitted: true })
  expect(refusalOf('https://example.com:22/', few)).toContain('443, 8443')
})
