import type { OutboxEvent } from '../event.ts'
import { headersOf } from '../headers.ts'
import { refuse } from './options.ts'

/**
 * CloudEvents 1.0. `binary`: the payload stays as it is, and the attributes are headers as the binding of the protocol
 * says. `structured`: the message is one JSON document with everything in it.
 */
export interface CloudEventsEnvelope {
  readonly cloudevents: 'binary' | 'structured'
  /** Where the events come from, a URI reference: `https://shop.example/orders`, `/orders`. */
  readonly source: string
}

export type Envelope = 'none' | CloudEventsEnvelope

/** How a protocol carries attributes in binary mode. */
export interface Binding {
  readonly prefix: string
  /** NATS has no content type of its own, so that `datacontenttype` is a header like the others. */
  readonly contentTypeIsAttribute: boolean
  /** Where only ASCII travels, the rest is percent-encoded as the binding says. */
  readonly percentEncoded: boolean
}

export const BINDINGS = {
  http: { prefix: 'ce-', contentTypeIsAttribute: false, percentEncoded: true },
  nats: { prefix: 'ce-', contentTypeIsAttribute: true, percentEncoded: true },
  kafka: { prefix: 'ce_', contentTypeIsAttribute: false, percentEncoded: false },
  amqp: { prefix: 'cloudEvents:', contentTypeIsAttribute: false, percentEncoded: false },
  /** The specification has no binding for streams of Redis or for lines of text. */
  plain: { prefix: 'ce-', contentTypeIsAttribute: false, percentEncoded: false },
} as const satisfies Record<string, Binding>

export interface Encoded {
  readonly headers: Record<string, string>
  readonly contentType: string
  readonly body: string
}

export const JSON_TYPE = 'application/json'
export const CLOUDEVENT_TYPE = 'application/cloudevents+json; charset=UTF-8'
export const CLOUDEVENT_BATCH_TYPE = 'application/cloudevents-batch+json; charset=UTF-8'

const OF_THE_SPECIFICATION = new Set(
  'specversion id source type subject time datacontenttype dataschema data data_base64'.split(' '),
)
const EXTENSION_NAME = /^[a-z0-9]+$/
// The specification allows no control characters and no lone surrogates in a string.
const ALLOWED_TEXT = /^[^\p{Cc}\p{Cs}]+$/u
const URI_REFERENCE = /^[\w\-.~:/?#[\]@!$&'()*+,;=%]+$/

/** Refuses an envelope that would make invalid events. */
export function usableEnvelope(publisher: string, envelope: Envelope = 'none'): Envelope {
  if (envelope === 'none') return envelope
  const { cloudevents, source } = envelope
  if (cloudevents !== 'binary' && cloudevents !== 'structured') {
    refuse(publisher, 'envelope.cloudevents', cloudevents, "Give 'binary' or 'structured'.")
  }
  if (!URI_REFERENCE.test(source)) {
    refuse(publisher, 'envelope.source', source, "Give a URI reference, for example '/orders'.")
  }
  return envelope
}

/** The attributes of an event: those of the specification, and the headers whose names can be extensions. */
export function attributesOf(event: OutboxEvent, source: string): Record<string, string | number> {
  const extensions = Object.entries(event.headers).filter(
    ([name, value]) =>
      EXTENSION_NAME.test(name) && !OF_THE_SPECIFICATION.has(name) && ALLOWED_TEXT.test(value),
  )
  const { orderingKey } = event
  return {
    ...Object.fromEntries(extensions),
    specversion: '1.0',
    id: event.eventId,
    source,
    type: event.type,
    ...(orderingKey !== undefined && ALLOWED_TEXT.test(orderingKey) ? { subject: orderingKey } : {}),
    time: event.createdAt.toISOString(),
    datacontenttype: JSON_TYPE,
    // A token outgrows the 32 bits that an Integer of CloudEvents has.
    leaseholdtoken: String(event.token),
    leaseholdattempt: event.attempt,
  }
}

/** The structured form. */
export function cloudEvent(event: OutboxEvent, source: string): Record<string, unknown> {
  return { ...attributesOf(event, source), data: event.payload }
}

/** What is sent of an event. The headers of `headersOf` travel with every form: sinks fence by them. */
export function encode(event: OutboxEvent, envelope: Envelope, binding: Binding): Encoded {
  const headers = headersOf(event)
  if (envelope === 'none') return { headers, contentType: JSON_TYPE, body: jsonOf(event.payload) }
  if (envelope.cloudevents === 'structured') {
    return { headers, contentType: CLOUDEVENT_TYPE, body: jsonOf(cloudEvent(event, envelope.source)) }
  }
  for (const [name, value] of Object.entries(attributesOf(event, envelope.source))) {
    if (name === 'datacontenttype' && !binding.contentTypeIsAttribute) continue
    headers[`${binding.prefix}${name}`] = binding.percentEncoded
      ? percentEncoded(String(value))
      : String(value)
  }
  return { headers, contentType: JSON_TYPE, body: jsonOf(event.payload) }
}

/** Space, double quote, per cent and whatever is not printable ASCII, as the HTTP and NATS bindings say. */
export function percentEncoded(value: string): string {
  return value
    .toWellFormed()
    .replaceAll(/[^\u0021\u0023\u0024\u0026-\u007e]/gu, (character) =>
      [...Buffer.from(character)]
        .map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`)
        .join(''),
    )
}

function jsonOf(value: unknown): string {
  return JSON.stringify(value) ?? 'null'
}
