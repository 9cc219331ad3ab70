/** One POST to a server that may be hostile. What it can cost us is bounded by `PostLimits`. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { inspect } from 'node:util'

import { Agent, Client, type Dispatcher, Pool, request } from 'undici'

import { type Clock, systemClock } from '../../clock.ts'
import { LeaseholdError } from '../../errors.ts'
import { unknownNames } from '../../nearest.ts'
import { deadline, MAX_TIMER_MS, untilAborted, within } from '../../timeout.ts'
import { createConnector, type Dial, openDirectly, openThroughProxy, type TlsOptions } from './connect.ts'
import { type FailureCode, failureOf, NetworkFailure } from './failure.ts'
import { headersProblem } from './headers.ts'
import { checkTarget, type NetworkPolicy, parseProxyUrl } from './policy.ts'
import { limitReceivedBytes } from './received-bytes.ts'
import { createResolver, type Resolve } from './resolve.ts'

/** What one receiver may cost us. All values are whole numbers of at least 1. */
export interface PostLimits {
  /** For name resolution, connection and TLS together. */
  readonly connectTimeoutMs: number
  /** From the start of the request until the head of the response is complete. */
  readonly headTimeoutMs: number
  /** For reading the body, after the head. The status has arrived by then; the body is read only for its excerpt. */
  readonly bodyTimeoutMs: number
  readonly maxHeaderBytes: number
  /** A longer body is not read to its end, and its connection is closed. */
  readonly maxResponseBytes: number
  /** How much of the body is returned. */
  readonly excerptBytes: number
  /** How long an idle connection stays open. Also how long an address stays in use after its name has changed. */
  readonly keepAliveMs: number
  /** Idle connections to one origin. More may be open at the same time; they close with their request. */
  readonly maxIdlePerOrigin: number
  /** Idle connections to all origins together. */
  readonly maxIdleConnections: number
}

export const DEFAULT_LIMITS: PostLimits = {
  connectTimeoutMs: 10_000,
  headTimeoutMs: 60_000,
  bodyTimeoutMs: 5_000,
  maxHeaderBytes: 16 * 1_024,
  maxResponseBytes: 16 * 1_024,
  excerptBytes: 1_024,
  // Shorter than the keep-alive of common servers (at least 2 s), so that none closes a connection that we reuse.
  keepAliveMs: 1_000,
  maxIdlePerOrigin: 64,
  maxIdleConnections: 1_024,
}

export interface PosterOptions {
  readonly policy: NetworkPolicy
  readonly limits?: Partial<PostLimits>
  /** An HTTP proxy for all requests, such as `http://proxy.example:3128`. It must refuse internal addresses. */
  readonly proxy?: string
  readonly tls?: TlsOptions
  readonly resolve?: Resolve
  readonly dial?: Dial
  readonly clock?: Clock
}

export interface Message {
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Uint8Array
  /** Values of headers that are not returned, even if the receiver repeats them. */
  readonly secrets?: readonly string[]
}

export interface PostOptions {
  /** For the whole request: name, connection, TLS, head and body. */
  readonly timeoutMs: number
  /** Ends the request; `post` then rejects with the signal's reason. */
  readonly signal?: AbortSignal
}

/** The result of a request. Once a status has arrived it is `answered`, whatever happens to the body. */
export type Reply =
  | {
      readonly kind: 'answered'
      readonly status: number
      /** As it was sent: seconds or a date. */
      readonly retryAfter?: string
      /** The start of the body, as one line of text. */
      readonly excerpt: string
      /** Whether the body was cut off: by its size, by the timeout or by the end of the connection. */
      readonly truncated: boolean
      readonly durationMs: number
    }
  | {
      readonly kind: 'failed'
      readonly code: FailureCode
      readonly message: string
      readonly durationMs: number
    }

export interface Poster {
  /** Never follows a redirect: a 3xx is a response like any other. */
  post(target: string | URL, message: Message, options: PostOptions): Promise<Reply>
  /** Waits a few seconds for requests in progress, then ends them. */
  close(): Promise<void>
}

/** Interim responses are not read. Servers send one or two: 102, 103. */
const MAX_INTERIM_RESPONSES = 20
/** What a response may have beside headers and body: reason phrase, sizes and extensions of chunks, empty lines. */
const MAX_FRAMING_BYTES = 16 * 1_024
const CLOSE_TIMEOUT_MS = 5_000
/** A receiver decides what is in some messages: the names in its certificate, for example. They are stored. */
const MAX_MESSAGE_BYTES = 1_024
const MAX_RETRY_AFTER_CHARACTERS = 64

type Answered = Omit<Extract<Reply, { kind: 'answered' }>, 'durationMs'>

export function createPoster(options: PosterOptions): Poster {
  const { policy, clock = systemClock } = options
  const limits = validateLimits(options.limits)
  const { connectTimeoutMs } = limits
  const proxied = options.proxy !== undefined
  const open =
    options.proxy === undefined
      ? openDirectly({
          policy,
          connectTimeoutMs,
          resolve: options.resolve ?? createResolver(),
          ...(options.dial === undefined ? {} : { dial: options.dial }),
        })
      : openThroughProxy(parseProxyUrl(options.proxy), connectTimeoutMs)
  const connector = createConnector({
    open,
    connectTimeoutMs,
    ...(options.tls === undefined ? {} : { tls: options.tls }),
  })
  const clientOptions: Client.Options = {
    maxHeaderSize: limits.maxHeaderBytes,
    keepAliveTimeout: limits.keepAliveMs,
    // A server may ask for a shorter keep-alive, never for a longer one.
    keepAliveMaxTimeout: limits.keepAliveMs,
    // We set the deadlines ourselves: undici's have a resolution of one second.
    headersTimeout: 0,
    bodyTimeout: 0,
  }
  const maxBytes = limits.maxHeaderBytes + limits.maxResponseBytes + MAX_FRAMING_BYTES
  /** One connection, with one request at a time. */
  const openClient = (origin: URL): Client => {
    const client = new Client(origin, {
      ...clientOptions,
      connect: (to, callback) =>
        connector.connect(to, (...[error, socket]) => {
          if (error !== null) return callback(error, null)
          limitReceivedBytes(socket, { maxBytes, isRequestInFlight: () => client.stats.running > 0 })
          return callback(null, socket)
        }),
    })
    return client
  }
  const agent = new Agent({ factory: (origin) => new Pool(origin, { factory: openClient }) })
  const requestsByOrigin = new Map<string, number>()
  let closing: Promise<void> | undefined

  /**
   * Runs a request, from its start to the end of its response. `reset` says that its connection must close with it,
   * because otherwise too many idle connections would stay open: thousands of endpoints must not need as many sockets.
   */
  async function withConnection<Result>(
    origin: string,
    send: (reset: boolean) => Promise<Result>,
  ): Promise<Result> {
    const busy = requestsByOrigin.get(origin) ?? 0
    const open = connector.openConnections(origin)
    // Without an idle connection, the request opens one more.
    const added = open > busy ? 0 : 1
    const reset =
      open + added > limits.maxIdlePerOrigin ||
      connector.openConnections() + added > limits.maxIdleConnections
    requestsByOrigin.set(origin, busy + 1)
    try {
      return await send(reset)
    } finally {
      const remaining = (requestsByOrigin.get(origin) ?? 1) - 1
      if (remaining > 0) requestsByOrigin.set(origin, remaining)
      else requestsByOrigin.delete(origin)
    }
  }

  async function send(url: URL, message: Message, reset: boolean, abort: AbortController): Promise<Answered> {
    const { headers, body, secrets } = message
    const { signal } = abort
    const headTimeout = deadline(limits.headTimeoutMs, () =>
      abort.abort(new NetworkFailure('timeout', `no answer within ${limits.headTimeoutMs} ms`)),
    )
    let response: Dispatcher.ResponseData
    let interim = 0
    const onInfo = (): void => {
      interim += 1
      if (interim <= MAX_INTERIM_RESPONSES) return
      const text = `the receiver sent more than ${MAX_INTERIM_RESPONSES} interim answers (1xx)`
      abort.abort(new NetworkFailure('headersTooLarge', text))
    }
    try {
      // undici ignores the signal until it is connected; a request that was aborted before that is then not sent.
      response = await untilAborted(signal, async () =>
        request(url, { method: 'POST', headers, body, reset, signal, onInfo, dispatcher: agent }),
      )
    } finally {
      headTimeout.cancel()
    }
    const { chunks, truncated } = await readStart(response.body, limits)
    const retryAfter = retryAfterOf(response.headers['retry-after'])
    return {
      kind: 'answered',
      status: response.statusCode,
      ...(retryAfter === undefined ? {} : { retryAfter }),
      excerpt: excerptOf(chunks, limits.excerptBytes, secrets),
      truncated,
    }
  }

  return {
    async post(target, message, { timeoutMs, signal }) {
      signal?.throwIfAborted()
      validateWholeNumber('timeoutMs', timeoutMs)
      const startedAt = clock.monotonicNow()
      const durationMs = (): number => clock.monotonicNow() - startedAt
      const failed = (code: FailureCode, text: string): Reply => ({
        kind: 'failed',
        code,
        message: excerptOf([Buffer.from(text)], MAX_MESSAGE_BYTES),
        durationMs: durationMs(),
      })
      const check = checkTarget(target, policy, { proxied })
      if (!check.permitted) return failed(check.code, `${check.message} ${check.remedy}`)
      const problem = headersProblem(message.headers)
      if (problem !== undefined) return failed('invalidHeaders', problem)
      if (closing !== undefined) return failed('closed', 'the poster is closed')

      const abort = new AbortController()
      const onAbort = (): void => abort.abort(signal?.reason)
      const timeout = deadline(timeoutMs, () =>
        abort.abort(new NetworkFailure('timeout', `no complete answer within ${timeoutMs} ms`)),
      )
      signal?.addEventListener('abort', onAbort, { once: true })
      try {
        const { url } = check
        const answered = await withConnection(url.origin, async (reset) => send(url, message, reset, abort))
        signal?.throwIfAborted()
        return { ...answered, durationMs: durationMs() }
      } catch (error) {
        signal?.throwIfAborted()
        const { code, message: text } = failureOf(error)
        return failed(code, text)
      } finally {
        timeout.cancel()
        signal?.removeEventListener('abort', onAbort)
      }
    },
    async close() {
      closing ??= (async () => {
        connector.close()
        if (!(await within(CLOSE_TIMEOUT_MS, agent.close()))) await agent.destroy()
      })()
      return closing
    },
  }
}

/** Reads the body until its end, the size limit or the timeout. What remains unread closes the connection. */
async function readStart(
  body: Dispatcher.ResponseData['body'],
  { bodyTimeoutMs, maxResponseBytes, excerptBytes }: PostLimits,
): Promise<{ chunks: readonly Uint8Array[]; truncated: boolean }> {
  const chunks: Uint8Array[] = []
  let size = 0
  body.on('error', () => {})
  const timeout = deadline(bodyTimeoutMs, () => body.destroy())
  try {
    for await (const data of body) {
      // undici's body yields buffers unless an encoding was set on it.
      const chunk = data as Uint8Array
      if (size < excerptBytes) chunks.push(chunk)
      size += chunk.byteLength
      if (size > maxResponseBytes) return { chunks, truncated: true }
    }
    // undici reuses a connection one turn after its response at the earliest: without this turn, the next request
    // would open another connection.
    await nextTurn()
    return { chunks, truncated: false }
  } catch {
    return { chunks, truncated: true }
  } finally {
    timeout.cancel()
  }
}

function retryAfterOf(value: string | string[] | undefined): string | undefined {
  const text = Array.isArray(value) ? value[0] : value
  return text === undefined || text.length > MAX_RETRY_AFTER_CHARACTERS ? undefined : text
}

/** Control characters, and characters that break a line or change its direction: excerpts are shown in terminals. */
const UNPRINTABLE = /[\p{Cc}\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu

/** The start of a response body or a message as one line of valid text, whatever the bytes are. */
export function excerptOf(
  chunks: readonly Uint8Array[],
  bytes: number,
  secrets: readonly string[] = [],
): string {
  // Masked before it is cut: of a value that is cut in two, the first part would remain.
  const masked = Buffer.from(withoutSecrets(decoded(Buffer.concat(chunks)), secrets))
  return decoded(masked.subarray(0, bytes))
    .replaceAll(/[\t\n\r]+/g, ' ')
    .replaceAll(UNPRINTABLE, '')
    .trim()
}

/** Decoded as a stream: a character that is cut in two at the end is left out instead of shown as broken. */
function decoded(bytes: Uint8Array): string {
  return new TextDecoder('utf-8').decode(bytes, { stream: true })
}

const MASK = '***'
/** What is shorter is no credential, and masking it would make other text unreadable. */
const MIN_SECRET_CHARACTERS = 6

/** Error pages repeat what they were sent. As it was sent, in JSON, or without the scheme: `Bearer`, `Basic`. */
function withoutSecrets(text: string, secrets: readonly string[]): string {
  const forms = secrets
    .flatMap((secret) => [secret, secret.slice(secret.indexOf(' ') + 1)])
    .flatMap((secret) => [secret, JSON.stringify(secret).slice(1, -1)])
    .filter(({ length }) => length >= MIN_SECRET_CHARACTERS)
    .toSorted((a, b) => b.length - a.length)
  let masked = text
  for (const form of forms) masked = masked.replaceAll(form, MASK)
  for (const form of forms) {
    // What was read may end in the middle of one.
    for (let length = form.length - 1; length >= MIN_SECRET_CHARACTERS; length -= 1)
      if (masked.endsWith(form.slice(0, length))) masked = `${masked.slice(0, -length)}${MASK}`
  }
  return masked
}

function validateLimits(given: Partial<PostLimits> = {}): PostLimits {
  const [problem] = unknownNames(given, Object.keys(DEFAULT_LIMITS), 'limit')
  if (problem !== undefined) {
    throw new LeaseholdError('SETTING_INVALID', `The limits of webhook requests: ${problem}`, {
      remedy: 'Correct the name.',
    })
  }
  const limits = { ...DEFAULT_LIMITS, ...given }
  for (const [name, value] of Object.entries(limits)) validateWholeNumber(name, value)
  return limits
}

function validateWholeNumber(setting: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1 && value <= MAX_TIMER_MS) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The setting ${setting} of webhook requests cannot be ${inspect(value)}.`,
    { remedy: `Give a whole number from 1 to ${MAX_TIMER_MS}.` },
  )
}
