import { context, propagation, trace } from '@opentelemetry/api'
import { NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { openProducers } from '../../../test/support/outbox-producers.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { forgetWebhooks, makeEndpoint, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { send } from './send.ts'

useQuietProcess()
const { url } = useDatabase()
const producers = openProducers(url)
const db = openDatabase({ url })
afterAll(async () => {
  await Promise.all([db.close(), ...producers.map(async (producer) => producer.close())])
})
beforeEach(async () => forgetWebhooks(db))

/** Full of what a driver could trip over: its own placeholders, quotes, other alphabets, JSON in JSON. */
const AWKWARD = {
  type: `it's "paid" ? $1 :name`,
  payload: {
    text: `a ? b ?? \\? $1 $2 :x 'quoted' "twice" \\ back\nline 漢字 🎉`,
    json: '{"not": "parsed"}',
  },
  tenant: `te'nant ? $1`,
  orderingKey: `key ? $1 '"`,
  headers: { traceparent: '00-11111111111111111111111111111111-2222222222222222-01' },
  eventId: '01890000-0000-7000-8000-00000000000a',
}

describe.each(producers)('$name', ({ transaction, root }) => {
  it('send writes in the given transaction, exactly as given, and returns the number of deliveries', async () => {
    await makeEndpoint(db, { tenant: AWKWARD.tenant, ordered: true })
    await transaction(async (tx) => {
      expect(await send(tx, AWKWARD)).toEqual({ eventId: AWKWARD.eventId, deliveries: 1 })
      expect(await send(tx, [{ type: 'without subscribers', payload: null }])).toMatchObject([
        { deliveries: 0 },
      ])
      expect(await writtenDeliveries(db), 'seen from outside').toEqual([])
    })
    const [written, ...others] = await writtenDeliveries(db)
    expect(others).toEqual([])
    expect(written).toMatchObject({
      event_type: AWKWARD.type,
      event_id: AWKWARD.eventId,
      ordering_key: AWKWARD.orderingKey,
      headers: AWKWARD.headers,
    })
    expect(JSON.parse(written?.body ?? '')).toMatchObject({ type: AWKWARD.type, data: AWKWARD.payload })
  })

  it('outside a transaction, a call of send is a transaction of its own', async () => {
    await makeEndpoint(db)
    expect(await send(root, { type: 'a', payload: 1 })).toMatchObject({ deliveries: 1 })
    expect(await writtenDeliveries(db)).toHaveLength(1)
  })
})

it('a writer that returns no rows is reported as invalid', async () => {
  const silent = { query: async () => ({ rows: [] }), inTransaction: async () => undefined }
  await expect(send(silent, { type: 'a', payload: 1 })).rejects.toMatchObject({ code: 'WRITER_INVALID' })
})

it('the active trace is sent with an event, and its baggage is not', async () => {
  const provider = new NodeTracerProvider()
  // With the propagators of trace context and baggage.
  provider.register()
  try {
    await makeEndpoint(db)
    const baggage = propagation.createBaggage({ customer: { value: 'somebody' } })
    await context.with(propagation.setBaggage(context.active(), baggage), async () =>
      provider.getTracer('test').startActiveSpan('the request', async (span) => {
        await send(db, { type: 'a', payload: 1 })
        const { traceId, spanId } = span.spanContext()
        const [written] = await writtenDeliveries(db)
        expect(written?.headers).toEqual({ traceparent: `00-${traceId}-${spanId}-01` })
      }),
    )
  } finally {
    trace.disable()
    context.disable()
    propagation.disable()
  }
})
