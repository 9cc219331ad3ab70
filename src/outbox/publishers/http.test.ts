import { Agent } from 'undici'
import { describe, expect, it, onTestFinished } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { freePort } from '../../../test/support/brokers/broker.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import type { Publisher } from '../publisher.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { httpPublisher, type HttpPublisherOptions } from './http.ts'

useQuietProcess()

const startServer = useReceivers()

function publisher(url: string, options: Partial<HttpPublisherOptions> = {}): Publisher {
  const made = httpPublisher({ url, ...options })
  onTestFinished(async () => made.close?.())
  return made
}

describe('what arrives', () => {
  it('LIFE-05: an event that is done was answered with 2xx: body, idempotency key, token and headers', async () => {
    const server = await startServer()
    const event = outboxEvent()
    const target = publisher(server.url, { headers: { Authorization: 'Bearer x' } })
    expect(await target.publish([event], publishContext())).toEqual([{ name: 'done', args: {} }])
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

  it('headers of an event are sent under a prefix, except those of its trace', async () => {
    const server = await startServer()
    const headers = {
      authorization: 'Bearer y',
      cookie: 'a=b',
      'x-http-method-override': 'DELETE',
      'content-encoding': 'gzip',
      'x-forwarded-for': '10.0.0.1',
      'ce-type': 'order.forged',
      tenant: 'acme',
      tracestate: 'a=b',
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    }
    const { tracestate, traceparent, ...others } = headers
    const bare = await startServer()
    await publisher(bare.url).publish([outboxEvent({ headers: {} })], publishContext())
    await publisher(server.url).publish([outboxEvent({ headers })], publishContext())
    const prefixed = Object.entries(others).map(([name, value]) => [`event-${name}`, value])
    const added = Object.entries(server.received[0]?.headers ?? {}).filter(
      ([name]) => !Object.hasOwn(bare.received[0]?.headers ?? {}, name),
    )
    expect(Object.fromEntries(added)).toEqual({ ...Object.fromEntries(prefixed), tracestate, traceparent })
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
    expect(await target.publish([event], publishContext())).toMatchObject([{ name: 'done' }])
    const headers = server.received[0]?.headers
    expect(headers?.host).toBe(new URL(server.url).host)
    expect(headers?.authorization).toBe('Bearer x')
    expect(headers?.['leasehold-ordering-key']).toBe('Z%C3%BCrich%0D%0Ax:%20y')
    expect(headers).not.toHaveProperty('x')
  })

  it('a header name that HTTP does not allow makes only its own event dead', async () => {
    const server = await startServer()
    const events = [outboxEvent({ headers: { 'a b': 'c' } }), outboxEvent()]
    expect(await publisher(server.url).publish(events, publishContext())).toMatchObject([
      { name: 'dead', args: { error: expect.stringContaining('"a b"') } },
      { name: 'done' },
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

  it('RULE-020-041: the publisher opens no more connections than `concurrency`', async () => {
    const server = await startServer()
    await publisher(server.url, { concurrency: 3 }).publish(outboxEvents(50), publishContext())
    expect(server.received).toHaveLength(50)
    expect(server.connections).toBe(3)
  })
})

describe('in batches', () => {
  it('LIFE-05: one request carries all events, and its answer applies to each', async () => {
    const server = await startServer()
    const events = outboxEvents(3)
    const target = publisher(server.url, { batch: true })
    expect(await target.publish(events, publishContext())).toEqual(
      events.map(() => ({ name: 'done', args: {} })),
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

  it('LIFE-17: of a refused batch, only events that are refused alone are dead', async () => {
    const poison = outboxEvent({ payload: 'poison' })
    const server = await startServer(({ body }) => (body.includes('poison') ? 400 : 200))
    const target = publisher(server.url, { batch: true })
    expect(await target.publish([outboxEvent(), poison, outboxEvent()], publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'dead' },
      { name: 'done' },
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

describe('when the server is unavailable', () => {
  it('LIFE-18: the batch is released without an attempt, and is published once the server is back', async () => {
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

  it('LIFE-17: events that were answered before keep their outcomes', async () => {
    const server = await startServer((_request, response) => {
      response.setHeader('connection', 'close')
      response.end(() => void server.stop())
    })
    const target = publisher(server.url, { concurrency: 1 })
    expect(await target.publish(outboxEvents(3), publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'SaturatedError' },
      { name: 'SaturatedError' },
    ])
  })

  it('a probe that is answered with 5xx rejects', async () => {
    const server = await startServer(() => 503)
    const target = publisher(server.url, { probeUrl: server.url })
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toThrow('HTTP 503')
  })
})

describe('its options', () => {
  it.each([
    ['ftp://127.0.0.1/', 'http:// or https://'],
    ['nonsense', 'http:// or https://'],
    ['http://user:secret@127.0.0.1/', 'Leave credentials out'],
  ])('the publisher refuses %s', (url, remedy) => {
    expect(() => httpPublisher({ url })).toThrow(remedy)
    expect(() => httpPublisher({ url })).not.toThrow('secret')
  })

  it('the publisher refuses a batch of binary CloudEvents: a request has one set of headers', () => {
    const envelope = { cloudevents: 'binary', source: '/orders' } as const
    expect(() => httpPublisher({ url: 'http://127.0.0.1/', batch: true, envelope })).toThrow('structured')
  })

  it('the publisher leaves the user’s agent open', async () => {
    const server = await startServer()
    const mine = new Agent()
    onTestFinished(async () => mine.close())
    const target = httpPublisher({ url: server.url, dispatcher: mine })
    await target.publish([outboxEvent()], publishContext())
    await target.close?.()
    expect(mine.closed).toBe(false)
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }])
  })
})
