/** As much of `@opentelemetry/api` as is used here; the package itself is an optional peer. */
export interface TraceApi {
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

/** Opaque: only handed on. */
export interface TraceContext {
  getValue(key: symbol): unknown
}

export interface Tracer {
  startSpan(
    name: string,
    options: { readonly kind: number; readonly attributes: Record<string, string | number> },
    context: TraceContext,
  ): Span
}

export interface Span {
  setStatus(status: { code: number; message?: string }): unknown
  end(): void
}

/** `SpanKind.PRODUCER` and `SpanStatusCode.ERROR`: the numbers are part of the API. */
export const PRODUCER = 3
export const ERROR = 2

/** Finds the API, or `undefined` while nobody traces. */
export type FindTraceApi = () => Promise<TraceApi | undefined> | undefined

/** Where every copy of `@opentelemetry/api` 1.x keeps what an SDK has registered. */
const REGISTRY: unique symbol = Symbol.for('opentelemetry.js.api.1')

/**
 * Without an SDK for traces there is no span, and nothing to load: until one is registered this costs a look at a global.
 * A package that is missing or broken is no reason not to publish: then headers travel as they are.
 */
export function traceApiFinder(
  load: (name: string) => Promise<unknown> = async (name) => import(name),
): FindTraceApi {
  let loading: Promise<TraceApi | undefined> | undefined
  return () => {
    if (!isTracing()) return undefined
    loading ??= load('@opentelemetry/api').then(
      // Its own types say more than our interface asks for.
      (api) => api as TraceApi,
      () => undefined,
    )
    return loading
  }
}

/** Whether an SDK for traces is there. Asked for every event, and so read in the quickest way. */
export function isTracing(): boolean {
  // Only `@opentelemetry/api` writes there; whatever it is, its `trace` is all that is looked at.
  const registered = (globalThis as { readonly [REGISTRY]?: { readonly trace?: unknown } | null })[REGISTRY]
  return registered?.trace !== undefined
}
