import { describe, expect, it } from 'vitest'
import { z } from 'zod'

import { outboxEvent } from '../../../test/support/brokers/events.ts'
import { BINDINGS, cloudEvent, encode, percentEncoded, usableEnvelope } from './envelope.ts'

/** The rules of the specification's JSON schema, and of its chapter on names and strings. */
const text = z
  .string()
  .min(1)
  // eslint-disable-next-line no-control-regex -- these are what the specification forbids
  .regex(/^[^\u0000-\u001f\u007f-\u009f]*$/)
const schema = z
  .object({
    specversion: z.literal('1.0'),
    id: text,
    source: text,
    type: text,
    subject: text.optional(),
    time: z.iso.datetime({ offset: true }).optional(),
    datacontenttype: text.optional(),
    dataschema: z.url().optional(),
    data: z.unknown(),
    leaseholdtoken: z.string().regex(/^\d+$/),
    leaseholdattempt: z.int32(),
  })
  .catchall(z.union([text, z.int32(), z.boolean()]))

function names(event: object): string[] {
  return Object.keys(event)
}

describe('a structured CloudEvent', () => {
  it('conforms to the specification for any event', () => {
    const events = [
      outboxEvent(),
      outboxEvent({ orderingKey: undefined, headers: {}, payload: null }),
      outboxEvent({ orderingKey: '', headers: { id: 'mine', source: 'x', data: 'x', specversion: '0.3' } }),
      outboxEvent({ orderingKey: 'line\nbreak', headers: { tenant: 'a\u0007b', 'X-Id': '1', empty: '' } }),
      outboxEvent({ orderingKey: 'half \ud800 pair', headers: { tracestate: 'rojo=00f067aa0ba902b7' } }),
    ]
    for (const event of events) {
      const made: unknown = JSON.parse(JSON.stringify(cloudEvent(event, '/orders')))
      const parsed = schema.parse(made)
      expect(names(parsed).every((name) => /^[a-z0-9]+$/.test(name))).toBe(true)
      expect(parsed).toMatchObject({ id: event.eventId, source: '/orders', type: event.type })
      expect(parsed.data).toEqual(event.payload)
    }
  })

  it('does not let a header replace an attribute of the specification', () => {
    const headers = { subject: 'x', dataschema: 'no uri', datacontenttype: 'text/plain', kept: 'yes' }
    const made = cloudEvent(outboxEvent({ orderingKey: undefined, headers }), '/orders')
    expect(made).toMatchObject({ kept: 'yes', datacontenttype: 'application/json' })
    expect(made).not.toHaveProperty('subject')
    expect(made).not.toHaveProperty('dataschema')
  })

  it('has the ordering key as its subject, the time of writing as its time, and the trace as an extension', () => {
    const event = outboxEvent({ headers: { traceparent: '00-a-b-01', tracestate: 'x=1', 'x-tenant': 'y' } })
    expect(cloudEvent(event, '/orders')).toEqual({
      specversion: '1.0',
      id: event.eventId,
      source: '/orders',
      type: 'order.paid',
      subject: 'customer-7',
      time: '2026-03-01T12:00:00.250Z',
      datacontenttype: 'application/json',
      traceparent: '00-a-b-01',
      tracestate: 'x=1',
      leaseholdtoken: '9007199254740993',
      leaseholdattempt: 2,
      data: event.payload,
    })
  })
})

describe('encode', () => {
  it('without an envelope sends the payload and the headers of the event', () => {
    const event = outboxEvent()
    const { headers, contentType, body } = encode(event, 'none', BINDINGS.http)
    expect(contentType).toBe('application/json')
    expect(JSON.parse(body)).toEqual(event.payload)
    expect(names(headers).some((name) => name.startsWith('ce-'))).toBe(false)
  })

  it('the headers for fencing travel in every form', () => {
    for (const cloudevents of ['binary', 'structured'] as const) {
      const { headers } = encode(outboxEvent(), { cloudevents, source: '/x' }, BINDINGS.kafka)
      expect(headers).toMatchObject({ 'leasehold-token': '9007199254740993', 'leasehold-attempt': '2' })
    }
  })

  it('percent-encodes as the bindings of HTTP and NATS define', () => {
    expect(percentEncoded('Euro € 😀')).toBe('Euro%20%E2%82%AC%20%F0%9F%98%80')
    expect(percentEncoded('a"b%c~d')).toBe('a%22b%25c~d')
    expect(decodeURIComponent(percentEncoded('Zürich 東京 \t'))).toBe('Zürich 東京 \t')
  })
})

describe('an envelope', () => {
  it.each([
    [{ cloudevents: 'binary', source: '' }, 'envelope.source'],
    [{ cloudevents: 'binary', source: 'two words' }, 'envelope.source'],
    [{ cloudevents: 'xml' as 'binary', source: '/x' }, 'envelope.cloudevents'],
  ] as const)('%o is refused', (envelope, option) => {
    expect(() => usableEnvelope('nats', envelope)).toThrow(option)
  })

  it.each(['/orders', 'https://shop.example/orders?x=1#y', 'urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66'])(
    'takes %s as a source',
    (source) => {
      expect(usableEnvelope('nats', { cloudevents: 'binary', source })).toMatchObject({ source })
    },
  )
})
