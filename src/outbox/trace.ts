import {
  ERROR,
  type FindTraceApi,
  PRODUCER,
  type Span,
  type TraceApi,
  traceApiFinder,
  type TraceContext,
} from '../messages/trace-api.ts'
import { activeHeadersOf, injected } from '../messages/trace-headers.ts'
import type { OutboxEvent } from './event.ts'

type Headers = Readonly<Record<string, string>>

export interface Tracing {
  /** What the active span adds to the headers of an event that is written now; `undefined` where nobody traces. */
  readonly activeHeaders: () => Promise<Headers | undefined>
  /**
   * Runs the work with a span `outbox publish <type>` for each event, which continues the trace in which the event was
   * written. The events that the work gets have the headers to send: those of their spans. Where nobody traces they are
   * the events as they were given.
   */
  readonly withTraces: <Result>(
    events: readonly OutboxEvent[],
    publisher: string,
    work: (events: readonly OutboxEvent[]) => Promise<Result>,
  ) => Promise<Result>
}

/**
 * W3C trace context on its way through the outbox: the span in which an event was written and the one in which it was
 * published belong to one trace, however long the event waited in between.
 *
 * Whether anybody traces is asked once for each call or batch, never for each event.
 */
export function createTracing(find: FindTraceApi = traceApiFinder()): Tracing {
  return {
    activeHeaders: activeHeadersOf(find),

    async withTraces(events, publisher, work) {
      const finding = find()
      const api = finding === undefined ? undefined : await finding
      if (api === undefined) return work(events)
      const traced = events.map((event) => startSpan(api, event, publisher))
      // A batch has no span of its own that its work could be in, unless it is a batch of one.
      const within = traced.length === 1 ? traced[0]?.context : undefined
      const run = async (): ReturnType<typeof work> => work(traced.map(({ event }) => event))
      return settleSpans(traced, async () => (within === undefined ? run() : api.context.with(within, run)))
    },
  }
}

/** For all who have no reason to look for OpenTelemetry elsewhere. */
export const { withTraces } = createTracing()

interface Traced {
  readonly event: OutboxEvent
  readonly span: Span
  readonly context: TraceContext
}

function startSpan(api: TraceApi, event: OutboxEvent, publisher: string): Traced {
  const attributes = {
    'messaging.system': publisher,
    'messaging.operation.name': 'publish',
    'messaging.operation.type': 'send',
    'messaging.message.id': event.eventId,
    'leasehold.event.type': event.type,
    'leasehold.attempt': event.attempt,
    ...(event.orderingKey === undefined ? {} : { 'leasehold.ordering_key': event.orderingKey }),
  }
  const written = api.propagation.extract(api.ROOT_CONTEXT, lowerCased(event.headers))
  const tracer = api.trace.getTracer('leasehold')
  const span = tracer.startSpan(`outbox publish ${event.type}`, { kind: PRODUCER, attributes }, written)
  const context = api.trace.setSpan(written, span)
  return { span, context, event: { ...event, headers: replaced(event.headers, injected(api, context)) } }
}

async function settleSpans<Result>(traced: readonly Traced[], work: () => Promise<Result>): Promise<Result> {
  try {
    const result = await work()
    const outcomes: readonly unknown[] = Array.isArray(result) ? result : [result]
    for (const [i, { span }] of traced.entries()) {
      const failure = failureOf(outcomes[i])
      if (failure !== undefined) span.setStatus({ code: ERROR, message: failure })
    }
    return result
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    for (const { span } of traced) span.setStatus({ code: ERROR, message })
    throw error
  } finally {
    for (const { span } of traced) span.end()
  }
}

/** Why an outcome is no success; work that answers with something else has succeeded. */
function failureOf(result: unknown): string | undefined {
  if (result instanceof Error) return result.message
  if (typeof result !== 'object' || result === null || !('outcome' in result)) return undefined
  const { outcome } = result
  if (typeof outcome !== 'string' || outcome === 'done') return undefined
  const error =
    'args' in result && typeof result.args === 'object' && result.args !== null && 'error' in result.args
      ? result.args.error
      : undefined
  return typeof error === 'string' ? `${outcome}: ${error}` : outcome
}

/** Propagators write and look for lower case, and a producer may have written `Traceparent`. */
function lowerCased(headers: Headers): Headers {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}

function replaced(headers: Headers, by: Headers): Headers {
  const kept = Object.entries(headers).filter(([name]) => !Object.hasOwn(by, name.toLowerCase()))
  return { ...Object.fromEntries(kept), ...by }
}
