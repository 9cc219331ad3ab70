/** How an event is encoded for a target: plain JSON or a CloudEvent, and the headers it travels with. */
import { messageOf } from '../../errors.ts'
import { MAX_JSON_DEPTH } from '../../messages/json.ts'
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
    time: timeOf(event).toISOString(),
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

/**
 * What is sent of an event. The headers of `headersOf` travel with every form: targets fence by them. Throws a
 * `PermanentError` if the event cannot be encoded; call it for each event by itself, so that the others are sent.
 */
export function encode(event: OutboxEvent, envelope: Envelope, binding: Binding): Encoded {
  timeOf(event)
  const headers = withoutNames(headersOf(event), CONTENT_TYPE_NAME)
  if (envelope === 'none') return { headers, contentType: JSON_TYPE, body: jsonOf(event.payload) }
  if (envelope.cloudevents === 'structured') {
    return { headers, contentType: CLOUDEVENT_TYPE, body: jsonOf(cloudEvent(event, envelope.source)) }
  }
  for (const name of Object.keys(headers))
    if (name.toLowerCase().startsWith(binding.prefix.toLowerCase())) delete headers[name]
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

/** `JSON.stringify`, for the payload of an event or for what contains it. */
export function jsonOf(value: unknown): string {
  try {
    return JSON.stringify(value) ?? 'null'
  } catch (error) {
    // The stack of V8 ends at a few thousand levels. A row that deep was written before the table had its limits.
    throw new PermanentError(
      error instanceof RangeError
        ? `the payload cannot be written as JSON: it is nested too deeply, and at most ${MAX_JSON_DEPTH} levels are allowed`
        : `the payload cannot be written as JSON: ${messageOf(error)}`,
    )
  }
}

const [FIRST_YEAR, LAST_YEAR] = [1, 9999]

/** When the event was written. PostgreSQL has years that neither JavaScript nor RFC 3339 knows. */
export function timeOf({ createdAt }: OutboxEvent): Date {
  const year = createdAt.getUTCFullYear()
  if (year >= FIRST_YEAR && year <= LAST_YEAR) return createdAt
  throw new PermanentError(
    `the created_at of the event cannot be sent: it must be in the years ${FIRST_YEAR} to ${LAST_YEAR}`,
  )
}

/** Set by the publishers themselves. */
const CONTENT_TYPE_NAME = /^content-type$/i

/** Headers without those names that the publisher uses itself. */
export function withoutNames(headers: Record<string, string>, reserved: RegExp): Record<string, string> {
  for (const name of Object.keys(headers)) if (reserved.test(name)) delete headers[name]
  return headers
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
  reserved?: RegExp,
): Record<string, string> {
  const carried: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (!HEADER_NAME.test(name)) {
      throw new PermanentError(`${publisher} cannot carry a header named ${JSON.stringify(name)}`)
    }
    if (reserved?.test(name) === true) continue
    carried[name] = PLAIN_VALUE.test(value) ? value : percentEncoded(value)
  }
  return carried
}
