// The outbox in an application that uses `pg`. README.md shows what is between the marks; a test compares the two, and
// outbox.ts is a program around it.

// begin
import { startRuntime, type Events } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers, type EventHandlers } from 'leasehold/publishers/handlers'
import type { ClientBase } from 'pg'

export interface ShopEvents {
  'order.paid': { order: string; total: number }
  'order.shipped': { order: string }
}

const outbox = createOutbox<ShopEvents>()

/** In your transaction: the order is paid and the event is written, or neither. */
export async function pay(tx: ClientBase, order: string, total: number) {
  await tx.query('update shop.orders set paid = $2 where id = $1', [order, total])
  await outbox.enqueue(tx, { type: 'order.paid', payload: { order, total }, orderingKey: order })
}

/** In any number of processes: publishes committed events, those of one order one at a time. */
export async function startRelay(databaseUrl: string, on: EventHandlers<ShopEvents>, events: Events) {
  const workers = [relay({ publisher: handlers<ShopEvents>(on) })]
  // Migrates at the start, for development. In production run `leasehold migrate` as the owner of the schema.
  return startRuntime({ databaseUrl, migrate: true, workers, events })
}
// end

export async function ship(tx: ClientBase, order: string) {
  await tx.query('update shop.orders set shipped = true where id = $1', [order])
  await outbox.enqueue(tx, { type: 'order.shipped', payload: { order }, orderingKey: order })
}
