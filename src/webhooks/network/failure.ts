/** Why no response came. `post` returns a failure as a value; inside this folder it is thrown as an error. */
import { errors } from 'undici'
import { messageOf } from '../../errors.ts'

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
  /** The egress proxy could not be reached, or refused. Nothing was sent. */
  | 'proxy'
  /** A deadline passed: of the connection, of the response's head, or of the whole request. */
  | 'timeout'
  /** The connection ended before the head of the response was complete. */
  | 'reset'
  /** What came before the body is too large: the headers, or everything with them, or the number of 1xx responses. */
  | 'headersTooLarge'
  /** The response is not HTTP. */
  | 'protocol'
  /** The poster was closed in the meantime. */
  | 'closed'

export class NetworkFailure extends Error {
  override readonly name = 'NetworkFailure'
  /** Not named `code`: undici reads that property, and reconnects for some values. */
  readonly failure: FailureCode

  constructor(failure: FailureCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.failure = failure
  }
}

/** The failure that an error of undici or of a socket stands for. */
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
