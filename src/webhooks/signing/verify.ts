/**
 * The receiver's side: verifies that a request comes from somebody who holds the secret, is unchanged, is recent, and
 * has not been accepted before. Nothing in the request is trusted before its signature is verified, and errors repeat
 * nothing of it but the names of headers.
 */
import { createHmac, timingSafeEqual, verify as verifySignature } from 'node:crypto'

import { LeaseholdError } from '../../errors.ts'
import { type Key, verifyingKey } from './secret.ts'
import { isMessageId, WEBHOOK_ATTEMPT, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP } from './sign.ts'

/** The part of the WHATWG `Headers` that is used, so that any implementation fits. */
export interface HeadersLike {
  get(name: string): string | null
}

/** The part of the WHATWG `Request` that is used: Hono, Next, Remix, Deno, Bun and others give one. */
export interface FetchRequest {
  readonly headers: HeadersLike
  readonly bodyUsed: boolean
  arrayBuffer(): Promise<ArrayBuffer>
}

/** A request of Express, Fastify, node:http or a test, with the body as it came over the wire. */
export interface RawRequest {
  readonly headers: HeadersLike | Readonly<Record<string, string | readonly string[] | undefined>>
  readonly body: string | Uint8Array
}

export type WebhookRequest = FetchRequest | RawRequest

export interface VerifyOptions {
  /** How far the sender's clock may differ from this one, in both directions. Default 300000 (5 minutes). */
  readonly toleranceMs?: number
  /** Milliseconds since 1970. */
  readonly now?: () => number
  /**
   * Refuses a request that was accepted before, within the tolerance: `rememberIds()`, or a store that several receivers
   * share. It is asked about one attempt (`webhook-id` and timestamp). A retry by the sender is another attempt and is
   * let in, otherwise the sender would take a delivery that arrived for a failed one. To recognise an event that is
   * delivered twice, store its `id` together with its effect.
   */
  readonly seen?: Seen
  /** Turns the body into the payload. Default: parses JSON; an empty body gives undefined. */
  readonly parse?: (body: Uint8Array) => unknown
}

/**
 * Says whether this request was accepted before, and remembers it until the given time. `requestId` names one attempt,
 * not the event: see `VerifyOptions.seen`.
 */
export type Seen = (requestId: string, until: Date) => boolean | Promise<boolean>

export interface VerifiedWebhook {
  /** The same for every attempt of an event: use it to recognise duplicates. */
  readonly id: string
  /** When the attempt was made. */
  readonly timestamp: Date
  readonly payload: unknown
  /** 1 for the first; undefined when the sender does not say. It is not signed. */
  readonly attempt: number | undefined
}

export type Verifier = (request: WebhookRequest) => Promise<VerifiedWebhook>

export const REFUSALS = [
  'missingHeader',
  'malformed',
  'tooOld',
  'tooNew',
  'wrongSignature',
  'replayed',
] as const

export type Refusal = (typeof REFUSALS)[number]

/** A `LeaseholdError` with the code WEBHOOK_INVALID. Its `reason` says why the request is not to be trusted. */
export type WebhookInvalid = LeaseholdError & { readonly code: 'WEBHOOK_INVALID'; readonly reason: Refusal }

interface SignedHeaders {
  readonly id: string
  readonly timestamp: string
  readonly signatures: readonly string[]
}

const FIVE_MINUTES_MS = 5 * 60 * 1_000
const SECONDS = /^\d{1,12}$/
const ATTEMPT = /^[1-9]\d{0,8}$/
/** Rotation sends two. Verifying ed25519 takes 0.1 ms, so a header full of signatures must not occupy the receiver. */
const MAX_SIGNATURES = 16

/**
 * Resolves to what was sent if one of the signatures is right for one of the secrets; otherwise throws WEBHOOK_INVALID
 * with a `reason`. Give several secrets while one is being rotated.
 */
export async function verify(
  request: WebhookRequest,
  secrets: string | readonly string[],
  options?: VerifyOptions,
): Promise<VerifiedWebhook> {
  return verifier(secrets, options)(request)
}

/** `verify` for many requests: the secrets are parsed once, and an invalid one is reported at the start. */
export function verifier(
  secrets: string | readonly string[],
  { toleranceMs = FIVE_MINUTES_MS, now = Date.now, seen, parse = fromJson }: VerifyOptions = {},
): Verifier {
  const keys = [secrets].flat().map(verifyingKey)
  if (keys.length === 0) {
    throw new LeaseholdError('REQUEST_INVALID', 'secrets is empty.', { remedy: 'Give at least one secret.' })
  }
  if (!Number.isFinite(toleranceMs) || toleranceMs < 0) {
    throw new LeaseholdError('SETTING_INVALID', `The option toleranceMs of verify is ${toleranceMs}.`, {
      remedy: 'Give milliseconds of at least 0, for example 300000.',
    })
  }
  return async (request) => {
    // Before anything else: a body that was parsed already is a mistake of the receiver that affects every request.
    const body = await bodyOf(request)
    const signed = signedHeadersOf(request)
    checkTime(Number(signed.timestamp), Math.floor(now() / 1_000), toleranceMs)
    if (!keys.some((key) => hasSignature(signed, body, key))) {
      throw webhookInvalid(
        'wrongSignature',
        'None of the signatures is right for any of the secrets.',
        'Check that the secret is that of this endpoint, and that the body is what came over the wire.',
      )
    }
    const payload = parse(body)
    // Last, so that only accepted requests are remembered. After `until`, the request would be too old.
    const until = new Date((Number(signed.timestamp) + 1) * 1_000 + toleranceMs)
    // Anything but `false` counts as seen: a store that answers with 1 or 'OK' must not let every request in.
    const known: unknown = seen === undefined ? false : await seen(`${signed.id}.${signed.timestamp}`, until)
    if (known !== false) {
      throw webhookInvalid(
        'replayed',
        'This request was accepted before.',
        'Ignore it. A retry by the sender has another timestamp and is let in.',
      )
    }
    const attempt = headerOf(request, WEBHOOK_ATTEMPT) ?? ''
    return {
      id: signed.id,
      timestamp: new Date(Number(signed.timestamp) * 1_000),
      payload,
      attempt: ATTEMPT.test(attempt) ? Number(attempt) : undefined,
    }
  }
}

function signedHeadersOf(request: WebhookRequest): SignedHeaders {
  const [id, timestamp, signature] = [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE].map((name) => {
    const value = headerOf(request, name)
    if (value !== undefined && value !== '') return value
    throw webhookInvalid(
      'missingHeader',
      `The header ${name} is missing.`,
      'Check that proxies in front of this receiver pass it on; without it the sender cannot be verified.',
    )
  })
  if (!isMessageId(id)) throw malformed(WEBHOOK_ID, 'one word of printable ASCII without a dot')
  if (timestamp === undefined || !SECONDS.test(timestamp))
    throw malformed(WEBHOOK_TIMESTAMP, 'seconds since 1970')
  const signatures = signature?.split(' ').filter((part) => part !== '') ?? []
  if (!signatures.some((part) => /^v\w+,./.test(part)) || signatures.length > MAX_SIGNATURES) {
    throw malformed(WEBHOOK_SIGNATURE, `one to ${MAX_SIGNATURES} of version,base64 with spaces between them`)
  }
  return { id, timestamp, signatures }
}

function malformed(header: string, form: string) {
  return webhookInvalid('malformed', `The header ${header} is not ${form}.`, 'The sender has to correct it.')
}

/** Compares whole seconds, as in the header: with the fraction of this clock, a new request would seem old. */
function checkTime(timestamp: number, now: number, toleranceMs: number): void {
  const ageMs = (now - timestamp) * 1_000
  if (Math.abs(ageMs) <= toleranceMs) return
  const remedy = 'Set both clocks by NTP. If they are right, this is a replay: ignore it.'
  const found = `${Math.abs(ageMs)} ms, where ${toleranceMs} are tolerated`
  throw ageMs > 0
    ? webhookInvalid('tooOld', `The request is older than allowed, by this clock: ${found}.`, remedy)
    : webhookInvalid('tooNew', `The request is from the future, by this clock: ${found}.`, remedy)
}

/** What was signed is the text of the headers. Signatures are compared as text, so that each has only one form. */
function hasSignature(
  { id, timestamp, signatures }: SignedHeaders,
  body: Buffer,
  { kind, key }: Key,
): boolean {
  const given = signatures
    .filter((part) => part.startsWith(`${kind},`))
    .map((part) => part.slice(kind.length + 1))
  if (given.length === 0) return false
  const preamble = `${id}.${timestamp}.`
  if (kind === 'v1') {
    const right = Buffer.from(createHmac('sha256', key).update(preamble).update(body).digest('base64'))
    return given.some((text) => isEqual(Buffer.from(text), right))
  }
  const content = Buffer.concat([Buffer.from(preamble), body])
  return given.some((text) => {
    const bytes = Buffer.from(text, 'base64')
    return bytes.toString('base64') === text && verifySignature(null, content, key, bytes)
  })
}

/** In constant time, so that the duration does not reveal how much of a signature is right. */
function isEqual(given: Buffer, right: Buffer): boolean {
  return given.length === right.length && timingSafeEqual(given, right)
}

function fromJson(body: Uint8Array): unknown {
  if (body.length === 0) return undefined
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body))
  } catch {
    // Without the cause, which quotes the body.
    throw webhookInvalid(
      'malformed',
      'The signature is right, but the body is not JSON.',
      'Give the option parse for bodies of another kind, for example (body) => body.',
    )
  }
}

export interface RememberIdsOptions {
  /** How many requests to remember. Beyond that the oldest is forgotten, and could be replayed. Default 100000. */
  readonly max?: number
  readonly now?: () => number
}

/** Remembers requests in this process: enough for one receiver. Several receivers need a shared store. */
export function rememberIds({ max = 100_000, now = Date.now }: RememberIdsOptions = {}): (
  requestId: string,
  until: Date,
) => boolean {
  if (!Number.isSafeInteger(max) || max < 1) {
    throw new LeaseholdError('SETTING_INVALID', `The option max of rememberIds is ${max}.`, {
      remedy: 'Give a whole number of at least 1.',
    })
  }
  const remembered = new Map<string, number>()
  return (requestId, until) => {
    const at = now()
    // In order of arrival, which is nearly the order in which they expire.
    for (const [id, end] of remembered) {
      if (end > at) break
      remembered.delete(id)
    }
    if (remembered.has(requestId)) return true
    if (remembered.size >= max) forgetOldest(remembered)
    remembered.set(requestId, until.getTime())
    return false
  }
}

function forgetOldest(remembered: Map<string, number>): void {
  for (const id of remembered.keys()) {
    remembered.delete(id)
    return
  }
}

const GIVE_RAW_BODY =
  'Give the bytes as they came: JSON that was parsed and written again is not what was signed. ' +
  "Express: express.raw({ type: '*/*' }) on this route. Fastify: addContentTypeParser with parseAs: 'buffer'. " +
  'Hono, Next and other fetch handlers: the Request itself. node:http: Buffer.concat of its chunks.'

/** The value of a header, whatever the case of its name. The values of a header that came twice are joined. */
function headerOf({ headers }: WebhookRequest, name: string): string | undefined {
  if (isHeadersLike(headers)) return headers.get(name) ?? undefined
  const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1]
  return typeof found === 'string' || found === undefined ? found : found.join(', ')
}

async function bodyOf(request: WebhookRequest): Promise<Buffer> {
  if ('arrayBuffer' in request && typeof request.arrayBuffer === 'function') {
    if (request.bodyUsed) {
      refuseRequest(
        'The body of the request has been read already.',
        'Verify first, or verify request.clone().',
      )
    }
    return Buffer.from(await request.arrayBuffer())
  }
  // Callers without TypeScript often pass a parsed body.
  const body: unknown = 'body' in request ? request.body : undefined
  if (typeof body === 'string') return Buffer.from(body)
  if (body instanceof Uint8Array) return Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const found = body === null || body === undefined ? 'missing' : `${typeof body}, not text or bytes`
  return refuseRequest(`The body of the request is ${found}.`, GIVE_RAW_BODY)
}

function isHeadersLike(headers: WebhookRequest['headers']): headers is HeadersLike {
  return typeof headers.get === 'function'
}

function refuseRequest(message: string, remedy: string): never {
  throw new LeaseholdError('REQUEST_INVALID', message, { remedy })
}

/** Whether an error says that a received webhook is not to be trusted, for any reason or for this one. */
export function isWebhookInvalid(error: unknown, reason?: Refusal): error is WebhookInvalid {
  if (!(error instanceof LeaseholdError) || error.code !== 'WEBHOOK_INVALID' || !('reason' in error))
    return false
  return reason === undefined || error.reason === reason
}

/**
 * Thrown and not returned, although it is expected: a caller could forget to check a result, and would then process a
 * forged payload. The package `standardwebhooks` throws as well.
 */
function webhookInvalid(reason: Refusal, message: string, remedy: string): WebhookInvalid {
  const code = 'WEBHOOK_INVALID'
  return Object.assign(new LeaseholdError(code, message, { remedy }), { code, reason } as const)
}
