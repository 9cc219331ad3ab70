import { once } from 'leasehold/outbox'

/** Handles the messages of the stream until they end. A message can arrive twice; its effect happens once. */
export async function consume(messages, db) {
  for await (const message of messages) {
    const eventId = message.headers.get('leasehold-event-id')
    const { order } = message.json()
    // The event id is stored in the transaction of the effect.
    const { ran } = await db.transaction(async (tx) =>
      once(tx, 'confirmations', eventId, async () =>
        tx.query({ text: 'update orders set confirmed_at = now() where id = $1', values: [order] }),
      ),
    )
    console.log(ran ? `order ${order} is confirmed` : `order ${order} has arrived before`)
    message.ack()
  }
}
