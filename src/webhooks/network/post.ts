/** One POST to somebody else's server, of which nothing good is expected: it costs what the limits say, at most. */
import { setImmediate as nextTurn } from 'node:timers/promises'

import { Agent, type Dispatcher, request } from 'undici'

import { type Clock, systemClock } from '../../clock.ts'
import { deadline, within } from '../../postgres/deadline.ts'
import { createConnector, type TlsOptions } from './connector.ts'
import { excerptOf } from './excerpt.ts'
import { type FailureCode, failureOf, NetworkFailure } from './failure.ts'
import { headersProblem } from './headers.ts'
import { keeping } from './keeping.ts'
import { type PostLimits, usableLimits, wholeNumber } from './limits.ts'
import { type Dial, openDirect, type Resolve, unlessAborted } from './open.ts'
import type { NetworkPolicy } from './policy.ts'
import { createResolver } from './resolve.ts'
import { judgeTarget } from './target.ts'
import { openThrough, usableProxy } from './tunnel.ts'

export interface PosterOptions {
  readonly policy: NetworkPolicy
  readonly limits?: Partial<PostLimits>
  /** An HTTP proxy that all requests go through, as `http://proxy.example:3128`. It must keep them from what is internal. */
  readonly proxy?: string
  readonly tls?: TlsOptions
  readonly resolve?: Resolve
  readonly dial?: Dial
  readonly clock?: Clock
}

export interface Message {
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Uint8Array
}

export interface PostOptions {
  /** For the whole: name, connection, TLS, head and body. */
  readonly timeoutMs: number
  /** Ends the request; `post` rejects with its reason. */
  readonly signal?: AbortSignal
}

/** What came of it. A status that arrived is an answer, whatever became of the body. */
export type Reply =
  | {
      readonly kind: 'answered'
      readonly status: number
      /** As it was sent: seconds or a date. */
      readonly retryAfter?: string
      /** The start of the body, one line of text. */
      readonly excerpt: string
      /** The body did not end within the cap, the time or the connection. */
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
  /** Never follows a redirect: a 3xx is an answer like any other. */
  post(target: string | URL, message: Message, options: PostOptions): Promise<Reply>
  /** Waits a moment for requests under way, then ends them. */
  close(): Promise<void>
}

const LONGEST_GOODBYE_MS = 5_000
const LONGEST_RETRY_AFTER = 64

type Answered = Omit<Extract<Reply, { kind: 'answered' }>, 'durationMs'>

export function createPoster(options: PosterOptions): Poster {
  const { policy, clock = systemClock } = options
  const limits = usableLimits(options.limits)
  const { connectTimeoutMs } = limits
  const proxied = options.proxy !== undefined
  const open =
    options.proxy === undefined
      ? openDirect({
          policy,
          connectTimeoutMs,
          resolve: options.resolve ?? createResolver(),
          ...(options.dial === undefined ? {} : { dial: options.dial }),
        })
      : openThrough(usableProxy(options.proxy), connectTimeoutMs)
  const connector = createConnector({
    open,
    connectTimeoutMs,
    ...(options.tls === undefined ? {} : { tls: options.tls }),
  })
  const keep = keeping(connector, limits)
  const agent = new Agent({
    connect: connector.connect,
    maxHeaderSize: limits.maxHeaderBytes,
    keepAliveTimeout: limits.keepAliveMs,
    // A server may ask for less, never for more.
    keepAliveMaxTimeout: limits.keepAliveMs,
    // The deadlines are ours: undici's have a resolution of a second.
    headersTimeout: 0,
    bodyTimeout: 0,
  })
  let goodbye: Promise<void> | undefined

  async function ask(url: URL, message: Message, reset: boolean, bound: AbortController): Promise<Answered> {
    const { headers, body } = message
    const { signal } = bound
    const headPatience = deadline(limits.headTimeoutMs, () =>
      bound.abort(new NetworkFailure('timeout', `no answer within ${limits.headTimeoutMs} ms`)),
    )
    let response: Dispatcher.ResponseData
    try {
      // undici hears the signal only once it is connected; a request that was given up before is then not sent.
      response = await unlessAborted(
        signal,
        request(url, { method: 'POST', headers, body, reset, signal, dispatcher: agent }),
      )
    } finally {
      headPatience.cancel()
    }
    const { bytes, truncated } = await startOf(response.body, limits)
    const retryAfter = retryAfterOf(response.headers['retry-after'])
    return {
      kind: 'answered',
      status: response.statusCode,
      ...(retryAfter === undefined ? {} : { retryAfter }),
      excerpt: excerptOf(bytes, limits.excerptBytes),
      truncated,
    }
  }

  return {
    async post(target, message, { timeoutMs, signal }) {
      signal?.throwIfAborted()
      wholeNumber('timeoutMs', timeoutMs)
      const startedAt = clock.monotonicNow()
      const durationMs = (): number => clock.monotonicNow() - startedAt
      const failed = (code: FailureCode, text: string): Reply => ({
        kind: 'failed',
        code,
        message: text,
        durationMs: durationMs(),
      })
      const verdict = judgeTarget(target, policy, { proxied })
      if (!verdict.usable) return failed(verdict.code, `${verdict.message} ${verdict.remedy}`)
      const problem = headersProblem(message.headers)
      if (problem !== undefined) return failed('invalidHeaders', problem)
      if (goodbye !== undefined) return failed('closed', 'the poster is closed')

      const bound = new AbortController()
      const stop = (): void => bound.abort(signal?.reason)
      const patience = deadline(timeoutMs, () =>
        bound.abort(new NetworkFailure('timeout', `no complete answer within ${timeoutMs} ms`)),
      )
      signal?.addEventListener('abort', stop, { once: true })
      try {
        const { url } = verdict
        const answered = await keep(url.origin, async (reset) => ask(url, message, reset, bound))
        signal?.throwIfAborted()
        return { ...answered, durationMs: durationMs() }
      } catch (error) {
        signal?.throwIfAborted()
        const { code, message: text } = failureOf(error)
        return failed(code, text)
      } finally {
        patience.cancel()
        signal?.removeEventListener('abort', stop)
      }
    },
    async close() {
      goodbye ??= (async () => {
        connector.close()
        if (!(await within(LONGEST_GOODBYE_MS, agent.close()))) await agent.destroy()
      })()
      return goodbye
    },
  }
}

/** Reads until the end, the cap or the time, whichever is first; what is left unread ends the connection. */
async function startOf(
  body: Dispatcher.ResponseData['body'],
  { bodyTimeoutMs, maxResponseBytes, excerptBytes }: PostLimits,
): Promise<{ bytes: readonly Uint8Array[]; truncated: boolean }> {
  const bytes: Uint8Array[] = []
  let size = 0
  body.on('error', () => {})
  const patience = deadline(bodyTimeoutMs, () => body.destroy())
  try {
    for await (const chunk of body) {
      // undici's body yields buffers unless an encoding was set on it.
      const part = chunk as Uint8Array
      if (size < excerptBytes) bytes.push(part)
      size += part.byteLength
      if (size > maxResponseBytes) return { bytes, truncated: true }
    }
    // undici uses a connection again only a turn after its answer: whoever posts next would open another.
    await nextTurn()
    return { bytes, truncated: false }
  } catch {
    return { bytes, truncated: true }
  } finally {
    patience.cancel()
  }
}

function retryAfterOf(value: string | string[] | undefined): string | undefined {
  const text = Array.isArray(value) ? value[0] : value
  return text === undefined || text.length > LONGEST_RETRY_AFTER ? undefined : text
}
