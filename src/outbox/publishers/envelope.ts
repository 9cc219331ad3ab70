/** How an event is encoded for a target: plain JSON or a CloudEvent, and the headers it travels with. */
import { PermanentError } from '../../worker/completion/outcome.ts'
import { headersOf, type OutboxEvent } from '../event.ts'
import { refuse } from './publishing.ts'

/**
 * CloudEvents 1.0. `binary`: the body is the payload, and the attributes are headers as the binding of the protocol
 * defines. `structured`: the body is one JSON document with attributes and payload.
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
  /** NATS has no content type of its own, so `datacontenttype` is a header like the others. */
  readonly contentTypeIsAttribute: boolean
  /** Where headers can carry only ASCII, other characters are percent-encoded as the binding defines. */
  readonly percentEncoded: boolean
}

export const BINDINGS = {
  http: { prefix: 'ce-', contentTypeIsAttribute: false, percentEncoded: true },
  nats: { prefix: 'ce-', contentTypeIsAttribute: true, percentEncoded: true },
  kafka: { prefix: 'ce_', contentTypeIsAttribute: false, percentEncoded: false },
  amqp: { prefix: 'cloudEvents:', contentTypeIsAttribute: false, percentEncoded: false },
  /** The specification has no binding for Redis streams or for NDJSON. */
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

const SPECIFIED_ATTRIBUTES = new Set(
  'specversion id source type subject time datacontenttype dataschema data data_base64'.split(' '),
)
const EXTENSION_NAME = /^[a-z0-9]+$/
// The specification allows no control characters and no lone surrogates in a string.
const ALLOWED_TEXT = /^[^\p{Cc}\p{Cs}]+$/u
const URI_REFERENCE = /^[\w\-.~:/?#[\]@!$&'()*+,;=%]+$/

/** Refuses an envelope that would produce invalid CloudEvents. */
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

/** The attributes of an event: those of the specification, and as extensions the headers whose names allow it. */
export function attributesOf(event: OutboxEvent, source: string): Record<string, string | number> {
  const extensions = Object.entries(event.headers).filter(
    ([name, value]) =>
      EXTENSION_NAME.test(name) && !SPECIFIED_ATTRIBUTES.has(name) && ALLOWED_TEXT.test(value),
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
    // A token can exceed the 32 bits of a CloudEvents Integer.
    leaseholdtoken: String(event.token),
    leaseholdattempt: event.attempt,
  }
}

/** The structured form. */
export function cloudEvent(event: OutboxEvent, source: string): Record<string, unknown> {
  return { ...attributesOf(event, source), data: event.payload }
}

/** What is sent of an event. The headers of `headersOf` travel with every form: targets fence by them. */
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

/** Encodes space, double quote, per cent and whatever is not printable ASCII, as the HTTP and NATS bindings define. */
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

const HEADER_NAME = /^[\w!#$%&'*+\-.^`|~]+$/
const PLAIN_VALUE = /^(?:[\u0021-\u007e](?:[\u0020-\u007e]*[\u0021-\u007e])?)?$/

/**
 * Headers as HTTP and NATS can carry them. A value that is not printable ASCII is percent-encoded. An event with a name
 * that they do not allow can never be sent. Names that match `reserved` are left out: the target would act on them.
 */
export function headerText(
  publisher: string,
  headers: Readonly<Record<string, string>>,
  reserved: RegExp,
): Record<string, string> {
  const carried: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (!HEADER_NAME.test(name)) {
      throw new PermanentError(`${publisher} cannot carry a header named ${JSON.stringify(name)}`)
    }
    if (reserved.test(name)) continue
    carried[name] = PLAIN_VALUE.test(value) ? value : percentEncoded(value)
  }
  return carried
}
