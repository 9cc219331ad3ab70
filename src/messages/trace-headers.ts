import { type FindTraceApi, type TraceApi, traceApiFinder, type TraceContext } from './trace-api.ts'
import { LARGEST_HEADERS, storedBytes } from './validate-fields.ts'

type Headers = Readonly<Record<string, string>>

/** What the active span adds to the headers of an event that is written now; `undefined` where nobody traces. */
export function activeHeadersOf(find: FindTraceApi): () => Promise<Headers | undefined> {
  return async () => {
    const api = await find()
    if (api === undefined) return undefined
    const active = api.context.active()
    return api.trace.getSpan(active) === undefined ? undefined : injected(api, active)
  }
}

const activeHeaders = activeHeadersOf(traceApiFinder())

/** The trace that the events were written in travels with them, unless the producer has given another. */
export async function withTraceHeaders<Event extends { readonly headers: Headers }>(
  events: readonly Event[],
): Promise<readonly Event[]> {
  const active = await activeHeaders()
  if (active === undefined) return events
  return events.map((event) => {
    if (hasTraceParent(event.headers)) return event
    const headers = { ...active, ...event.headers }
    // Baggage can be large: nothing fails for the sake of a trace.
    return storedBytes(JSON.stringify(headers), LARGEST_HEADERS) > LARGEST_HEADERS
      ? event
      : { ...event, headers }
  })
}

export function injected(api: TraceApi, context: TraceContext): Record<string, string> {
  const headers: Record<string, string> = {}
  api.propagation.inject(context, headers)
  return headers
}

/** Whether the caller has given a trace context of his own. */
function hasTraceParent(headers: Headers): boolean {
  return Object.keys(headers).some((name) => name.toLowerCase() === 'traceparent')
}
