import { createOutbox } from 'leasehold/outbox'
import { database } from '../../lib/database'

const outbox = createOutbox<{ 'order.placed': { order: string } }>()

/** The order and its event are written in one transaction: both, or neither. */
async function placeOrder(item: string): Promise<string> {
  return database().transaction(async (tx) => {
    const text = 'insert into orders (item) values ($1) returning id'
    const { rows } = await tx.query<{ id: string }>({ text, values: [item] })
    const order = rows[0]?.id ?? ''
    await outbox.enqueue(tx, { type: 'order.placed', payload: { order }, orderingKey: order })
    return order
  })
}

export async function POST(request: Request): Promise<Response> {
  const item = (await request.formData()).get('item')
  if (typeof item !== 'string' || item === '')
    return Response.json({ error: 'item is missing' }, { status: 400 })
  await placeOrder(item)
  return new Response(null, { status: 303, headers: { location: '/' } })
}
