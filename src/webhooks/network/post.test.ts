import { Socket } from 'node:net'

import { describe, expect, it, onTestFinished } from 'vitest'

import { eventually } from '../../../test/support/brokers/eventually.ts'
import { startHostileReceiver } from '../../../test/support/hostile-receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { startCountingReceiver } from '../../../test/support/receiver.ts'
import { recordingDialler, resolveNothing } from '../../../test/support/recording-dialler.ts'
import { endpointHeaders, headersProblem } from './headers.ts'
import { LOOPBACK, networkPolicy } from './policy.ts'
import { createPoster, excerptOf, type Message, type PostLimits } from './post.ts'

useQuietProcess()

const PATIENT = { timeoutMs: 20_000 }
const MESSAGE: Message = {
  headers: { 'webhook-id': 'msg_1', 'content-type': 'application/json' },
  body: '{"a":1}',
}

function poster(limits: Partial<PostLimits> = {}) {
  const { dial } = recordingDialler({ loopback: true })
  const made = createPoster({
    policy: networkPolicy({ allow: LOOPBACK }),
    dial,
    resolve: resolveNothing,
    limits,
  })
  onTestFinished(async () => made.close())
  return made
}

describe('requests', () => {
  it('the request has the given body and headers, and the reply has the response', async () => {
    const receiver = await startCountingReceiver({
      answer: (_request, response) =>
        response.writeHead(503, { 'retry-after': 'Sun, 01 Mar 2026 12:00:30 GMT' }).end('later\nplease'),
    })
    const reply = await poster().post(`${receiver.url}?a=b%20c`, MESSAGE, PATIENT)
    expect(reply).toEqual({
      kind: 'answered',
      status: 503,
      retryAfter: 'Sun, 01 Mar 2026 12:00:30 GMT',
      excerpt: 'later please',
      truncated: false,
      durationMs: expect.any(Number),
    })
    expect(receiver.requests).toMatchObject([
      {
        path: '/hook?a=b%20c',
        body: '{"a":1}',
        headers: { host: `127.0.0.1:${receiver.port}`, 'webhook-id': 'msg_1', 'content-length': '7' },
      },
    ])
  })

  it('the body may be bytes, or empty', async () => {
    const receiver = await startCountingReceiver()
    const target = poster()
    await target.post(receiver.url, { headers: {}, body: Buffer.from('€') }, PATIENT)
    await target.post(receiver.url, { headers: {}, body: '' }, PATIENT)
    expect(receiver.requests.map(({ body, headers }) => [body, headers['content-length']])).toEqual([
      ['€', '3'],
      ['', '0'],
    ])
  })

  it('a Retry-After that is too long is ignored', async () => {
    const receiver = await startCountingReceiver({
      answer: (_request, response) => response.writeHead(503, { 'retry-after': '9'.repeat(65) }).end(),
    })
    expect(await poster().post(receiver.url, MESSAGE, PATIENT)).not.toHaveProperty('retryAfter')
  })
})

describe('headers that would break the request', () => {
  it.each<[string, string]>([
    ['x-a', 'b\r\nx-injected: secret'],
    ['x-a', 'b\nsecret'],
    ['x-a', 'b\0secret'],
    ['x-a\r\nx-injected', 'secret'],
    ['host', 'secret.test'],
    ['transfer-encoding', 'chunked'],
    ['content-length', '1'],
    ['expect', '100-continue'],
  ])('the header %j: %j is refused before anything is sent', async (name, value) => {
    const receiver = await startCountingReceiver()
    const reply = await poster().post(receiver.url, { headers: { [name]: value }, body: '' }, PATIENT)
    expect(reply).toMatchObject({ kind: 'failed', code: 'invalidHeaders' })
    expect(JSON.stringify(reply)).not.toContain('secret')
    expect(receiver.connections).toBe(0)
  })
})

it('a URL that cannot be called fails with the reason, which does not repeat the path', async () => {
  const reply = await poster().post('ftp://receiver.test/secret', MESSAGE, PATIENT)
  expect(reply).toMatchObject({ kind: 'failed', code: 'invalidUrl' })
  expect(JSON.stringify(reply)).not.toContain('secret')
})

describe('connections', () => {
  it('connections are reused', async () => {
    const receiver = await startCountingReceiver()
    const target = poster({ keepAliveMs: 60_000 })
    for (let i = 0; i < 10; i += 1) await target.post(receiver.url, MESSAGE, PATIENT)
    expect(receiver.connections).toBe(1)
  })

  it('idle connections are closed, even if the server allows a longer keep-alive', async () => {
    const receiver = await startCountingReceiver()
    await poster({ keepAliveMs: 50 }).post(receiver.url, MESSAGE, PATIENT)
    await eventually(async () => expect(receiver.open).toBe(0))
  })

  it('no more than maxIdlePerOrigin connections stay idle, and no request waits for one', async () => {
    const receivers = await answeringTogether(20)
    const target = poster({ maxIdlePerOrigin: 3, keepAliveMs: 60_000 })
    const replies = await Promise.all(
      Array.from({ length: 20 }, async () => target.post(receivers.url, MESSAGE, PATIENT)),
    )
    expect(replies.every((reply) => reply.kind === 'answered')).toBe(true)
    await eventually(async () => expect(receivers.open).toBe(3))
  })

  it('no more than maxIdleConnections stay idle for all origins together', async () => {
    const receivers = await Promise.all(Array.from({ length: 6 }, async () => startCountingReceiver()))
    const target = poster({ maxIdleConnections: 2, keepAliveMs: 60_000 })
    for (const { url } of receivers) await target.post(url, MESSAGE, PATIENT)
    await eventually(async () => expect(receivers.reduce((sum, { open }) => sum + open, 0)).toBe(2))
  })

  it('closing the poster closes its connections', async () => {
    const receiver = await startCountingReceiver()
    const target = poster({ keepAliveMs: 60_000 })
    await target.post(receiver.url, MESSAGE, PATIENT)
    await target.close()
    await eventually(async () => expect(receiver.open).toBe(0))
    expect(await target.post(receiver.url, MESSAGE, PATIENT)).toMatchObject({
      kind: 'failed',
      code: 'closed',
    })
  })

  it('a connection that the server closed is replaced', async () => {
    const receiver = await startCountingReceiver({ keepAlive: false })
    const target = poster()
    for (let i = 0; i < 3; i += 1) {
      expect(await target.post(receiver.url, MESSAGE, PATIENT)).toMatchObject({ kind: 'answered' })
    }
    expect(receiver.connections).toBe(3)
  })
})

describe('signals', () => {
  it('a signal that fires before the response rejects the request with its reason', async () => {
    const receiver = await startHostileReceiver('neverAnswers')
    const controller = new AbortController()
    const post = poster().post(receiver.url, MESSAGE, { ...PATIENT, signal: controller.signal })
    await eventually(async () => expect(receiver.received()).toContain('msg_1'))
    controller.abort(new Error('lease lost'))
    await expect(post).rejects.toThrow('lease lost')
    await receiver.deserted()
  })

  it('a signal that fires during the body rejects the request with its reason', async () => {
    const receiver = await startHostileReceiver('bodyByteByByte')
    const controller = new AbortController()
    const post = poster().post(receiver.url, MESSAGE, { ...PATIENT, signal: controller.signal })
    await eventually(async () => expect(receiver.received()).toContain('msg_1'))
    controller.abort(new Error('lease lost'))
    await expect(post).rejects.toThrow('lease lost')
    await receiver.deserted()
  })

  it('with a signal that has fired already, nothing is sent', async () => {
    const receiver = await startCountingReceiver()
    const signal = AbortSignal.abort(new Error('lease lost'))
    await expect(poster().post(receiver.url, MESSAGE, { ...PATIENT, signal })).rejects.toThrow('lease lost')
    expect(receiver.connections).toBe(0)
  })
})

describe('connecting', () => {
  /** A poster whose sockets never connect. */
  function neverConnecting(connectTimeoutMs: number) {
    const sockets: Socket[] = []
    const dial = (): Socket => {
      const socket = new Socket()
      sockets.push(socket)
      return socket
    }
    const made = createPoster({
      policy: networkPolicy(),
      dial,
      resolve: async () => ['8.8.8.8', '8.8.4.4'],
      limits: { connectTimeoutMs },
    })
    onTestFinished(async () => made.close())
    return { made, sockets }
  }

  it('each address gets an equal part of the connect timeout, and no socket stays open', async () => {
    const { made, sockets } = neverConnecting(200)
    expect(await made.post('https://stuck.test/', MESSAGE, PATIENT)).toMatchObject({ code: 'timeout' })
    expect(sockets.map(({ destroyed }) => destroyed)).toEqual([true, true])
  })

  it('the timeout and the signal apply while connecting', async () => {
    const { made } = neverConnecting(60_000)
    expect(await made.post('https://stuck.test/', MESSAGE, { timeoutMs: 50 })).toMatchObject({
      code: 'timeout',
      message: 'no complete answer within 50 ms',
    })
    const controller = new AbortController()
    const post = made.post('https://stuck.test/', MESSAGE, { ...PATIENT, signal: controller.signal })
    controller.abort(new Error('lease lost'))
    await expect(post).rejects.toThrow('lease lost')
  })

  it('closing the poster ends a connection attempt', async () => {
    const { made, sockets } = neverConnecting(60_000)
    const post = made.post('https://stuck.test/', MESSAGE, PATIENT)
    await eventually(async () => expect(sockets).toHaveLength(1))
    await made.close()
    expect(await post).toMatchObject({ kind: 'failed', code: 'closed' })
    expect(sockets[0]?.destroyed).toBe(true)
  })
})

it.each([{ maxResponseBytes: 0 }, { connectTimeoutMs: Number.NaN }, { maxIdlePerOrigin: 1.5 }])(
  'the limits %j are refused',
  (limits) => {
    const attempt = () => createPoster({ policy: networkPolicy(), limits })
    expect(attempt).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
    expect(attempt).toThrow(Object.keys(limits)[0])
  },
)

it.each<[string, readonly (string | readonly number[])[], number, string]>([
  ['text is unchanged', ['{"ok":', 'true}'], 1_024, '{"ok":true}'],
  ['the size is limited', ['abcdef'], 4, 'abcd'],
  ['a character that is cut in two is left out', ['ab€'], 4, 'ab'],
  ['a character that spans two chunks is whole', [[0xe2, 0x82], [0xac]], 1_024, '€'],
  ['line breaks become spaces', ['a\r\nb\tc\n'], 1_024, 'a b c'],
  ['control characters are removed', ['a\0b\u001b[31mc\u0085\u009bd\u007f'], 1_024, 'ab[31mcd'],
  [
    'characters that change the direction of text are removed',
    ['a\u202eb\u2066c\u2028d\u200f'],
    1_024,
    'abcd',
  ],
  ['bytes that are not UTF-8 are shown as replacement characters', [[0x61, 0xff, 0x62]], 1_024, 'a\ufffdb'],
  ['an empty body has an empty excerpt', [], 1_024, ''],
])('excerpt: %s', (_promise, chunks, bytes, expected) => {
  const given = chunks.map((chunk) =>
    typeof chunk === 'string' ? Buffer.from(chunk) : Uint8Array.from(chunk),
  )
  expect(excerptOf(given, bytes)).toBe(expected)
})

it('the headers of an endpoint are returned with their names in lower case', () => {
  expect(endpointHeaders({ Authorization: 'Bearer a b', 'X-Empty': '', 'x-tab': 'a\tb' })).toEqual({
    authorization: 'Bearer a b',
    'x-empty': '',
    'x-tab': 'a\tb',
  })
})

describe('headers of endpoints', () => {
  it.each([
    ['x-a', 'secret\r\nx-injected: 1'],
    ['x-a', 'secret\n'],
    ['x-a', 'secret\r'],
    ['x-a', 'secret\0'],
    ['x-a', '\u007fsecret'],
    ['x-a', 'secrét'],
    ['x-a', 'secret\u010a'],
    ['x-a', ' secret'],
    ['x-a', 'secret '],
  ])('the header %j: %j is refused, and its value is not repeated', (name, value) => {
    const attempt = () => endpointHeaders({ [name]: value })
    expect(attempt).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(attempt).toThrow(JSON.stringify(name))
    expect(attempt).not.toThrow('sec')
    expect(headersProblem({ [name]: value })).toContain(JSON.stringify(name))
  })

  it.each([
    ['x-a\r\nx-injected', 'x-a'],
    ['x a', 'x'],
    ['x:a', 'x'],
    ['', ''],
    ['x-ä', 'x-'],
    ['Authorization: Bearer secret', 'Authorization'],
    ['Authorization\tsecret', 'Authorization'],
  ])('the header name %j is refused, and only its valid start is repeated', (name, start) => {
    const attempt = () => endpointHeaders({ [name]: 'secret' })
    expect(attempt).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(attempt).toThrow(`begins with ${JSON.stringify(start)} and`)
    expect(attempt).not.toThrow('sec')
    expect(attempt).not.toThrow('inject')
    expect(headersProblem({ [name]: 'secret' })).toContain(`begins with ${JSON.stringify(start)} and`)
  })

  it('a header value that is not a text is refused', () => {
    const parsed: Record<string, string> = JSON.parse('{"x-a": ["b"]}')
    expect(() => endpointHeaders(parsed)).toThrow('"x-a"')
  })

  it('a header name in two spellings is refused', () => {
    expect(() => endpointHeaders({ 'X-A': '1', 'x-a': '2' })).toThrow('twice')
  })

  it('too many headers, or too large ones, are refused', () => {
    const many = Object.fromEntries(Array.from({ length: 33 }, (_, i) => [`x-${i}`, '']))
    expect(() => endpointHeaders(many)).toThrow('33 headers')
    expect(() => endpointHeaders({ 'x-a': 'a'.repeat(8_192) })).toThrow('8195 characters')
  })
})

it.each([
  'Host',
  'content-length',
  'Content-Type',
  'content-encoding',
  'transfer-encoding',
  'connection',
  'keep-alive',
  'upgrade',
  'expect',
  'te',
  'trailer',
  'proxy-authorization',
  'webhook-id',
  'Webhook-Signature',
  'idempotency-key',
])('an endpoint cannot set the header %s', (name) => {
  expect(() => endpointHeaders({ [name]: 'x' })).toThrow('is set by Leasehold')
})

it('the dispatcher may set the headers of a delivery, but not those of the connection', () => {
  expect(headersProblem({ 'webhook-id': 'msg_1', 'content-type': 'application/json' })).toBeUndefined()
  for (const name of [
    'host',
    'Content-Length',
    'transfer-encoding',
    'connection',
    'expect',
    'proxy-authorization',
  ]) {
    expect(headersProblem({ [name]: '1' })).toContain(name)
  }
})

/** A receiver that answers once this many requests have arrived. */
async function answeringTogether(count: number) {
  const answers: (() => void)[] = []
  return startCountingReceiver({
    answer: (_request, response) => {
      answers.push(() => response.end())
      if (answers.length === count) for (const answer of answers) answer()
    },
  })
}
