/**
 * W3C trace context on its way through a table: the span in which an event was written and the span in which it is
 * published belong to one trace, however long the event waited in between.
 *
 * `@opentelemetry/api` is an optional peer. It is loaded when an SDK for traces has been registered, and not before. If it
 * is missing or broken, events are written and published with their headers unchanged.
 */
import { messageOf } from '../errors.ts'
import { storedBytes } from './json.ts'
import { MAX_HEADERS_BYTES } from './validate.ts'

/** The part of `@opentelemetry/api` that is used here. */
interface TraceApi {
  readonly ROOT_CONTEXT: TraceContext
  readonly context: {
    active(): TraceContext
    with<Result>(context: TraceContext, work: () => Result): Result
  }
  readonly trace: {
    getTracer(name: string): Tracer
    getSpan(context: TraceContext): Span | undefined
    setSpan(context: TraceContext, span: Span): TraceContext
  }
  readonly propagation: {
    inject(context: TraceContext, carrier: Record<string, string>): void
    extract(context: TraceContext, carrier: Readonly<Record<string, string>>): TraceContext
  }
}

/** Opaque: it is only passed on. */
interface TraceContext {
  getValue(key: symbol): unknown
}

interface Tracer {
  startSpan(
    name: string,
    options: { readonly kind: number; readonly attributes: Record<string, string | number> },
    context: TraceContext,
  ): Span
}

interface Span {
  setStatus(status: { code: number; message?: string }): unknown
  end(): void
}

/** The numbers are part of the API. */
const SPAN_KIND_PRODUCER = 3
const SPAN_STATUS_ERROR = 2

type Headers = Readonly<Record<string, string>>

/** What a span says about an event. */
interface TracedEvent {
  readonly eventId: string
  readonly type: string
  readonly orderingKey: string | undefined
  readonly headers: Headers
  readonly attempt: number
}

export interface Tracing {
  /** The headers that the active span adds to an event written now; `undefined` if nothing is being traced. */
  readonly activeHeaders: () => Promise<Headers | undefined>
  /**
   * Runs the work with a span `outbox publish <type>` for each event, which continues the trace in which the event was
   * written. The work gets the events with the headers of these spans. Without tracing it gets the events as they are.
   */
  readonly withTraces: <Event extends TracedEvent, Result>(
    events: readonly Event[],
    publisher: string,
    work: (events: readonly Event[]) => Promise<Result>,
  ) => Promise<Result>
}

/** Whether anything is traced is asked once for each call or batch, not for each event. */
export function createTracing(
  load: (name: string) => Promise<unknown> = async (name) => import(name),
): Tracing {
  let loading: Promise<TraceApi | undefined> | undefined

  function findApi(): Promise<TraceApi | undefined> | undefined {
    if (!isTracing()) return undefined
    loading ??= load('@opentelemetry/api').then(
      // Its own types say more than our interface asks for.
      (api) => api as TraceApi,
      (error: unknown) => {
        // Whoever has registered an SDK expects traces. Not being traced must not stop an event, but be noticed.
        process.emitWarning(
          `an OpenTelemetry SDK is registered, but @opentelemetry/api cannot be imported, so events are not traced: ${messageOf(error)}`,
          {
            type: 'LeaseholdWarning',
            detail:
              'Install @opentelemetry/api beside leasehold. Leave both out of a bundle (esbuild: external).',
          },
        )
        return undefined
      },
    )
    return loading
  }

  return {
    async activeHeaders() {
      const api = await findApi()
      if (api === undefined) return undefined
      const active = api.context.active()
      return api.trace.getSpan(active) === undefined ? undefined : injectedHeaders(api, active)
    },

    async withTraces(events, publisher, work) {
      const finding = findApi()
      const api = finding === undefined ? undefined : await finding
      if (api === undefined) return work(events)
      const traced = events.map((event) => startSpan(api, event, publisher))
      // Spans that the publisher starts are children of the event's span. A batch of several events has no single parent.
      const parent = traced.length === 1 ? traced[0]?.context : undefined
      const run = async (): ReturnType<typeof work> => work(traced.map(({ event }) => event))
      return endSpansAfter(
        traced.map(({ span }) => span),
        async () => (parent === undefined ? run() : api.context.with(parent, run)),
      )
    },
  }
}

const { activeHeaders, withTraces } = createTracing()
export { withTraces }

/** Where every copy of `@opentelemetry/api` 1.x stores what an SDK has registered. */
const REGISTRY: unique symbol = Symbol.for('opentelemetry.js.api.1')

/** Whether an SDK for traces is registered. Called for every event, so it only reads a global. */
export function isTracing(): boolean {
  // Only `@opentelemetry/api` writes there; nothing but the presence of `trace` is relied on.
  const registered = (globalThis as { readonly [REGISTRY]?: { readonly trace?: unknown } | null })[REGISTRY]
  return registered?.trace !== undefined
}

/** Adds the active trace to the headers of each event, unless the producer has given a `traceparent`. */
export async function withTraceHeaders<Event extends { readonly headers: Headers }>(
  events: readonly Event[],
): Promise<readonly Event[]> {
  const active = await activeHeaders()
  if (active === undefined) return events
  return events.map((event) => {
    if (Object.keys(event.headers).some((name) => name.toLowerCase() === 'traceparent')) return event
    const headers = { ...active, ...event.headers }
    // Baggage can be large. An event must not be refused because of its trace.
    return storedBytes(JSON.stringify(headers), MAX_HEADERS_BYTES) > MAX_HEADERS_BYTES
      ? event
      : { ...event, headers }
  })
}

function injectedHeaders(api: TraceApi, context: TraceContext): Record<string, string> {
  const headers: Record<string, string> = {}
  api.propagation.inject(context, headers)
  return headers
}

interface Traced<Event> {
  readonly event: Event
  readonly span: Span
  readonly context: TraceContext
}

function startSpan<Event extends TracedEvent>(api: TraceApi, event: Event, publisher: string): Traced<Event> {
  const attributes = {
    'messaging.system': publisher,
    'messaging.operation.name': 'publish',
    'messaging.operation.type': 'send',
    'messaging.message.id': event.eventId,
    'leasehold.event.type': event.type,
    'leasehold.attempt': event.attempt,
    ...(event.orderingKey === undefined ? {} : { 'leasehold.ordering_key': event.orderingKey }),
  }
  const written = api.propagation.extract(api.ROOT_CONTEXT, withLowerCaseNames(event.headers))
  const tracer = api.trace.getTracer('leasehold')
  const span = tracer.startSpan(
    `outbox publish ${event.type}`,
    { kind: SPAN_KIND_PRODUCER, attributes },
    written,
  )
  const context = api.trace.setSpan(written, span)
  const headers = replaceHeaders(event.headers, injectedHeaders(api, context))
  return { span, context, event: withHeaders(event, headers) }
}

/** A copy of the event that keeps its `toJSON`. */
function withHeaders<Event extends TracedEvent>(event: Event, headers: Headers): Event {
  // A copy of the event's fields with its own prototype is an event of its type.
  return Object.assign(Object.create(Object.getPrototypeOf(event) as object) as Event, event, { headers })
}

async function endSpansAfter<Result>(spans: readonly Span[], work: () => Promise<Result>): Promise<Result> {
  try {
    const result = await work()
    const outcomes: readonly unknown[] = Array.isArray(result) ? result : [result]
    for (const [i, span] of spans.entries()) {
      const failure = failureOf(outcomes[i])
      if (failure !== undefined) span.setStatus({ code: SPAN_STATUS_ERROR, message: failure })
    }
    return result
  } catch (error) {
    const message = messageOf(error)
    for (const span of spans) span.setStatus({ code: SPAN_STATUS_ERROR, message })
    throw error
  } finally {
    for (const span of spans) span.end()
  }
}

/** Why an outcome is not a success. Anything that is not an outcome or an error counts as a success. */
function failureOf(result: unknown): string | undefined {
  if (result instanceof Error) return result.message
  if (typeof result !== 'object' || result === null || !('name' in result) || !('args' in result))
    return undefined
  const { name, args } = result
  if (typeof name !== 'string' || name === 'done') return undefined
  const error = typeof args === 'object' && args !== null && 'error' in args ? args.error : undefined
  return typeof error === 'string' ? `${name}: ${error}` : name
}

/** Propagators read lower-case names, and a producer may have written `Traceparent`. */
function withLowerCaseNames(headers: Headers): Headers {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}

/** Replaces headers whatever the case of their names. */
function replaceHeaders(headers: Headers, replacements: Headers): Headers {
  const others = Object.entries(headers).filter(([name]) => !Object.hasOwn(replacements, name.toLowerCase()))
  return { ...Object.fromEntries(others), ...replacements }
}
