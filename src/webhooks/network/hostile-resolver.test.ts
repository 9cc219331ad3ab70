import { describe, expect, it, onTestFinished } from 'vitest'

import { startHostileReceiver } from '../../../test/support/hostile-receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { recordingDialler, type RecordingOptions } from '../../../test/support/recording-dialler.ts'
import { startCountingReceiver } from '../../../test/support/receiver.ts'
import { networkPolicy, type NetworkPolicyOptions } from './policy.ts'
import { createPoster } from './post.ts'
import type { Resolve } from './resolve.ts'

useQuietProcess()

const PATIENT = { timeoutMs: 20_000 }
const MESSAGE = { headers: {}, body: '{}' }
const PUBLIC = '93.184.216.34'
const PUBLIC_6 = '2606:4700::1111'

interface Setting extends RecordingOptions, NetworkPolicyOptions {
  readonly resolve: Resolve
}

/** A poster with the default policy and http, on a dialler that connects to stand-ins only. */
function poster({ resolve, standIns = {}, loopback = false, ...policy }: Setting) {
  const recorder = recordingDialler({ standIns, loopback })
  const made = createPoster({
    policy: networkPolicy({ allowHttp: true, ...policy }),
    resolve,
    dial: recorder.dial,
    limits: { connectTimeoutMs: 5_000 },
  })
  onTestFinished(async () => made.close())
  return { ...made, ...recorder }
}

/** Returns these answers one after the other, and the last one from then on. */
function answering(...answers: readonly (readonly string[])[]): Resolve & { readonly asked: string[] } {
  const asked: string[] = []
  const resolve: Resolve = async (host) => {
    asked.push(host)
    return answers[Math.min(asked.length, answers.length) - 1] ?? []
  }
  return Object.assign(resolve, { asked })
}

describe('DNS rebinding', () => {
  it('a name that resolves to a public address first and a private one next is refused the second time', async () => {
    const publicOne = await startCountingReceiver({ keepAlive: false })
    const internal = await startCountingReceiver()
    const resolve = answering([PUBLIC], ['127.0.0.1'])
    const target = poster({ resolve, standIns: { [PUBLIC]: publicOne.port } })
    const url = `http://rebind.test:${internal.port}/`
    expect(await target.post(url, MESSAGE, PATIENT)).toMatchObject({ kind: 'answered', status: 200 })
    expect(await target.post(url, MESSAGE, PATIENT)).toMatchObject({
      kind: 'failed',
      code: 'refusedAddress',
      message: 'rebind.test resolves to an address that is not public',
    })
    expect(target.addresses()).toEqual([PUBLIC])
    expect(internal.requests).toEqual([])
  })

  it('a connection resolves its name once, and goes to the address that was checked', async () => {
    const publicOne = await startCountingReceiver()
    const resolve = answering([PUBLIC], ['127.0.0.1'])
    const target = poster({ resolve, standIns: { [PUBLIC]: publicOne.port } })
    await target.post('http://rebind.test:8080/hook', MESSAGE, PATIENT)
    expect(resolve.asked).toEqual(['rebind.test'])
    expect(target.dialled).toEqual([{ address: PUBLIC, family: 4, port: 8080 }])
    expect(publicOne.requests[0]?.headers.host).toBe('rebind.test:8080')
  })

  it('nothing is sent if the socket is connected to another address', async () => {
    const internal = await startHostileReceiver('neverAnswers')
    // As if the system had redirected the connection: the socket says 127.0.0.1.
    const { dial } = recordingDialler({ loopback: true })
    const made = createPoster({
      policy: networkPolicy({ allowHttp: true }),
      resolve: answering([PUBLIC]),
      dial: ({ family }) => dial({ address: '127.0.0.1', family, port: internal.port }),
    })
    onTestFinished(async () => made.close())
    expect(await made.post('http://rebind.test/', MESSAGE, PATIENT)).toMatchObject({
      code: 'refusedAddress',
      message: expect.stringContaining('connected to an address that is not public'),
    })
    await internal.deserted()
    expect(internal.received()).toBe('')
  })
})

describe('answers with one refused address', () => {
  it.each([
    [[PUBLIC, '127.0.0.1']],
    [['127.0.0.1', PUBLIC]],
    [[PUBLIC, PUBLIC_6, '::1']],
    [[PUBLIC, '10.0.0.7']],
    [[PUBLIC, 'nonsense']],
    [[PUBLIC, '8.8.8.8', '1.1.1.1', '9.9.9.9', '8.8.4.4', '169.254.169.254']],
  ])('the answer %j is refused whole', async (addresses) => {
    const target = poster({ resolve: answering(addresses) })
    expect(await target.post('http://mixed.test/', MESSAGE, PATIENT)).toMatchObject({
      code: 'refusedAddress',
    })
    expect(target.dialled).toEqual([])
  })
})

describe('names that resolve to internal addresses', () => {
  it.each([
    '127.0.0.1',
    '0.0.0.0',
    '10.0.0.1',
    '100.64.0.1',
    '169.254.169.254',
    '168.63.129.16',
    '192.168.1.1',
    '255.255.255.255',
    '::',
    '::1',
    '::ffff:127.0.0.1',
    '::ffff:7f00:1',
    '::127.0.0.1',
    '64:ff9b::7f00:1',
    '64:ff9b:1::1',
    '2002:7f00:1::',
    '2001:0:4136:e378:8000:63bf:80ff:fffe',
    '2606:4700::5efe:7f00:1',
    'fd00:ec2::254',
    'fe80::1',
    'fe80::1%eth0',
    'fec0::1',
    'ff02::1',
    '0177.0.0.1',
    '0x7f.1',
    '2130706433',
    'localhost',
    '',
  ])('a name that resolves to %j is refused', async (address) => {
    const target = poster({ resolve: answering([address]) })
    expect(await target.post('http://inside.test/', MESSAGE, PATIENT)).toMatchObject({
      code: 'refusedAddress',
    })
    expect(target.dialled).toEqual([])
  })
})

it.each([
  '2130706433',
  '0177.0.0.1',
  '0x7f.1',
  '127.1',
  '[::1]',
  '[::ffff:7f00:1]',
  '169.254.169.254',
  'localhost',
])('the host %s is refused without resolving it', async (host) => {
  const resolve = answering([PUBLIC])
  const target = poster({ resolve })
  expect(await target.post(`http://${host}/`, MESSAGE, PATIENT)).toMatchObject({ code: 'refusedAddress' })
  expect(resolve.asked).toEqual([])
  expect(target.dialled).toEqual([])
})

it.each([
  ['[2606:4700:0::1111]', PUBLIC_6, 6],
  ['[::ffff:93.184.216.34]', PUBLIC, 4],
  ['93.184.55330', PUBLIC, 4],
])(
  'a public address in the URL is dialled in the form that was checked: %s',
  async (host, address, family) => {
    const receiver = await startCountingReceiver()
    const resolve = answering([])
    const target = poster({ resolve, standIns: { [address]: receiver.port } })
    expect(await target.post(`http://${host}:8080/`, MESSAGE, PATIENT)).toMatchObject({ kind: 'answered' })
    expect(target.dialled).toEqual([{ address, family, port: 8080 }])
    expect(resolve.asked).toEqual([])
  },
)

it('http goes only to addresses in the allow list, whatever a name resolves to', async () => {
  const inside = await startCountingReceiver()
  const settings = { allowHttp: false, allow: ['127.0.0.0/8'], loopback: true }
  const url = `http://dev.test:${inside.port}/`
  const development = poster({ ...settings, resolve: answering(['127.0.0.1']) })
  expect(await development.post(url, MESSAGE, PATIENT)).toMatchObject({ kind: 'answered' })
  const astray = poster({ ...settings, resolve: answering([PUBLIC]) })
  expect(await astray.post(url, MESSAGE, PATIENT)).toMatchObject({ code: 'refusedAddress' })
  expect(astray.dialled).toEqual([])
})

describe('several addresses', () => {
  it('several addresses are tried in order until one connects', async () => {
    const receiver = await startCountingReceiver()
    const target = poster({
      resolve: answering([PUBLIC_6, '8.8.8.8', PUBLIC]),
      standIns: { [PUBLIC]: receiver.port },
    })
    expect(await target.post('http://many.test/', MESSAGE, PATIENT)).toMatchObject({ kind: 'answered' })
    expect(target.dialled).toEqual([
      { address: PUBLIC_6, family: 6, port: 80 },
      { address: '8.8.8.8', family: 4, port: 80 },
      { address: PUBLIC, family: 4, port: 80 },
    ])
  })

  it('at most four addresses are tried', async () => {
    const many = Array.from({ length: 200 }, (_, i) => `8.8.8.${i}`)
    const target = poster({ resolve: answering(many) })
    expect(await target.post('http://many.test/', MESSAGE, PATIENT)).toMatchObject({ code: 'connect' })
    expect(target.dialled).toHaveLength(4)
  })
})

describe('a name that does not resolve', () => {
  it('a name that does not resolve, or has no address, is a failure', async () => {
    const failing: Resolve = async () => {
      throw new Error('queryA ESERVFAIL unknown.test')
    }
    expect(await poster({ resolve: failing }).post('http://unknown.test/', MESSAGE, PATIENT)).toMatchObject({
      code: 'dns',
      message: 'cannot resolve unknown.test: queryA ESERVFAIL unknown.test',
    })
    expect(
      await poster({ resolve: answering([]) }).post('http://unknown.test/', MESSAGE, PATIENT),
    ).toMatchObject({
      code: 'dns',
    })
  })

  it('a name that never resolves costs the connect timeout', async () => {
    const recorder = recordingDialler()
    const made = createPoster({
      policy: networkPolicy(),
      resolve: async () => new Promise(() => {}),
      dial: recorder.dial,
      limits: { connectTimeoutMs: 100 },
    })
    onTestFinished(async () => made.close())
    expect(await made.post('https://slow.test/', MESSAGE, PATIENT)).toMatchObject({ code: 'timeout' })
    expect(await made.post('https://slow.test/', MESSAGE, { timeoutMs: 50 })).toMatchObject({
      code: 'timeout',
      message: 'no complete answer within 50 ms',
    })
  })
})
