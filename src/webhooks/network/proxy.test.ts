import { once } from 'node:events'
import { createServer } from 'node:http'
import { connect, type Socket } from 'node:net'

import { describe, expect, it, onTestFinished } from 'vitest'

import { freePort } from '../../../test/support/brokers/broker.ts'
import { startTlsReceiver, testCertificate } from '../../../test/support/hostile-receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { startCountingReceiver } from '../../../test/support/receiver.ts'
import { recordingDialler } from '../../../test/support/recording-dialler.ts'
import { networkPolicy, type NetworkPolicyOptions } from './policy.ts'
import { createPoster, type PosterOptions } from './post.ts'

useQuietProcess()

const PATIENT = { timeoutMs: 20_000 }
const MESSAGE = { headers: { 'x-key': 'msg_1' }, body: '{}' }

type Behaviour = 'tunnels' | 'refuses' | 'neverAnswers' | 'closes'

/** An HTTP proxy on loopback that sends every tunnel to one port of loopback, wherever it was to go. */
async function startEgressProxy(behaviour: Behaviour, port = 0) {
  const asked: { authority: string; authorization: string | undefined }[] = []
  const sockets = new Set<Socket>()
  const server = createServer()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  server.on('connect', (request, socket) => {
    asked.push({ authority: request.url ?? '', authorization: request.headers['proxy-authorization'] })
    socket.on('error', () => {})
    if (behaviour === 'refuses') socket.end('HTTP/1.1 403 Forbidden\r\n\r\n')
    if (behaviour === 'closes') socket.destroy()
    if (behaviour !== 'tunnels') return
    const onward = connect({ host: '127.0.0.1', port })
    onward.on('error', () => socket.destroy())
    onward.once('connect', () => socket.write('HTTP/1.1 200 Connected\r\n\r\n'))
    socket.pipe(onward).pipe(socket)
    socket.once('close', () => onward.destroy())
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(async () => {
    for (const socket of sockets) socket.destroy()
    server.close()
    await once(server, 'close')
  })
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return { asked, url: `http://127.0.0.1:${address.port}`, port: address.port }
}

function poster(proxy: string, options: Partial<PosterOptions> = {}, policy: NetworkPolicyOptions = {}) {
  const { dial, dialled } = recordingDialler()
  const resolve = async (): Promise<never> => {
    throw new Error('the proxy resolves')
  }
  const made = createPoster({ policy: networkPolicy(policy), proxy, dial, resolve, ...options })
  onTestFinished(async () => {
    await made.close()
    expect(dialled).toEqual([])
  })
  return made
}

describe('through a proxy', () => {
  it('the proxy gets the name, and TLS verifies it with the receiver', async () => {
    const right = testCertificate('right')
    const receiver = await startTlsReceiver(right)
    const proxy = await startEgressProxy('tunnels', receiver.port)
    const trusting = { tls: { ca: right.cert } }
    const target = poster(`http://us%40er:p%3Aw@127.0.0.1:${proxy.port}`, trusting)
    expect(await target.post('https://receiver.test/hook', MESSAGE, PATIENT)).toMatchObject({
      kind: 'answered',
      status: 200,
    })
    expect(proxy.asked).toEqual([
      {
        authority: 'receiver.test:443',
        authorization: `Basic ${Buffer.from('us@er:p:w').toString('base64')}`,
      },
    ])
    expect(await target.post('https://other.test/hook', MESSAGE, PATIENT)).toMatchObject({ code: 'tls' })
  })

  it('http goes through a tunnel as well, if the policy permits it', async () => {
    const receiver = await startCountingReceiver()
    const proxy = await startEgressProxy('tunnels', receiver.port)
    const target = poster(proxy.url, { limits: { keepAliveMs: 60_000 } }, { allowHttp: true })
    for (let i = 0; i < 10; i += 1) {
      expect(await target.post('http://receiver.test:8080/hook', MESSAGE, PATIENT)).toMatchObject({
        status: 200,
      })
    }
    expect(proxy.asked).toEqual([{ authority: 'receiver.test:8080', authorization: undefined }])
    expect(receiver.requests[0]?.headers.host).toBe('receiver.test:8080')
    expect(receiver.requests[0]?.headers).not.toHaveProperty('proxy-authorization')
  })

  it('addresses in the URL are still checked, and http to a name is refused', async () => {
    const proxy = await startEgressProxy('refuses')
    const target = poster(proxy.url, {}, { allow: ['127.0.0.0/8'] })
    for (const host of ['10.0.0.1', '[::1]', '2852039166', '[64:ff9b::a00:1]']) {
      expect(await target.post(`https://${host}/`, MESSAGE, PATIENT)).toMatchObject({
        code: 'refusedAddress',
      })
    }
    expect(await target.post('http://receiver.test/', MESSAGE, PATIENT)).toMatchObject({ code: 'invalidUrl' })
    expect(proxy.asked).toEqual([])
  })
})

describe('failing proxies', () => {
  it('a proxy that refuses is a failure with its status', async () => {
    const proxy = await startEgressProxy('refuses')
    expect(await poster(proxy.url).post('https://receiver.test/', MESSAGE, PATIENT)).toMatchObject({
      kind: 'failed',
      code: 'proxy',
      message: 'the proxy answered HTTP 403 for receiver.test',
    })
  })

  it('a proxy that closes the connection, or cannot be reached, is a failure', async () => {
    const proxy = await startEgressProxy('closes')
    expect(await poster(proxy.url).post('https://receiver.test/', MESSAGE, PATIENT)).toMatchObject({
      code: 'proxy',
    })
    const port = await freePort()
    expect(await poster(`http://127.0.0.1:${port}`).post('https://a.test/', MESSAGE, PATIENT)).toMatchObject({
      code: 'proxy',
    })
  })

  it.each<Behaviour>(['refuses', 'closes'])(
    'what is recorded of a proxy that %s has none of its credentials',
    async (behaviour) => {
      const proxy = await startEgressProxy(behaviour)
      const url = proxy.url.replace('http://', 'http://us3r:pa55word@')
      const reply = await poster(url).post('https://receiver.test/', MESSAGE, PATIENT)
      expect(reply).toMatchObject({ kind: 'failed', code: 'proxy' })
      const encoded = Buffer.from('us3r:pa55word').toString('base64')
      for (const credential of ['us3r', 'pa55word', encoded])
        expect(JSON.stringify(reply)).not.toContain(credential)
      expect(proxy.asked.map(({ authorization }) => authorization)).toEqual([`Basic ${encoded}`])
    },
  )

  it('a proxy that never answers costs the connect timeout', async () => {
    const proxy = await startEgressProxy('neverAnswers')
    const limits = { connectTimeoutMs: 200 }
    expect(
      await poster(proxy.url, { limits }).post('https://receiver.test/', MESSAGE, PATIENT),
    ).toMatchObject({
      code: 'timeout',
    })
  })
})

it.each([
  'nonsense',
  'socks5://user:secret@127.0.0.1',
  'http://user:secret%zz@127.0.0.1',
  'user:secret@127.0.0.1',
  '',
])('the proxy setting %j is refused, and the error does not repeat it', (proxy) => {
  const attempt = () => createPoster({ policy: networkPolicy(), proxy })
  expect(attempt).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  expect(attempt).not.toThrow('secret')
})
