import { Socket } from 'node:net'

import { describe, expect, it, onTestFinished } from 'vitest'

import { eventually } from '../../../test/support/brokers/eventually.ts'
import { startHostileReceiver } from '../../../test/support/hostile-receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { startCountingReceiver } from '../../../test/support/counting-receiver.ts'
import { recordingDialler, resolveNothing } from '../../../test/support/recording-dialler.ts'
import type { PostLimits } from './limits.ts'
import { LOOPBACK, networkPolicy } from './policy.ts'
import { createPoster, type Message } from './post.ts'

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

describe('what arrives', () => {
  it('is the body as it is and the headers, and what is answered comes back', async () => {
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

  it('may be bytes, or nothing', async () => {
    const receiver = await startCountingReceiver()
    const target = poster()
    await target.post(receiver.url, { headers: {}, body: Buffer.from('€') }, PATIENT)
    await target.post(receiver.url, { headers: {}, body: '' }, PATIENT)
    expect(receiver.requests.map(({ body, headers }) => [body, headers['content-length']])).toEqual([
      ['€', '3'],
      ['', '0'],
    ])
  })

  it('a Retry-After longer than any is not passed on', async () => {
    const receiver = await startCountingReceiver({
      answer: (_request, response) => response.writeHead(503, { 'retry-after': '9'.repeat(65) }).end(),
    })
    expect(await poster().post(receiver.url, MESSAGE, PATIENT)).not.toHaveProperty('retryAfter')
  })
})

describe('a header that would break the request', () => {
  it.each<[string, string]>([
    ['x-a', 'b\r\nx-injected: secret'],
    ['x-a', 'b\nsecret'],
    ['x-a', 'b\0secret'],
    ['x-a\r\nx-injected', 'secret'],
    ['host', 'secret.test'],
    ['transfer-encoding', 'chunked'],
    ['content-length', '1'],
    ['expect', '100-continue'],
  ])('%j: %j is refused before anything is sent', async (name, value) => {
    const receiver = await startCountingReceiver()
    const reply = await poster().post(receiver.url, { headers: { [name]: value }, body: '' }, PATIENT)
    expect(reply).toMatchObject({ kind: 'failed', code: 'invalidHeaders' })
    expect(JSON.stringify(reply)).not.toContain('secret')
    expect(receiver.connections).toBe(0)
  })
})

it('a URL that cannot be called is a failure that names the reason, and never the path', async () => {
  const reply = await poster().post('ftp://receiver.test/secret', MESSAGE, PATIENT)
  expect(reply).toMatchObject({ kind: 'failed', code: 'invalidUrl' })
  expect(JSON.stringify(reply)).not.toContain('secret')
})

describe('connections', () => {
  it('are used again', async () => {
    const receiver = await startCountingReceiver()
    const target = poster({ keepAliveMs: 60_000 })
    for (let i = 0; i < 10; i += 1) await target.post(receiver.url, MESSAGE, PATIENT)
    expect(receiver.connections).toBe(1)
  })

  it('are closed when idle, even if the server would keep them for longer', async () => {
    const receiver = await startCountingReceiver()
    await poster({ keepAliveMs: 50 }).post(receiver.url, MESSAGE, PATIENT)
    await eventually(async () => expect(receiver.open).toBe(0))
  })

  it('are kept no more than may be for one origin, and none is waited for', async () => {
    const receivers = await gathered(20)
    const target = poster({ keptPerOrigin: 3, keepAliveMs: 60_000 })
    const replies = await Promise.all(
      Array.from({ length: 20 }, async () => target.post(receivers.url, MESSAGE, PATIENT)),
    )
    expect(replies.every((reply) => reply.kind === 'answered')).toBe(true)
    await eventually(async () => expect(receivers.open).toBe(3))
  })

  it('are kept no more than may be for all origins', async () => {
    const receivers = await Promise.all(Array.from({ length: 6 }, async () => startCountingReceiver()))
    const target = poster({ keptConnections: 2, keepAliveMs: 60_000 })
    for (const { url } of receivers) await target.post(url, MESSAGE, PATIENT)
    await eventually(async () => expect(receivers.reduce((sum, { open }) => sum + open, 0)).toBe(2))
  })

  it('of a poster that is closed are closed', async () => {
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

  it('a server closed meanwhile are made anew', async () => {
    const receiver = await startCountingReceiver({ keepAlive: false })
    const target = poster()
    for (let i = 0; i < 3; i += 1) {
      expect(await target.post(receiver.url, MESSAGE, PATIENT)).toMatchObject({ kind: 'answered' })
    }
    expect(receiver.connections).toBe(3)
  })
})

describe('a signal', () => {
  it('that fires while the answer is waited for ends it with its reason', async () => {
    const receiver = await startHostileReceiver('neverAnswers')
    const controller = new AbortController()
    const post = poster().post(receiver.url, MESSAGE, { ...PATIENT, signal: controller.signal })
    await eventually(async () => expect(receiver.received()).toContain('msg_1'))
    controller.abort(new Error('lease lost'))
    await expect(post).rejects.toThrow('lease lost')
    await receiver.deserted()
  })

  it('that fires during the body ends it with its reason', async () => {
    const receiver = await startHostileReceiver('bodyByteByByte')
    const controller = new AbortController()
    const post = poster().post(receiver.url, MESSAGE, { ...PATIENT, signal: controller.signal })
    await eventually(async () => expect(receiver.received()).toContain('msg_1'))
    controller.abort(new Error('lease lost'))
    await expect(post).rejects.toThrow('lease lost')
    await receiver.deserted()
  })

  it('that has fired already sends nothing', async () => {
    const receiver = await startCountingReceiver()
    const signal = AbortSignal.abort(new Error('lease lost'))
    await expect(poster().post(receiver.url, MESSAGE, { ...PATIENT, signal })).rejects.toThrow('lease lost')
    expect(receiver.connections).toBe(0)
  })
})

describe('while it connects', () => {
  /** Sockets that connect never. */
  function stuck(connectTimeoutMs: number) {
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

  it('each address has its share of the time, and no socket stays', async () => {
    const { made, sockets } = stuck(200)
    expect(await made.post('https://stuck.test/', MESSAGE, PATIENT)).toMatchObject({ code: 'timeout' })
    expect(sockets.map(({ destroyed }) => destroyed)).toEqual([true, true])
  })

  it('the deadline and the signal are heard', async () => {
    const { made } = stuck(60_000)
    expect(await made.post('https://stuck.test/', MESSAGE, { timeoutMs: 50 })).toMatchObject({
      code: 'timeout',
      message: 'no complete answer within 50 ms',
    })
    const controller = new AbortController()
    const post = made.post('https://stuck.test/', MESSAGE, { ...PATIENT, signal: controller.signal })
    controller.abort(new Error('lease lost'))
    await expect(post).rejects.toThrow('lease lost')
  })

  it('closing gives up', async () => {
    const { made, sockets } = stuck(60_000)
    const post = made.post('https://stuck.test/', MESSAGE, PATIENT)
    await eventually(async () => expect(sockets).toHaveLength(1))
    await made.close()
    expect(await post).toMatchObject({ kind: 'failed', code: 'closed' })
    expect(sockets[0]?.destroyed).toBe(true)
  })
})

it.each([{ maxResponseBytes: 0 }, { connectTimeoutMs: Number.NaN }, { keptPerOrigin: 1.5 }])(
  'limits such as %j are refused',
  (limits) => {
    const attempt = () => createPoster({ policy: networkPolicy(), limits })
    expect(attempt).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
    expect(attempt).toThrow(Object.keys(limits)[0])
  },
)

/** A receiver that answers nobody before so many are there. */
async function gathered(count: number) {
  const answers: (() => void)[] = []
  return startCountingReceiver({
    answer: (_request, response) => {
      answers.push(() => response.end())
      if (answers.length === count) for (const answer of answers) answer()
    },
  })
}
