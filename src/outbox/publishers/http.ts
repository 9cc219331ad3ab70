/** Events to a URL, by POST: one request for each, or one for a batch. */
import { Agent, type Dispatcher, request } from 'undici'

import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { messageOf } from '../../errors.ts'
import { untilAborted, within } from '../../timeout.ts'
import { atATime } from '../../worker/waiting.ts'
import { dead, done, type Outcome, PermanentError, retry } from '../../worker/completion/outcome.ts'
import { retryAfterMs } from '../../webhooks/network/retry-after.ts'
import { headersOf, type OutboxEvent } from '../event.ts'
import type { Answer, PublishContext, Publisher } from '../publisher.ts'
import { CLOSE_TIMEOUT_MS } from './connection.ts'
import {
  BINDINGS,
  cloudEvent,
  CLOUDEVENT_BATCH_TYPE,
  encode,
  type Envelope,
  headerText,
  JSON_TYPE,
  jsonOf,
  timeOf,
  usableEnvelope,
} from './envelope.ts'
import {
  answerFor,
  publishEach,
  publishTogether,
  probeTarget,
  refuse,
  type Target,
  targetAt,
  throwIfAllSaturated,
  unavailable,
  usableUrl,
  wholeNumber,
} from './publishing.ts'

export interface HttpPublisherOptions {
  /** Where to POST to: http or https, without credentials in it. */
  readonly url: string
  /** Sent with every request. Credentials belong here. Headers of events have the prefix `event-`. */
  readonly headers?: Readonly<Record<string, string>>
  /** All events of a call in one request, as a JSON array. Default false: a request for each. */
  readonly batch?: boolean
  /** What a 4xx other than 408, 425 and 429 makes of an event. Default 'dead'. */
  readonly whenRefused?: 'dead' | 'retry'
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

const OPTION_NAMES = namesOf<HttpPublisherOptions>({
  url: true,
  headers: true,
  batch: true,
  whenRefused: true,
  envelope: true,
  concurrency: true,
  timeoutMs: true,
  maxBatch: true,
  probeUrl: true,
  dispatcher: true,
})

/** Headers of an event that are sent under their own names: those of its trace, and those that Leasehold sets. */
const OWN_NAME = /^(?:leasehold-.*|traceparent|tracestate|baggage)$/i
/** `encode` sets these in binary mode, and leaves out those of the event. */
const ATTRIBUTE = new RegExp(`^${BINDINGS.http.prefix}`, 'i')
/** A server would act on many other names that a producer can choose: authorization, cookie, content-encoding. */
const EVENT_PREFIX = 'event-'
/** A response is read to its end so that the connection can be reused; a longer one closes it. */
const MAX_RESPONSE_BYTES = 64 * 1_024
/** The request never reached the server: the server is unavailable, whatever the event. */
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

interface BatchItem {
  readonly event: OutboxEvent
  readonly json: string
}

/** Publishes by POST to a URL. An event is published when the response was 2xx. */
export function httpPublisher(options: HttpPublisherOptions): Publisher {
  refuseUnknownOptions('httpPublisher', options, OPTION_NAMES)
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
      ? new Agent({ connections: concurrency, connect: { timeout: timeoutMs, rejectUnauthorized: true } })
      : undefined
  const dispatcher = options.dispatcher ?? agent

  async function post({ headers, body }: Post, signal: AbortSignal): Promise<Outcome> {
    const controller = new AbortController()
    const stop = () => controller.abort(signal.reason)
    const timeout = setTimeout(
      () => controller.abort(new Error(`no complete answer within ${timeoutMs} ms`)),
      timeoutMs,
    )
    signal.addEventListener('abort', stop, { once: true })
    try {
      signal.throwIfAborted()
      const response = await request(url, {
        method: 'POST',
        headers: { ...lowerCase(headers), ...own },
        body,
        signal: controller.signal,
        ...(dispatcher === undefined ? {} : { dispatcher }),
      })
      const outcome = outcomeOf(response, whenRefused)
      // Only the status counts. The body is read so that the connection can be reused.
      await response.body.dump({ limit: MAX_RESPONSE_BYTES }).catch(() => {})
      return outcome
    } catch (error) {
      throw classified(error, targetAt('http', url))
    } finally {
      clearTimeout(timeout)
      signal.removeEventListener('abort', stop)
    }
  }

  async function probe(target: URL, signal: AbortSignal): Promise<void> {
    const { statusCode, body } = await request(target, {
      method: 'GET',
      headers: own,
      signal,
      ...(dispatcher === undefined ? {} : { dispatcher }),
    })
    await body.dump({ limit: MAX_RESPONSE_BYTES }).catch(() => {})
    if (statusCode >= 500)
      throw unavailable(targetAt('http', target), `was answered with HTTP ${statusCode} by its probe`)
  }

  function requestFor(event: OutboxEvent): Post {
    const { headers, contentType, body } = encode(event, envelope, BINDINGS.http)
    const isBinary = envelope !== 'none' && envelope.cloudevents === 'binary'
    const named = Object.entries(headerText('http', headers)).map(([name, value]) => [
      OWN_NAME.test(name) || (isBinary && ATTRIBUTE.test(name)) ? name : `${EVENT_PREFIX}${name}`,
      value,
    ])
    return {
      headers: {
        ...Object.fromEntries(named),
        'content-type': contentType,
        'idempotency-key': event.eventId,
      },
      body,
    }
  }

  /** An event as an element of the JSON array that is the body of a batch. */
  function batchItem(event: OutboxEvent): BatchItem {
    return {
      event,
      json: jsonOf(envelope === 'none' ? plainItem(event) : cloudEvent(event, envelope.source)),
    }
  }

  function batchRequest(items: readonly BatchItem[]): Post {
    return {
      headers: { 'content-type': envelope === 'none' ? JSON_TYPE : CLOUDEVENT_BATCH_TYPE },
      body: `[${items.map(({ json }) => json).join(',')}]`,
    }
  }

  async function sendBatch(items: readonly BatchItem[], signal: AbortSignal): Promise<readonly Answer[]> {
    const answer = await untilAborted(signal, async () =>
      post(batchRequest(items), signal).catch((error: unknown) => {
        if (signal.aborted) throw signal.reason
        return answerFor(error)
      }),
    )
    // A refusal of the batch may be due to one event, so each is sent alone.
    const refused = 'args' in answer && answer.name === 'dead'
    if (!refused || items.length === 1) return throwIfAllSaturated(items.map(() => answer))
    const events = items.map(({ event }) => event)
    return sendEach(events, signal, (event) => batchRequest([batchItem(event)]))
  }

  async function sendEach(
    events: readonly OutboxEvent[],
    signal: AbortSignal,
    postOf: (event: OutboxEvent) => Post,
  ) {
    const limited = atATime(concurrency)
    return publishEach(events, {
      signal,
      // Each request has a timeout of its own. This one covers all of them, `concurrency` at a time.
      timeoutMs: timeoutMs * (Math.ceil(events.length / concurrency) + 1),
      send: async (event) => limited(async () => post(postOf(event), signal)),
      unansweredError: async () => new Error('no answer in time'),
    })
  }

  return {
    name: 'http',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      if (!batch) return sendEach(events, signal, requestFor)
      return publishTogether(events, batchItem, async (items) => sendBatch(items, signal))
    },
    ...(probeUrl === undefined
      ? {}
      : {
          probe: async (signal: AbortSignal) =>
            probeTarget(targetAt('http', probeUrl), signal, async () => probe(probeUrl, signal)),
        }),
    async close() {
      if (agent === undefined) return
      if (!(await within(CLOSE_TIMEOUT_MS, agent.close()))) await agent.destroy()
    },
  }
}

/** Answers of the 4xx range that ask for another attempt. Every other 4xx refuses the event. */
const RETRIABLE_STATUSES = new Set([408, 425, 429])

/** 2xx is an acknowledgement. A redirect is not followed, because nobody configured where it leads. */
function outcomeOf(
  { statusCode, headers }: Pick<Dispatcher.ResponseData, 'statusCode' | 'headers'>,
  whenRefused: 'dead' | 'retry',
): Outcome {
  if (statusCode >= 200 && statusCode < 300) return done()
  const isRedirect = statusCode >= 300 && statusCode < 400
  const error = new Error(`HTTP ${statusCode}${isRedirect ? ', not followed' : ''}`)
  const isRefused = statusCode >= 400 && statusCode < 500 && !RETRIABLE_STATUSES.has(statusCode)
  if (isRefused && whenRefused === 'dead') return dead(error)
  const delayMs = retryAfterMs(headers['retry-after'], Date.now())
  return retry(delayMs === undefined ? { error } : { error, delayMs })
}

/** Header names are case-insensitive: without this one could be sent twice. */
function lowerCase(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}

function plainUrl(text: string): URL {
  const url = usableUrl('http', text, ['http:', 'https:'])
  if (url.username === '' && url.password === '') return url
  return refuse('http', 'url', undefined, 'Leave credentials out of the URL and give them in headers.')
}

/** One event of a batch without an envelope. */
function plainItem(event: OutboxEvent): object {
  const { eventId, type, orderingKey, payload } = event
  return {
    id: eventId,
    type,
    orderingKey,
    time: timeOf(event).toISOString(),
    headers: headersOf(event),
    payload,
  }
}

/** Tells a server that is unavailable, and an event that HTTP cannot carry, from any other error. */
function classified(error: unknown, target: Target): unknown {
  const code = error instanceof Error && 'code' in error ? String(error.code) : ''
  if (NOT_REACHED.has(code)) return unavailable(target, 'cannot connect', error)
  if (code === 'UND_ERR_INVALID_ARG') return new PermanentError(messageOf(error))
  return error
}
