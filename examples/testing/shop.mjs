import { leaseTable } from 'leasehold'
import { createOutbox, relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'

const outbox = createOutbox()

/** The tables of the shop. In a project, your migrations create them. */
export async function createTables(db) {
  await db.query({
    text: `
      create table orders (id text primary key, paid int, refunded int);
      create table refunds (
        id bigint generated always as identity primary key,
        order_id text not null references orders,
        done_at timestamptz,
        failed_at timestamptz,
        due_at timestamptz not null default now(),
        attempts int not null default 0,
        expiries int not null default 0,
        last_error text,
        lease_owner text,
        lease_until timestamptz,
        lease_token bigint not null default 0
      );
      create index on refunds (due_at, id) where done_at is null and failed_at is null;
      create index on refunds (due_at, id) where done_at is null and failed_at is null and expiries >= 2;
      create index on refunds (id) where lease_owner is not null`,
  })
}

/** The order is paid and its event is written, or neither. */
export async function pay(tx, order, total) {
  await tx.query({ text: 'insert into orders (id, paid) values ($1, $2)', values: [order, total] })
  await outbox.enqueue(tx, { type: 'order.paid', payload: { order, total }, orderingKey: order })
}

/** Sends a receipt for each order that was paid. */
export function receipts(mailer) {
  return relay({
    publisher: handlers({ 'order.paid': async ({ payload }) => mailer.send(`receipt for ${payload.order}`) }),
    retry: { firstMs: 60_000 },
  })
}

export const refunds = leaseTable({
  table: 'public.refunds',
  claimable: 'done_at is null and failed_at is null',
  availableAt: 'due_at',
  attempts: { max: 5 },
  outcomes: { done: { done_at: 'now()' }, dead: { failed_at: 'now()' } },
})

/** Refunds orders at the bank. What the bank has refunded is booked only while the worker still holds the row. */
export function refunding(db, bank) {
  return {
    name: 'refunds',
    table: refunds,
    async handle({ row, settleIn }) {
      const amount = await bank.refund(row.order_id)
      await db.transaction(async (tx) => {
        await tx.query({
          text: 'update orders set refunded = $2 where id = $1',
          values: [row.order_id, amount],
        })
        await settleIn(tx)
      })
    },
  }
}
