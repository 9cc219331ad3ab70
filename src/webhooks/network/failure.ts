/** Why no answer came. Expected, so `post` returns it; inside this folder it travels as an error. */
import { errors } from 'undici'

export type FailureCode =
  /** The URL cannot be called: its form, scheme or port. */
  | 'invalidUrl'
  /** A header cannot be sent as it is. */
  | 'invalidHeaders'
  /** The host is, or resolves to, an address that the policy does not permit. Nothing was sent. */
  | 'refusedAddress'
  /** The name could not be resolved. */
  | 'dns'
  /** No connection: refused, unreachable. */
  | 'connect'
  /** No TLS: the certificate, the name in it, the handshake. Nothing was sent. */
  | 'tls'
  /** The egress proxy is away or refused. Nothing was sent. */
  | 'proxy'
  /** A deadline passed: of the connection, the head of the answer, or the whole. */
  | 'timeout'
  /** The connection ended before the head of the answer was complete. */
  | 'reset'
  /** The head of the answer is larger than it may be. */
  | 'headersTooLarge'
  /** The answer is not HTTP. */
  | 'protocol'
  /** The poster was closed meanwhile. */
  | 'closed'

export class NetworkFailure extends Error {
  override readonly name = 'NetworkFailure'
  /** Not `code`: undici reads that, and would connect again for some values. */
  readonly failure: FailureCode

  constructor(failure: FailureCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.failure = failure
  }
}

/** What an error of undici or of a socket means. Errors of the connector say so themselves. */
export function failureOf(error: unknown): { readonly code: FailureCode; readonly message: string } {
  if (error instanceof NetworkFailure) return { code: error.failure, message: error.message }
  if (error instanceof errors.HeadersOverflowError) {
    return { code: 'headersTooLarge', message: 'the head of the answer is too large' }
  }
  if (error instanceof errors.ClientClosedError || error instanceof errors.ClientDestroyedError) {
    return { code: 'closed', message: 'the poster is closed' }
  }
  if (error instanceof errors.HTTPParserError) {
    return { code: 'protocol', message: `the answer is not HTTP: ${error.message}` }
  }
  const message = messageOf(error)
  if (message === 'bad upgrade') return { code: 'protocol', message: 'the answer changes the protocol' }
  return { code: 'reset', message: `the connection ended before the answer: ${message}` }
}

/** Of several failures at once, such as one per address, Node's message is empty: the first one's is not. */
export function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return messageOf(error.errors[0])
  return error instanceof Error ? error.message : String(error)
}
