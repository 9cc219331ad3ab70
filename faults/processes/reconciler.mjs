// A reconciler of public.payments. Each transition writes its effect in its own transaction.
import { setTimeout as delay } from 'node:timers/promises'
import { config, fromBuild, random, serve, worker } from './recorded-process.mjs'

const { leaseTable } = await fromBuild('index.js')
const { reconciler } = await fromBuild('reconcile/index.js')

const payments = leaseTable({
  table: 'public.payments',
  claimable: "status = 'pending'",
  order: ['created_at', 'id'],
  attempts: { column: false, expiries: 'lease_expiries', error: false },
})

await serve([
  reconciler({
    table: payments,
    transitions: { pending: ['paid'], paid: [] },
    settings: config.settings,
    everyMs: 100,
    async observe() {
      await delay(random.between(...config.observeMs))
      return random.chance(0.5) ? 'paid' : undefined
    },
    async onApplied(tx, { row }) {
      await tx.query({
        text: 'insert into public.effects (n, worker) values ($1, $2)',
        values: [row.id, worker],
      })
    },
  }),
])
