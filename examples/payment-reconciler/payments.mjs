import { leaseTable } from 'leasehold'
import { createOutbox } from 'leasehold/outbox'
import { reconciler } from 'leasehold/reconcile'
import { createChain } from './chain.mjs'
import { journal, observer } from './observe.mjs'
import { numberOf } from './settings.mjs'

/** As declared at the end of migrations/002_reconcile_lease.sql. */
const table = leaseTable({
  table: 'app.payment_requests',
  id: 'id',
  lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until' },
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  attempts: { column: false, expiries: 'reconcile_lease_expiries', error: false },
})

const outbox = createOutbox()

/** Observes every open request until it is confirmed or expired, and writes an event for each step in its transaction. */
export function reconcilePayments(chain = createChain()) {
  return reconciler({
    table,
    transitions: {
      pending: ['detected', 'expired'],
      detected: ['confirmed', 'expired'],
      confirmed: [],
      expired: [],
    },
    values: { tx_hash: 'text' },
    observe: observer(chain, journal(process.env.OBSERVATIONS_FILE)),
    onApplied: async (tx, { row, to }) => {
      const payload = { request: row.id, amount: row.amount }
      await outbox.enqueue(tx, { type: `payment.${to}`, payload, orderingKey: row.id })
    },
    everyMs: numberOf('RECONCILE_EVERY_MS', 2_000, { least: 1 }),
    timeoutMs: numberOf('RECONCILE_TIMEOUT_MS', 10_000, { least: 1 }),
    settings: {
      pollMs: numberOf('RECONCILE_POLL_MS', 1_000),
      batch: numberOf('RECONCILE_BATCH', 100),
      concurrency: numberOf('RECONCILE_CONCURRENCY', 20),
    },
  })
}
