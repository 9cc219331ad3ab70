/** The receiving side: is this request from who holds the secret, whole, fresh and here for the first time? */
import { createHmac, timingSafeEqual, verify as verifySignature } from 'node:crypto'

import { LeaseholdError } from '../../errors.ts'
import { WEBHOOK_ATTEMPT, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP } from './headers.ts'
import { bodyOf, headerOf, type WebhookRequest } from './received.ts'
import { webhookInvalid } from './refusal.ts'
import type { Seen } from './remember-ids.ts'
import { type Key, verifyingKey } from './secret.ts'
import { isMessageId } from './sign.ts'

export interface VerifyOptions {
  /** How far the sender's clock may be from this one, in both directions. Default 300000 (5 minutes). */
  readonly toleranceMs?: number
  /** Milliseconds since 1970. */
  readonly now?: () => number
  /**
   * Refuses a request that comes again within the tolerance: `rememberIds()`, or a store that receivers share. What it
   * is asked about is one attempt (`webhook-id` and timestamp). A retry of the sender is another and comes through, or
   * the sender would take for failed what arrived; recognise the event by its `id` where its effect is written.
   */
  readonly seen?: Seen
  /** What becomes of the body. Default: JSON, and undefined when it is empty. */
  readonly parse?: (body: Uint8Array) => unknown
}

export interface VerifiedWebhook {
  /** The same for every attempt of an event: what to deduplicate by. */
  readonly id: string
  /** When the attempt was made. */
  readonly timestamp: Date
  readonly payload: unknown
  /** 1 for the first; undefined when the sender does not say. Not signed. */
  readonly attempt: number | undefined
}

export type Verifier = (request: WebhookRequest) => Promise<VerifiedWebhook>

interface Claimed {
  readonly id: string
  readonly timestamp: string
  readonly signatures: readonly string[]
}

const FIVE_MINUTES_MS = 5 * 60 * 1_000
const SECONDS = /^\d{1,12}$/
const ATTEMPT = /^[1-9]\d{0,8}$/
/** Rotation sends two. An ed25519 check takes 0.1 ms: a header full of them must not keep the receiver busy. */
const MOST_SIGNATURES = 16

/**
 * Resolves to what was sent if one of the signatures is right for one of the secrets; otherwise throws WEBHOOK_INVALID
 * with a `reason`. Give several secrets while one is being replaced.
 */
export async function verify(
  request: WebhookRequest,
  secrets: string | readonly string[],
  options?: VerifyOptions,
): Promise<VerifiedWebhook> {
  return verifier(secrets, options)(request)
}

/** `verify` for many requests: the secrets are read once, and a wrong one is found at the start. */
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
    // Before anything else: a body that was parsed already is a mistake of the receiver, in every request.
    const body = await bodyOf(request)
    const claimed = claimsOf(request)
    checkTime(Number(claimed.timestamp), Math.floor(now() / 1_000), toleranceMs)
    if (!keys.some((key) => isSigned(claimed, body, key))) {
      throw webhookInvalid(
        'wrongSignature',
        'None of the signatures is right for any of the secrets.',
        'Check that the secret is that of this endpoint, and that the body is what came over the wire.',
      )
    }
    const payload = parse(body)
    // Last, so that only what is accepted is remembered; from then on it is too old.
    const until = new Date((Number(claimed.timestamp) + 1) * 1_000 + toleranceMs)
    // Anything but a plain no counts as seen: a store that answers with 1 or 'OK' must not let everything in.
    const known: unknown =
      seen === undefined ? false : await seen(`${claimed.id}.${claimed.timestamp}`, until)
    if (known !== false) {
      throw webhookInvalid(
        'replayed',
        'This very request has been here before.',
        'Leave it: it was accepted then. A retry of the sender has another timestamp and is let in.',
      )
    }
    const attempt = headerOf(request, WEBHOOK_ATTEMPT) ?? ''
    return {
      id: claimed.id,
      timestamp: new Date(Number(claimed.timestamp) * 1_000),
      payload,
      attempt: ATTEMPT.test(attempt) ? Number(attempt) : undefined,
    }
  }
}

function claimsOf(request: WebhookRequest): Claimed {
  const [id, timestamp, signature] = [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE].map((name) => {
    const value = headerOf(request, name)
    if (value !== undefined && value !== '') return value
    throw webhookInvalid(
      'missingHeader',
      `The header ${name} is missing.`,
      'Check that what stands in front of this receiver passes it on; without it nobody can be trusted.',
    )
  })
  if (!isMessageId(id)) throw malformed(WEBHOOK_ID, 'one word of printable ASCII without a dot')
  if (timestamp === undefined || !SECONDS.test(timestamp))
    throw malformed(WEBHOOK_TIMESTAMP, 'seconds since 1970')
  const signatures = signature?.split(' ').filter((part) => part !== '') ?? []
  if (!signatures.some((part) => /^v\w+,./.test(part)) || signatures.length > MOST_SIGNATURES) {
    throw malformed(WEBHOOK_SIGNATURE, `one to ${MOST_SIGNATURES} of version,base64 with spaces between them`)
  }
  return { id, timestamp, signatures }
}

function malformed(header: string, form: string) {
  return webhookInvalid('malformed', `The header ${header} is not ${form}.`, 'The sender has to correct it.')
}

/** In whole seconds, as the header has it: the fraction of this clock would make a new request look old. */
function checkTime(timestamp: number, now: number, toleranceMs: number): void {
  const ageMs = (now - timestamp) * 1_000
  if (Math.abs(ageMs) <= toleranceMs) return
  const remedy = 'Set both clocks by NTP. If they are right, this is a replay: leave it.'
  const found = `${Math.abs(ageMs)} ms, where ${toleranceMs} are tolerated`
  throw ageMs > 0
    ? webhookInvalid('tooOld', `The request is older than allowed, by this clock: ${found}.`, remedy)
    : webhookInvalid('tooNew', `The request is from the future, by this clock: ${found}.`, remedy)
}

/** The header's own text is what was signed. A signature is compared as text, so that it has one form only. */
function isSigned({ id, timestamp, signatures }: Claimed, body: Buffer, { kind, key }: Key): boolean {
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

/** In a time that does not tell how much of it was right. */
function isEqual(given: Buffer, right: Buffer): boolean {
  return given.length === right.length && timingSafeEqual(given, right)
}

function fromJson(body: Uint8Array): unknown {
  if (body.length === 0) return undefined
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body))
  } catch {
    // Without its cause: that one quotes the body.
    throw webhookInvalid(
      'malformed',
      'The signature is right, but the body is not JSON.',
      'Give the option parse to read bodies of another kind, for example (body) => body.',
    )
  }
}
