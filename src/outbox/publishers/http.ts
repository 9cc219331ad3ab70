/** Events to a URL, by POST: one request for each, or one for a batch. */
import { Agent, type Dispatcher, request } from 'undici'

import type { OutboxEvent } from '../event.ts'
import { headersOf } from '../headers.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { within } from '../../postgres/deadline.ts'
import { atATime } from '../../worker/waiting.ts'
import { type Outcome, PermanentError } from '../../worker/completion/outcome.ts'
import {
  BINDINGS,
  CLOUDEVENT_BATCH_TYPE,
  cloudEvent,
  encode,
  type Envelope,
  JSON_TYPE,
  usableEnvelope,
} from './cloudevents.ts'
import { headerText } from './header-text.ts'
import { outcomeOf, type WhenRefused } from '../../webhooks/network/answer.ts'
import { refuse, usableUrl, wholeNumber } from './options.ts'
import { answerTo, publishEach, settled } from './publish-each.ts'
import { untilAborted } from '../../worker/waiting.ts'
import { messageOf, unavailable } from './unavailable.ts'

export interface HttpPublisherOptions {
  /** Where to POST to: http or https, without credentials in it. */
  readonly url: string
  /** Sent with every request; they win over headers of events. Credentials belong here. */
  readonly headers?: Readonly<Record<string, string>>
  /** All events of a call in one request, as a JSON array. Default false: a request for each. */
  readonly batch?: boolean
  /** What a 4xx other than 408, 425 and 429 makes of an event. Default 'dead'. */
  readonly whenRefused?: WhenRefused
  readonly envelope?: Envelope
  /** Requests at the same time. Default 10. */
  readonly concurrency?: number
  /** How long one request may take, from the connection to the end of the answer. Default 10000. */
  readonly timeoutMs?: number
  /** The most events of one call. Default 1, so that a slow answer holds up its own event only; 100 with `batch`. */
  readonly maxBatch?: number
  /** Asked with GET whether the target is well: anything below 500 is. Default: it is not asked. */
  readonly probeUrl?: string
  /** An agent of undici you have already, with its TLS and proxy: the publisher never closes it. */
  readonly dispatcher?: Dispatcher
}

/** Headers of an event that would say something about the connection or the request itself. */
const RESERVED =
  /^(?:host|content-length|content-type|transfer-encoding|connection|keep-alive|upgrade|expect|te|trailer|proxy-.*|idempotency-key)$/i
/** An answer is read to its end so that the connection can be used again; a longer one ends it. */
const LONGEST_ANSWER_BYTES = 64 * 1_024
const LONGEST_GOODBYE_MS = 5_000
/** The request never reached the server: it is away, and the event has nothing to do with it. */
const NOT_REACHED = new Set([
  'ECONNREFUSED',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
  'UND_ERR_CONNECT_TIMEOUT',
])

interface Post {
  readonly headers: Record<string, string>
  readonly body: string
}

export function httpPublisher(options: HttpPublisherOptions): Publisher {
  const envelope = usableEnvelope('http', options.envelope)
  const timeoutMs = wholeNumber('http', 'timeoutMs', options.timeoutMs ?? 10_000)
  const concurrency = wholeNumber('http', 'concurrency', options.concurrency ?? 10)
  const url = plainUrl(options.url)
  const probeUrl = options.probeUrl === undefined ? undefined : plainUrl(options.probeUrl)
  const { batch = false, whenRefused = 'dead' } = options
  const maxBatch = wholeNumber('http', 'maxBatch', options.maxBatch ?? (batch ? 100 : 1))
  const own = lowerCase(options.headers ?? {})
  if (batch && envelope !== 'none' && envelope.cloudevents === 'binary') {
    refuse('http', 'envelope.cloudevents', 'binary', "A batch has one set of headers: give 'structured'.")
  }
  const agent =
    options.dispatcher === undefined
      ? new Agent({ connections: concurrency, connect: { timeout: timeoutMs } })
      : undefined
  const dispatcher = options.dispatcher ?? agent

  async function post({ headers, body }: Post, signal: AbortSignal): Promise<Outcome> {
    const bound = new AbortController()
    const stop = () => bound.abort(signal.reason)
    const patience = setTimeout(
      () => bound.abort(new Error(`no complete answer within ${timeoutMs} ms`)),
      timeoutMs,
    )
    signal.addEventListener('abort', stop, { once: true })
    try {
      signal.throwIfAborted()
      const response = await request(url, {
        method: 'POST',
        headers: { ...lowerCase(headers), ...own },
        body,
        signal: bound.signal,
        ...(dispatcher === undefined ? {} : { dispatcher }),
      })
      const outcome = outcomeOf(response, whenRefused)
      // The status is the answer: what follows it is read only for the sake of the connection.
      await response.body.dump({ limit: LONGEST_ANSWER_BYTES }).catch(() => {})
      return outcome
    } catch (error) {
      throw meaningOf(error)
    } finally {
      clearTimeout(patience)
      signal.removeEventListener('abort', stop)
    }
  }

  async function ask(target: URL, signal: AbortSignal): Promise<void> {
    const { statusCode, body } = await request(target, {
      method: 'GET',
      headers: own,
      signal,
      ...(dispatcher === undefined ? {} : { dispatcher }),
    })
    await body.dump({ limit: LONGEST_ANSWER_BYTES }).catch(() => {})
    if (statusCode >= 500) throw unavailable('http', `was answered with HTTP ${statusCode} by its probe`)
  }

  function single(event: OutboxEvent): Post {
    const { headers, contentType, body } = encode(event, envelope, BINDINGS.http)
    return {
      headers: {
        ...headerText('http', headers, RESERVED),
        'content-type': contentType,
        'idempotency-key': event.eventId,
      },
      body,
    }
  }

  function together(events: readonly OutboxEvent[]): Post {
    const isPlain = envelope === 'none'
    const items = events.map((event) => (isPlain ? plainItem(event) : cloudEvent(event, envelope.source)))
    return {
      headers: { 'content-type': isPlain ? JSON_TYPE : CLOUDEVENT_BATCH_TYPE },
      body: JSON.stringify(items),
    }
  }

  async function each(events: readonly OutboxEvent[], signal: AbortSignal, postOf: (e: OutboxEvent) => Post) {
    const room = atATime(concurrency)
    return publishEach(events, {
      signal,
      // Each request has a bound of its own; this one is for all of them, in turns.
      timeoutMs: timeoutMs * (Math.ceil(events.length / concurrency) + 1),
      send: async (event) => room(async () => post(postOf(event), signal)),
      silence: async () => new Error('no answer in time'),
    })
  }

  return {
    name: 'http',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      if (!batch) return each(events, signal, single)
      const answer = await untilAborted(signal, async () =>
        post(together(events), signal).catch((error: unknown) => {
          if (signal.aborted) throw signal.reason
          return answerTo(error)
        }),
      )
      // One event that is refused must not take the others with it: each is asked about alone.
      const refused = 'outcome' in answer && answer.outcome === 'dead'
      if (refused && events.length > 1) return each(events, signal, (event) => together([event]))
      return settled(events.map(() => answer))
    },
    ...(probeUrl === undefined ? {} : { probe: async (signal: AbortSignal) => ask(probeUrl, signal) }),
    async close() {
      if (agent === undefined) return
      if (!(await within(LONGEST_GOODBYE_MS, agent.close()))) await agent.destroy()
    },
  }
}

/** Names of headers differ by more than their case, or one would be sent twice. */
function lowerCase(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}

function plainUrl(text: string): URL {
  const url = usableUrl('http', text, ['http:', 'https:'])
  if (url.username === '' && url.password === '') return url
  return refuse('http', 'url', undefined, 'Leave credentials out of the URL and give them in headers.')
}

/** An element of a batch without an envelope. */
function plainItem(event: OutboxEvent): object {
  const { eventId, type, orderingKey, createdAt, payload } = event
  return { id: eventId, type, orderingKey, time: createdAt.toISOString(), headers: headersOf(event), payload }
}

function meaningOf(error: unknown): unknown {
  const code = error instanceof Error && 'code' in error ? String(error.code) : ''
  if (NOT_REACHED.has(code)) return unavailable('http', 'cannot connect', error)
  if (code === 'UND_ERR_INVALID_ARG') return new PermanentError(messageOf(error))
  return error
}
