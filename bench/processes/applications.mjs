// A worker process with all four applications and nothing to do.
import { loadFrom } from '../builds.mjs'
import { serve } from './calls.mjs'

const SECRET_KEY = Buffer.alloc(32, 7).toString('base64')

/** A table of the user's with a lease, as `leasehold lease add` makes it. */
const PAYMENTS = `
  create table public.payments (
    id bigint generated always as identity primary key,
    status text not null default 'pending',
    created_at timestamptz not null default now(),
    lease_owner text,
    lease_until timestamptz,
    lease_token bigint,
    lease_expiries int
  );
  create index payments_open on public.payments (created_at, id) where status = 'pending';
  create index payments_suspects on public.payments (created_at, id)
    where status = 'pending' and coalesce(lease_expiries, 0) >= 2;
  create index payments_leased on public.payments (id) where lease_owner is not null;
  create index payments_status on public.payments (status, lease_until, created_at, id)`

let modules
let runtime

serve({
  async load(build) {
    const names = ['.', './outbox', './publishers/handlers', './webhooks', './sync', './reconcile']
    const loaded = await Promise.all(names.map(async (name) => loadFrom(build, name)))
    modules = Object.assign({}, ...loaded)
  },

  async start({ url }) {
    const { createSync, dispatcher, handlers, leaseTable, openDatabase } = modules
    const { reconciler, relay, startRuntime } = modules
    const db = openDatabase({ url })
    await db.query({ text: PAYMENTS })
    await db.close()
    const sync = createSync()
    sync.define('invoices', { plan: async () => [], syncChunk: async () => ({ rows: 0 }) })
    const table = leaseTable({
      table: 'public.payments',
      claimable: "status = 'pending'",
      order: ['created_at', 'id'],
      attempts: { column: false, expiries: 'lease_expiries', error: false },
    })
    runtime = await startRuntime({
      databaseUrl: url,
      migrate: false,
      workers: [
        relay({ publisher: handlers({ 'bench.happened': async () => undefined }) }),
        dispatcher({ secretKey: SECRET_KEY }),
        ...sync.runner(),
        reconciler({
          table,
          transitions: { pending: ['paid'], paid: [] },
          observe: async () => undefined,
        }),
      ],
    })
  },

  /** Processor time since the process began, in milliseconds. */
  async cpu() {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1_000
  },

  async stop() {
    await runtime.stop()
  },
})
