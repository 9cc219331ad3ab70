import { once } from 'node:events'
import { context, propagation, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api'
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase } from '../postgres/database.ts'
import { dead, done, type Outcome, retry } from '../worker/completion/outcome.ts'
import type { NewEvent, OutboxEvent } from '../outbox/event.ts'
import { enqueue } from '../outbox/enqueue/enqueue.ts'
import { createTracing } from './trace.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

const exporter = new InMemorySpanExporter()
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
const tracer = provider.getTracer('test')
const tracing = createTracing()
const CALLERS = '00-11111111111111111111111111111111-2222222222222222-01'

/** The SDK registers itself for the process; each test begins with it, and those that do without end it first. */
beforeEach(() => {
  provider.register()
})
afterEach(() => {
  endTracing()
  exporter.reset()
})

function endTracing(): void {
  trace.disable()
  context.disable()
  propagation.disable()
}

async function headersOf(enqueued: { readonly id: string }): Promise<Record<string, string>> {
  const { rows } = await db.query<{ headers: Record<string, string> }>({
    text: 'select headers from leasehold.outbox where id = $1',
    values: [enqueued.id],
  })
  return rows[0]?.headers ?? {}
}

/** Enqueues inside a span, with something in the baggage. */
async function inSpan(event: NewEvent) {
  return tracer.startActiveSpan('request', async (span) => {
    const baggage = propagation.createBaggage({ tenant: { value: 't 1' } })
    const enqueued = await context.with(propagation.setBaggage(context.active(), baggage), async () =>
      enqueue(db, event),
    )
    span.end()
    return { headers: await headersOf(enqueued), span: span.spanContext() }
  })
}

function published(headers: Record<string, string>, changes: Partial<OutboxEvent> = {}): OutboxEvent {
  return {
    id: '7',
    eventId: '01890000-0000-7000-8000-00000000000a',
    type: 'order.paid',
    payload: { id: 'o-1' },
    orderingKey: 'o-1',
    headers,
    createdAt: new Date(),
    attempt: 2,
    token: 3n,
    ...changes,
  }
}

function spans() {
  return exporter.getFinishedSpans().filter(({ name }) => name.startsWith('outbox publish'))
}

describe('enqueue', () => {
  it('puts the trace and the baggage of the active span into the headers', async () => {
    const { headers, span } = await inSpan({ type: 'a', payload: 1, headers: { mine: 'too' } })
    expect(headers).toEqual({
      mine: 'too',
      traceparent: `00-${span.traceId}-${span.spanId}-01`,
      baggage: 'tenant=t%201',
    })
  })

  it.each(['traceparent', 'Traceparent'])(
    'does not replace a trace that the producer gave as %s',
    async (name) => {
      const { headers } = await inSpan({ type: 'a', payload: 1, headers: { [name]: CALLERS } })
      expect(headers).toEqual({ [name]: CALLERS })
    },
  )

  it('the headers of the producer take precedence', async () => {
    const { headers, span } = await inSpan({ type: 'a', payload: 1, headers: { baggage: 'tenant=mine' } })
    expect(headers).toEqual({ traceparent: `00-${span.traceId}-${span.spanId}-01`, baggage: 'tenant=mine' })
  })

  it('leaves the trace out if it would make the headers too large', async () => {
    // The propagator limits baggage to 8 KiB, so the event needs large headers of its own.
    const headers = { mine: 'x'.repeat(16_300) }
    expect((await inSpan({ type: 'a', payload: 1, headers })).headers).toEqual(headers)
  })

  it('adds nothing outside a span', async () => {
    expect(await headersOf(await enqueue(db, { type: 'a', payload: 1 }))).toEqual({})
  })

  it('adds nothing without an SDK for traces', async () => {
    endTracing()
    const { headers } = await inSpan({ type: 'a', payload: 1 })
    expect(headers).toEqual({})
  })
})

describe('publishing', () => {
  it('continues the trace in which the event was written, in a span of its own', async () => {
    const { headers, span } = await inSpan({ type: 'order.paid', payload: 1, headers: { mine: 'too' } })
    const sent = await tracing.withTraces([published(headers)], 'nats', async ([event]) => {
      expect(trace.getSpan(context.active())?.spanContext().traceId).toBe(span.traceId)
      return event?.headers
    })
    const [own] = spans()
    expect(own?.name).toBe('outbox publish order.paid')
    expect(own?.kind).toBe(SpanKind.PRODUCER)
    expect(own?.parentSpanContext?.spanId).toBe(span.spanId)
    expect(own?.spanContext().traceId).toBe(span.traceId)
    expect(own?.status.code).toBe(SpanStatusCode.UNSET)
    expect(own?.attributes).toEqual({
      'messaging.system': 'nats',
      'messaging.operation.name': 'publish',
      'messaging.operation.type': 'send',
      'messaging.message.id': '01890000-0000-7000-8000-00000000000a',
      'leasehold.event.type': 'order.paid',
      'leasehold.ordering_key': 'o-1',
      'leasehold.attempt': 2,
    })
    expect(sent).toEqual({
      mine: 'too',
      traceparent: `00-${span.traceId}-${own?.spanContext().spanId}-01`,
      baggage: 'tenant=t%201',
    })
  })

  it('a traceparent header in another case is replaced, not sent twice', async () => {
    const event = published({ Traceparent: CALLERS })
    const sent = await tracing.withTraces([event], 'nats', async ([sending]) => sending?.headers ?? {})
    expect(Object.keys(sent)).toEqual(['traceparent'])
    expect(sent['traceparent']).toMatch(/^00-1{32}-(?!2{16})[\da-f]{16}-01$/)
  })

  it('an event without a trace begins one', async () => {
    const sent = await tracing.withTraces(
      [published({})],
      'nats',
      async ([sending]) => sending?.headers ?? {},
    )
    expect(sent['traceparent']).toMatch(/^00-[\da-f]{32}-[\da-f]{16}-01$/)
    expect(spans()[0]?.parentSpanContext).toBeUndefined()
  })

  it('has a span for each event of a batch, and each shows its own outcome', async () => {
    const first = await inSpan({ type: 'a', payload: 1 })
    const second = await inSpan({ type: 'b', payload: 1 })
    const outcomes: readonly Outcome[] = [done(), retry({ error: new Error('busy') }), dead('never')]
    const events = [
      published(first.headers, { type: 'a' }),
      published(second.headers, { type: 'b' }),
      published({}, { type: 'c' }),
    ]
    const result = await tracing.withTraces(events, 'redis', async (traced) => {
      expect(traced.map(({ headers }) => headers['traceparent']?.slice(3, 35)).slice(0, 2)).toEqual([
        first.span.traceId,
        second.span.traceId,
      ])
      return outcomes
    })
    expect(result).toBe(outcomes)
    expect(spans().map(({ name, status }) => [name, status.code, status.message])).toEqual([
      ['outbox publish a', SpanStatusCode.UNSET, undefined],
      ['outbox publish b', SpanStatusCode.ERROR, 'retry: Error: busy'],
      ['outbox publish c', SpanStatusCode.ERROR, 'dead: never'],
    ])
  })

  it('a batch without outcomes was acknowledged as a whole, and one that throws failed as a whole', async () => {
    const events = [published({}), published({})]
    await tracing.withTraces(events, 'http', async () => undefined)
    expect(spans().map(({ status }) => status.code)).toEqual([SpanStatusCode.UNSET, SpanStatusCode.UNSET])
    exporter.reset()
    const reason = new Error('gone')
    await expect(tracing.withTraces(events, 'http', async () => Promise.reject(reason))).rejects.toBe(reason)
    expect(spans().map(({ status }) => status)).toEqual([
      { code: SpanStatusCode.ERROR, message: 'gone' },
      { code: SpanStatusCode.ERROR, message: 'gone' },
    ])
  })

  it('a batch of one runs in its span', async () => {
    await tracing.withTraces([published({})], 'http', async ([event]) => {
      const active = trace.getSpan(context.active())?.spanContext()
      expect(event?.headers['traceparent']).toBe(`00-${active?.traceId}-${active?.spanId}-01`)
    })
    expect(spans()).toHaveLength(1)
  })

  it('without an SDK for traces the events are passed on unchanged, and nothing is loaded', async () => {
    endTracing()
    const loaded: string[] = []
    const without = createTracing(async (name) => {
      loaded.push(name)
      return {}
    })
    const events = [published({ traceparent: CALLERS })]
    await without.withTraces(events, 'http', async (given) => {
      expect(given).toBe(events)
    })
    const one = published({ traceparent: CALLERS })
    expect(await without.withTraces([one], 'http', async ([event]) => event)).toBe(one)
    expect(loaded).toEqual([])
  })

  it('events are published even if the package cannot be loaded, and a warning says that they are not traced', async () => {
    const loaded: string[] = []
    const broken = createTracing(async (name) => {
      loaded.push(name)
      throw new Error('no such package')
    })
    const warning = once(process, 'warning')
    const event = published({ traceparent: CALLERS })
    expect(await broken.withTraces([event], 'http', async ([given]) => given)).toBe(event)
    expect(await context.with(ROOT_CONTEXT, async () => broken.activeHeaders())).toBeUndefined()
    expect(loaded).toEqual(['@opentelemetry/api'])
    expect(await warning).toEqual([
      expect.objectContaining({ message: expect.stringContaining('no such package') }),
    ])
  })

  it('an SDK that is registered later is noticed', async () => {
    endTracing()
    const late = createTracing()
    await late.withTraces([published({})], 'http', async () => undefined)
    expect(spans()).toEqual([])
    provider.register()
    await late.withTraces([published({})], 'http', async () => undefined)
    expect(spans()).toHaveLength(1)
  })
})
