import { describe, expect, it, onTestFinished, vi } from 'vitest'

import {
  type Hostility,
  startDeafReceiver,
  startHostileReceiver,
  startTlsReceiver,
  testCertificate,
} from '../../../test/support/hostile-receiver.ts'
import { startCountingReceiver } from '../../../test/support/receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { recordingDialler, resolveNothing } from '../../../test/support/recording-dialler.ts'
import { LOOPBACK, networkPolicy } from './policy.ts'
import { createPoster, type PosterOptions, type PostLimits } from './post.ts'

useQuietProcess()

/** Longer than a test may take, so that a limit that is not enforced makes the test fail. */
const NEVER_MS = 3_600_000
const PATIENT = { timeoutMs: NEVER_MS }
const UNLIMITED = { headTimeoutMs: NEVER_MS, bodyTimeoutMs: NEVER_MS }
const MESSAGE = { headers: { 'webhook-id': 'msg_1' }, body: '{"a":1}' }

function poster(limits: Partial<PostLimits> = {}, options: Partial<PosterOptions> = {}) {
  const { dial, addresses } = recordingDialler({ loopback: true })
  const policy = networkPolicy({ allow: LOOPBACK })
  const made = createPoster({
    policy,
    dial,
    resolve: resolveNothing,
    limits: { ...UNLIMITED, ...limits },
    ...options,
  })
  onTestFinished(async () => {
    await made.close()
    expect(addresses()).toEqual(addresses().length === 0 ? [] : ['127.0.0.1'])
  })
  return made
}

async function outcome(hostility: Hostility, timeoutMs: number, limits: Partial<PostLimits> = {}) {
  const receiver = await startHostileReceiver(hostility)
  const reply = await poster(limits).post(receiver.url, MESSAGE, { timeoutMs })
  // The connection must be closed: one that stays open is a leak.
  await receiver.deserted()
  return reply
}

describe('slow receivers', () => {
  it('a receiver that never answers costs the timeout of the request', async () => {
    expect(await outcome('neverAnswers', 200)).toMatchObject({
      kind: 'failed',
      code: 'timeout',
      message: 'no complete answer within 200 ms',
    })
  })

  it('a receiver that never answers costs no more than headTimeoutMs', async () => {
    expect(await outcome('neverAnswers', NEVER_MS, { headTimeoutMs: 200 })).toMatchObject({
      kind: 'failed',
      code: 'timeout',
      message: 'no answer within 200 ms',
    })
  })

  it('a receiver that answers one byte per second costs the timeout of the request', async () => {
    expect(await outcome('answersByteByByte', 1_500)).toMatchObject({ kind: 'failed', code: 'timeout' })
  })

  it('a receiver that does not read the request costs the timeout of the request', async () => {
    const receiver = await startDeafReceiver()
    const message = { headers: {}, body: Buffer.alloc(32 * 1_024 * 1_024) }
    const reply = await poster().post(receiver.url, message, { timeoutMs: 300 })
    expect(reply).toMatchObject({ kind: 'failed', code: 'timeout' })
  })

  it('a body of one byte per second costs bodyTimeoutMs, and the status counts', async () => {
    expect(await outcome('bodyByteByByte', NEVER_MS, { bodyTimeoutMs: 100 })).toMatchObject({
      kind: 'answered',
      status: 200,
      truncated: true,
    })
  })

  it('a body that is incomplete at the timeout of the request is truncated, and the status counts', async () => {
    expect(await outcome('bodyByteByByte', 2_500)).toMatchObject({
      kind: 'answered',
      status: 200,
      truncated: true,
    })
  })
})

describe('receivers that send too much', () => {
  it('an endless body is read up to maxResponseBytes, and the status counts', async () => {
    expect(await outcome('endlessBody', NEVER_MS)).toMatchObject({
      kind: 'answered',
      status: 200,
      truncated: true,
      excerpt: 'x'.repeat(1_024),
    })
    expect(await outcome('endlessFailure', NEVER_MS, { excerptBytes: 8 })).toMatchObject({
      kind: 'answered',
      status: 500,
      retryAfter: '7',
      truncated: true,
      excerpt: 'no no no',
    })
  })

  it('an endless head fails at maxHeaderBytes', async () => {
    expect(await outcome('endlessHead', NEVER_MS)).toMatchObject({ kind: 'failed', code: 'headersTooLarge' })
  })

  it('a head that is larger than maxHeaderBytes fails', async () => {
    const expected = { kind: 'failed', code: 'headersTooLarge' }
    expect(await outcome('largeHead', NEVER_MS, { maxHeaderBytes: 2_048 })).toMatchObject(expected)
    expect(await outcome('largeHead', NEVER_MS, { keepAliveMs: 1 })).toMatchObject({ kind: 'answered' })
  })

  it('the excerpt is text without control characters, and compressed bodies are not unpacked', async () => {
    expect(await outcome('answersNonsense', NEVER_MS, { keepAliveMs: 1 })).toMatchObject({
      kind: 'answered',
      excerpt: '[31m\ufffd\ufffd hi',
      truncated: false,
    })
  })
})

describe('receivers that send without end what is not read', () => {
  it('the 21st interim response fails the request', async () => {
    expect(await outcome('endlessInterim', NEVER_MS)).toMatchObject({
      kind: 'failed',
      code: 'headersTooLarge',
      message: 'the receiver sent more than 20 interim answers (1xx)',
    })
  })

  it.each<Hostility>(['endlessReason', 'endlessEmptyLines'])(
    'before the head of its response is complete, a receiver may send a limited number of bytes: %s',
    async (hostility) => {
      expect(await outcome(hostility, NEVER_MS)).toMatchObject({
        kind: 'failed',
        code: 'headersTooLarge',
        message: 'the receiver sent more than 49152 bytes and the head of its answer was not complete',
      })
    },
  )

  it.each<Hostility>(['endlessChunkExtension', 'endlessTrailers'])(
    'around a body, a receiver may send a limited number of bytes, and the status counts: %s',
    async (hostility) => {
      expect(await outcome(hostility, NEVER_MS)).toMatchObject({
        kind: 'answered',
        status: 200,
        truncated: true,
      })
    },
  )

  it('what a receiver sends on an idle connection closes it', async () => {
    const limits = { keepAliveMs: NEVER_MS }
    expect(await outcome('answersAndGoesOn', NEVER_MS, limits)).toMatchObject({ kind: 'answered' })
  })

  it('the bytes of a connection that is kept are counted for each request anew', async () => {
    const receiver = await startCountingReceiver({
      answer: (_request, response) => response.end('x'.repeat(16_000)),
    })
    const target = poster({ keepAliveMs: NEVER_MS })
    for (let i = 0; i < 10; i += 1) {
      expect(await target.post(receiver.url, MESSAGE, PATIENT)).toMatchObject({ truncated: false })
    }
    expect(receiver.connections).toBe(1)
  })
})

describe('receivers that break off', () => {
  it.each<[Hostility, object]>([
    ['closes', { kind: 'failed', code: 'reset' }],
    ['resetsMidHead', { kind: 'failed', code: 'reset' }],
    ['resetsMidBody', { kind: 'answered', status: 200, truncated: true }],
    ['closesMidBody', { kind: 'answered', status: 200, truncated: true }],
    ['speaksAnotherProtocol', { kind: 'failed', code: 'protocol' }],
    ['changesProtocol', { kind: 'failed', code: 'protocol' }],
  ])('a receiver that breaks off (%s) has the expected reply', async (hostility, expected) => {
    expect(await outcome(hostility, NEVER_MS)).toMatchObject(expected)
  })

  it('a receiver that cannot be reached is a failure', async () => {
    const receiver = await startHostileReceiver('closes')
    await receiver.stop()
    expect(await poster().post(receiver.url, MESSAGE, PATIENT)).toMatchObject({
      kind: 'failed',
      code: 'connect',
      // The tenant is not told the address that a name was resolved to.
      message: 'cannot connect to 127.0.0.1: ECONNREFUSED',
    })
  })
})

it('a redirect to cloud metadata is not followed', async () => {
  // Nothing but 127.0.0.1 was dialled: the poster of every test here checks that.
  expect(await outcome('redirectsToMetadata', NEVER_MS)).toMatchObject({ kind: 'answered', status: 307 })
})

describe('TLS', () => {
  const right = testCertificate('right')
  const wrongName = testCertificate('wrong-name')
  const resolve = async () => ['127.0.0.1']
  const trusting = { resolve, tls: { ca: [right.cert, wrongName.cert] } }

  it('a trusted certificate with the name of the URL is accepted, and SNI has that name', async () => {
    const names: string[] = []
    const receiver = await startTlsReceiver({
      ...right,
      SNICallback: (name, answer) => {
        names.push(name)
        answer(null)
      },
    })
    const url = `https://receiver.test:${receiver.port}/`
    expect(await poster({}, trusting).post(url, MESSAGE, PATIENT)).toMatchObject({
      kind: 'answered',
      status: 200,
      excerpt: 'ok',
    })
    expect(names).toEqual(['receiver.test'])
    expect(await poster({}, trusting).post(receiver.url, MESSAGE, PATIENT)).toMatchObject({ status: 200 })
  })

  it('nothing is sent to a receiver whose certificate has another name', async () => {
    const receiver = await startTlsReceiver(wrongName)
    const url = `https://receiver.test:${receiver.port}/`
    const reply = await poster({}, trusting).post(url, MESSAGE, PATIENT)
    expect(reply).toMatchObject({ kind: 'failed', code: 'tls', message: expect.stringContaining('altnames') })
    await receiver.deserted()
  })

  it('a failure message has at most 1 KB, however many names a certificate has', async () => {
    const manyNames = testCertificate('many-names')
    const receiver = await startTlsReceiver(manyNames)
    const url = `https://receiver.test:${receiver.port}/`
    const reply = await poster({}, { resolve, tls: { ca: manyNames.cert } }).post(url, MESSAGE, PATIENT)
    expect(reply).toMatchObject({ kind: 'failed', code: 'tls', message: expect.stringContaining('altnames') })
    expect(reply.kind === 'failed' && Buffer.byteLength(reply.message)).toBe(1_024)
    await receiver.deserted()
  })

  it('nothing is sent to a receiver whose certificate is not trusted', async () => {
    const receiver = await startTlsReceiver(right)
    const url = `https://receiver.test:${receiver.port}/`
    expect(await poster({}, { resolve }).post(url, MESSAGE, PATIENT)).toMatchObject({ code: 'tls' })
    await receiver.deserted()
  })

  it('a certificate that is not trusted is refused with NODE_TLS_REJECT_UNAUTHORIZED=0 as well', async () => {
    vi.stubEnv('NODE_TLS_REJECT_UNAUTHORIZED', '0')
    vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    onTestFinished(() => {
      vi.unstubAllEnvs()
      vi.restoreAllMocks()
    })
    const receiver = await startTlsReceiver(right)
    const url = `https://receiver.test:${receiver.port}/`
    expect(await poster({}, { resolve }).post(url, MESSAGE, PATIENT)).toMatchObject({ code: 'tls' })
  })

  it.each<Hostility>(['speaksAnotherProtocol', 'closes', 'answersNonsense'])(
    'nothing of an https request is sent to a port without TLS: %s',
    async (hostility) => {
      const receiver = await startHostileReceiver(hostility)
      const url = receiver.url.replace('http:', 'https:')
      expect(await poster().post(url, MESSAGE, PATIENT)).toMatchObject({ kind: 'failed', code: 'tls' })
      await receiver.deserted()
      expect(receiver.received()).not.toContain('msg_1')
    },
  )

  it('a receiver gets no second TLS handshake on a connection', async () => {
    let tell: (hasSecond: boolean) => void = () => {}
    const hasSecond = new Promise<boolean>((resolve) => (tell = resolve))
    const receiver = await startTlsReceiver({ ...right, maxVersion: 'TLSv1.2' }, (socket) => {
      socket.once('error', () => tell(false))
      socket.renegotiate({}, (error) => tell(error === null))
    })
    const url = `https://receiver.test:${receiver.port}/`
    const controller = new AbortController()
    const posted = poster({}, trusting).post(url, MESSAGE, {
      ...PATIENT,
      signal: controller.signal,
    })
    expect(await hasSecond).toBe(false)
    controller.abort(new Error('enough'))
    await expect(posted).rejects.toThrow('enough')
  })

  it('a TLS handshake that never ends costs connectTimeoutMs', async () => {
    const receiver = await startHostileReceiver('neverAnswers')
    const url = receiver.url.replace('http:', 'https:')
    const reply = await poster({ connectTimeoutMs: 200 }).post(url, MESSAGE, PATIENT)
    expect(reply).toMatchObject({ kind: 'failed', code: 'timeout' })
    await receiver.deserted()
  })
})

it('a receiver that never answers does not delay others', async () => {
  const silent = await startHostileReceiver('neverAnswers')
  const other = await startHostileReceiver('answersNonsense')
  const made = poster()
  const controllers = Array.from({ length: 50 }, () => new AbortController())
  const waiting = controllers.map(async ({ signal }) =>
    made.post(silent.url, MESSAGE, { ...PATIENT, signal }),
  )
  expect(await made.post(other.url, MESSAGE, PATIENT)).toMatchObject({ kind: 'answered' })
  for (const controller of controllers) controller.abort(new Error('enough'))
  for (const post of waiting) await expect(post).rejects.toThrow('enough')
})
