import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'

import { Agent } from 'undici'
import { describe, expect, it, onTestFinished } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../test/support/brokers/events.ts'
import { freePort } from '../../test/support/brokers/port.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { type Answer, type Publisher } from '../outbox/publisher.ts'
import { SaturatedError } from '../runtime/outcome.ts'
import { retryAfterMs } from './http-answer.ts'
import { httpPublisher, type HttpPublisherOptions } from './http.ts'

useQuietProcess()

interface Received {
  readonly path: string
  readonly headers: IncomingMessage['headers']
  readonly body: string
}

type Reply = (request: Received, response: ServerResponse) => void

/** A server of the test's own, and what it was sent. */
async function startServer(answer: Reply = (_request, response) => response.end(), port = 0) {
  const received: Received[] = []
  const receive = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const entry = { path: request.url ?? '', headers: request.headers, body: await text(request) }
    received.push(entry)
    answer(entry, response)
  }
  // A request that is cut off is part of some tests.
  const server = createServer((request, response) => void receive(request, response).catch(() => {}))
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  const stop = async (): Promise<void> => {
    server.closeAllConnections()
    if (!server.listening) return
    server.close()
    await once(server, 'close')
  }
  onTestFinished(stop)
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return {
    received,
    stop,
    url: `http://127.0.0.1:${address.port}/events`,
    connections: countConnections(server),
  }
}

function countConnections(server: ReturnType<typeof createServer>): () => number {
  let count = 0
  server.on('connection', () => (count += 1))
  return () => count
}

function publisher(url: string, options: Partial<HttpPublisherOptions> = {}): Publisher {
  const made = httpPublisher({ url, ...options })
  onTestFinished(async () => made.close?.())
  return made
}

function shown(answer: Answer): string {
  if (answer instanceof SaturatedError) return answer.message
  return [answer.outcome, answer.args['error']].join(' ').trim()
}

function statusFor(statuses: Readonly<Record<string, number>>): Reply {
  return ({ headers }, response) => {
    response.statusCode = statuses[String(headers['leasehold-event-type'])] ?? 200
    response.end()
  }
}

describe('what arrives', () => {
  it('LIFE-05: an event that is done was answered with 2xx: body, idempotency key, token and headers', async () => {
    const server = await startServer()
    const event = outboxEvent()
    const target = publisher(server.url, { headers: { Authorization: 'Bearer x' } })
    expect(await target.publish([event], publishContext())).toEqual([{ outcome: 'done', args: {} }])
    const [request] = server.received
    expect(JSON.parse(request?.body ?? '')).toEqual(event.payload)
    expect(request?.headers).toMatchObject({
      authorization: 'Bearer x',
      'content-type': 'application/json',
      'idempotency-key': event.eventId,
      traceparent: event.headers['traceparent'],
      'leasehold-event-id': event.eventId,
      'leasehold-token': '9007199254740993',
      'leasehold-attempt': '2',
    })
  })

  it('headers of an event can neither break the request nor replace those of the publisher', async () => {
    const server = await startServer()
    const event = outboxEvent({
      orderingKey: 'Zürich\r\nx: y',
      headers: {
        Host: 'evil.example',
        'Content-Length': '1',
        'Transfer-Encoding': 'x',
        AUTHORIZATION: 'Bearer y',
      },
    })
    const target = publisher(server.url, { headers: { authorization: 'Bearer x' } })
    expect(await target.publish([event], publishContext())).toMatchObject([{ outcome: 'done' }])
    const headers = server.received[0]?.headers
    expect(headers?.host).toBe(new URL(server.url).host)
    expect(headers?.authorization).toBe('Bearer x')
    expect(headers?.['leasehold-ordering-key']).toBe('Z%C3%BCrich%0D%0Ax:%20y')
    expect(headers).not.toHaveProperty('x')
  })

  it('a header name that HTTP does not allow makes its event dead, and nobody else', async () => {
    const server = await startServer()
    const events = [outboxEvent({ headers: { 'a b': 'c' } }), outboxEvent()]
    expect(await publisher(server.url).publish(events, publishContext())).toMatchObject([
      { outcome: 'dead', args: { error: expect.stringContaining('"a b"') } },
      { outcome: 'done' },
    ])
  })

  it('a CloudEvent in binary mode has ce- headers, in structured mode one document', async () => {
    const server = await startServer()
    const event = outboxEvent({ orderingKey: 'Euro € 😀' })
    const source = '/orders'
    await publisher(server.url, { envelope: { cloudevents: 'binary', source } }).publish(
      [event],
      publishContext(),
    )
    await publisher(server.url, { envelope: { cloudevents: 'structured', source } }).publish(
      [event],
      publishContext(),
    )
    const [binary, structured] = server.received
    expect(binary?.headers).toMatchObject({
      'content-type': 'application/json',
      'ce-specversion': '1.0',
      'ce-id': event.eventId,
      'ce-source': '/orders',
      'ce-type': 'order.paid',
      // The example of the specification.
      'ce-subject': 'Euro%20%E2%82%AC%20%F0%9F%98%80',
    })
    expect(structured?.headers['content-type']).toBe('application/cloudevents+json; charset=UTF-8')
    expect(JSON.parse(structured?.body ?? '')).toMatchObject({ id: event.eventId, data: event.payload })
  })

  it('RULE-020-041: opens no more connections than it may', async () => {
    const server = await startServer()
    await publisher(server.url, { concurrency: 3 }).publish(outboxEvents(50), publishContext())
    expect(server.received).toHaveLength(50)
    expect(server.connections()).toBe(3)
  })
})

describe('what the answer means', () => {
  it('LIFE-17: each event has its own outcome, in the order of the batch', async () => {
    const statuses = { a: 200, b: 503, c: 422, d: 204, e: 302, f: 408, g: 429, h: 500, i: 404 }
    const server = await startServer(statusFor(statuses))
    const events = Object.keys(statuses).map((type) => outboxEvent({ type }))
    const outcomes = await publisher(server.url).publish(events, publishContext())
    expect(outcomes?.map((answer) => shown(answer))).toEqual([
      'done',
      'retry Error: HTTP 503',
      'dead Error: HTTP 422',
      'done',
      'retry Error: HTTP 302, not followed',
      'retry Error: HTTP 408',
      'retry Error: HTTP 429',
      'retry Error: HTTP 500',
      'dead Error: HTTP 404',
    ])
  })

  it('a refusal can be a retry, if one says so', async () => {
    const server = await startServer((_request, response) => response.writeHead(422).end())
    const target = publisher(server.url, { whenRefused: 'retry' })
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ outcome: 'retry' }])
  })

  it('a redirect is never followed', async () => {
    const elsewhere = await startServer()
    const server = await startServer((_request, response) =>
      response.writeHead(307, { location: elsewhere.url }).end(),
    )
    await publisher(server.url).publish([outboxEvent()], publishContext())
    expect(elsewhere.received).toEqual([])
  })

  it('LIFE-07: Retry-After decides when, in seconds or as a date, within a day', async () => {
    const server = await startServer((_request, response) =>
      response.writeHead(429, { 'retry-after': '7' }).end(),
    )
    expect(await publisher(server.url).publish([outboxEvent()], publishContext())).toMatchObject([
      { outcome: 'retry', args: { delay_ms: 7_000 } },
    ])
    const now = Date.parse('2026-03-01T12:00:00Z')
    expect(retryAfterMs('Sun, 01 Mar 2026 12:00:30 GMT', now)).toBe(30_000)
    // What is over already must not take the place of the back-off: 25 attempts would be gone within a second.
    for (const past of ['Sun, 01 Mar 2026 11:00:00 GMT', '0', '-5', '1.5', '1e3'])
      expect(retryAfterMs(past, now)).toBeUndefined()
    expect(retryAfterMs('99999999999', now)).toBe(86_400_000)
    expect(retryAfterMs('soon', now)).toBeUndefined()
    expect(retryAfterMs(undefined, now)).toBeUndefined()
  })

  it('an answer that never comes is a retry that says so', async () => {
    const server = await startServer(() => {})
    const target = publisher(server.url, { timeoutMs: 200 })
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([
      { outcome: 'retry', args: { error: expect.stringContaining('no complete answer within 200 ms') } },
    ])
  })

  it('an answer without an end does not hold it up: the status was the answer', async () => {
    const server = await startServer((_request, response) => {
      const more = (): void => {
        if (!response.destroyed) response.write('x'.repeat(32_768), () => setImmediate(more))
      }
      more()
    })
    expect(await publisher(server.url).publish([outboxEvent()], publishContext())).toMatchObject([
      { outcome: 'done' },
    ])
  })

  it('a connection that breaks over an event is a retry: the event may be why', async () => {
    const server = await startServer((_request, response) => response.destroy())
    expect(await publisher(server.url).publish([outboxEvent()], publishContext())).toMatchObject([
      { outcome: 'retry' },
    ])
  })

  it('a signal that fires ends the wait, and nothing is reported as done', async () => {
    const controller = new AbortController()
    const server = await startServer(() => controller.abort(new Error('lease lost')))
    const publishing = publisher(server.url).publish(outboxEvents(3), publishContext(controller.signal))
    await expect(publishing).rejects.toThrow('lease lost')
  })
})

describe('in batches', () => {
  it('LIFE-05: one request for all, and its answer is the answer for each', async () => {
    const server = await startServer()
    const events = outboxEvents(3)
    const target = publisher(server.url, { batch: true })
    expect(await target.publish(events, publishContext())).toEqual(
      events.map(() => ({ outcome: 'done', args: {} })),
    )
    expect(server.received).toHaveLength(1)
    const items: unknown = JSON.parse(server.received[0]?.body ?? '')
    expect(items).toMatchObject(
      events.map(({ eventId, payload }) => ({
        id: eventId,
        payload,
        headers: { 'leasehold-token': '9007199254740993' },
      })),
    )
  })

  it('LIFE-17: of a batch that is refused, only what is refused alone is dead', async () => {
    const poison = outboxEvent({ payload: 'poison' })
    const server = await startServer(({ body }, response) => {
      response.statusCode = body.includes('poison') ? 400 : 200
      response.end()
    })
    const target = publisher(server.url, { batch: true })
    expect(await target.publish([outboxEvent(), poison, outboxEvent()], publishContext())).toMatchObject([
      { outcome: 'done' },
      { outcome: 'dead' },
      { outcome: 'done' },
    ])
  })

  it('CloudEvents travel in the batch format', async () => {
    const server = await startServer()
    const envelope = { cloudevents: 'structured', source: '/orders' } as const
    await publisher(server.url, { batch: true, envelope }).publish(outboxEvents(2), publishContext())
    expect(server.received[0]?.headers['content-type']).toBe(
      'application/cloudevents-batch+json; charset=UTF-8',
    )
    expect(JSON.parse(server.received[0]?.body ?? '')).toMatchObject([
      { specversion: '1.0' },
      { specversion: '1.0' },
    ])
  })
})

describe('when the server is away', () => {
  it('LIFE-18: the batch is given back without an attempt, and goes through once it is back', async () => {
    const port = await freePort()
    const target = publisher(`http://127.0.0.1:${port}/events`, { probeUrl: `http://127.0.0.1:${port}/ok` })
    const events = outboxEvents(3)
    await expect(target.publish(events, publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toThrow('ECONNREFUSED')
    const batched = publisher(`http://127.0.0.1:${port}/events`, { batch: true })
    await expect(batched.publish(events, publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await startServer(undefined, port)
    await target.probe?.(AbortSignal.timeout(5_000))
    expect(await target.publish(events, publishContext())).toHaveLength(3)
  })

  it('LIFE-17: what was answered before it went is told apart', async () => {
    const server = await startServer((_request, response) => {
      response.setHeader('connection', 'close')
      response.end(() => void server.stop())
    })
    const target = publisher(server.url, { concurrency: 1 })
    expect(await target.publish(outboxEvents(3), publishContext())).toMatchObject([
      { outcome: 'done' },
      { name: 'SaturatedError' },
      { name: 'SaturatedError' },
    ])
  })

  it('a probe that is answered with 5xx says that it is not well', async () => {
    const server = await startServer((_request, response) => response.writeHead(503).end())
    const target = publisher(server.url, { probeUrl: server.url })
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toThrow('HTTP 503')
  })
})

describe('how it is made', () => {
  it.each([
    ['ftp://127.0.0.1/', 'http:// or https://'],
    ['nonsense', 'http:// or https://'],
    ['http://user:secret@127.0.0.1/', 'Leave credentials out'],
  ])('refuses %s', (url, remedy) => {
    expect(() => httpPublisher({ url })).toThrow(remedy)
    expect(() => httpPublisher({ url })).not.toThrow('secret')
  })

  it('refuses a batch of binary CloudEvents: a request has one set of headers', () => {
    const envelope = { cloudevents: 'binary', source: '/orders' } as const
    expect(() => httpPublisher({ url: 'http://127.0.0.1/', batch: true, envelope })).toThrow('structured')
  })

  it('leaves an agent that is yours open', async () => {
    const server = await startServer()
    const mine = new Agent()
    onTestFinished(async () => mine.close())
    const target = httpPublisher({ url: server.url, dispatcher: mine })
    await target.publish([outboxEvent()], publishContext())
    await target.close?.()
    expect(mine.closed).toBe(false)
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ outcome: 'done' }])
  })
})
