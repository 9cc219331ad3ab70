import type { Database } from '../../src/postgres/database.ts'
import { createOutbox } from '../../src/outbox/index.ts'
import { createSync } from '../../src/sync/index.ts'
import { createWebhooks } from '../../src/webhooks/index.ts'
import type { WorkerSettings } from '../../src/worker/index.ts'
import type { Processes } from './processes.ts'
import { SECRET_KEY } from './webhook-endpoints.ts'
import { told, type WorkerProcess } from './worker-process.ts'

export const APPLICATIONS = ['outbox', 'webhooks', 'sync', 'reconcile'] as const

export type Application = (typeof APPLICATIONS)[number]

/** The configuration of test/fixtures/applications.mjs. */
export interface ApplicationsConfig {
  readonly databaseUrl: string
  /** Its handlers say what they hold, and never return. */
  readonly hold?: boolean
  /** The types of the events that it prints. */
  readonly tell?: readonly string[]
  readonly settings?: Partial<WorkerSettings>
  /** Options for startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

/** Starts a process that runs all four applications. */
export function startApplications({ spawnNode }: Processes, config: ApplicationsConfig): WorkerProcess {
  const order = { secretKey: SECRET_KEY, ...config }
  return told(spawnNode('test/fixtures/applications.mjs', [JSON.stringify(order)]))
}

/** The table of the reconciler, and the one into which handlers write what they did. */
export async function createApplicationTables(db: Database): Promise<void> {
  await db.query({
    text: `
create table public.payments (
  id bigint generated always as identity primary key,
  status text not null default 'pending',
  created_at timestamptz not null default now(),
  lease_owner text, lease_until timestamptz, lease_token bigint, lease_expiries int
);
create index payments_open on public.payments (created_at, id) where status = 'pending';
create index payments_suspects on public.payments (created_at, id)
  where status = 'pending' and coalesce(lease_expiries, 0) >= 2;
create index payments_leased on public.payments (id) where lease_owner is not null;
create table public.effects (application text not null, n int not null)`,
  })
}

export async function emptyApplicationTables(db: Database): Promise<void> {
  await db.query({
    text: `truncate public.payments, public.effects, leasehold.outbox, leasehold.webhook_outbox, leasehold.webhook_endpoints,
  leasehold.sync_jobs, leasehold.sync_checkpoints, leasehold.workers restart identity cascade`,
  })
}

/** Writes this many rows for each application, as a producer does: 1 to `rows`, a third of the events with an ordering key. */
export async function produce(db: Database, rows: number): Promise<void> {
  const numbers = Array.from({ length: rows }, (_, i) => i + 1)
  await db.transaction(async (tx) => {
    await createOutbox().enqueue(
      tx,
      numbers.map((n) => ({
        type: 'counted',
        payload: { n },
        orderingKey: n % 3 === 0 ? `key ${n % 2}` : undefined,
      })),
    )
    const { send } = createWebhooks()
    for (const n of numbers) await send(tx, { type: 'counted', payload: { n } })
    await createSync().enqueue(tx, 'numbers', { matrixId: 'm', params: { chunks: rows } })
    await tx.query({
      text: 'insert into public.payments (status) select $2 from generate_series(1, $1::int)',
      values: [rows, 'pending'],
    })
  })
}

/** How many rows of each application are finished. */
export async function finished(db: Database): Promise<Record<Application, number>> {
  const { rows } = await db.query<Record<Application, number>>({
    text: `select
  (select count(*)::int from leasehold.outbox where status = 'PUBLISHED') as outbox,
  (select count(*)::int from leasehold.webhook_outbox where delivery_status = 'delivered') as webhooks,
  (select count(*)::int from leasehold.sync_checkpoints where completed_at is not null) as sync,
  (select count(*)::int from public.payments where status = 'paid') as reconcile`,
  })
  return rows[0] ?? { outbox: 0, webhooks: 0, sync: 0, reconcile: 0 }
}

/** How many rows of each application this process has leased. */
export async function leasedBy(db: Database, worker: string): Promise<Record<Application, number>> {
  const { rows } = await db.query<Record<Application, number>>({
    text: `select
  (select count(*)::int from leasehold.outbox where claimed_by = $1) as outbox,
  (select count(*)::int from leasehold.webhook_outbox where lease_owner = $1) as webhooks,
  (select count(*)::int from leasehold.sync_checkpoints where locked_by = $1) as sync,
  (select count(*)::int from public.payments where lease_owner = $1) as reconcile`,
    values: [worker],
  })
  return rows[0] ?? { outbox: 0, webhooks: 0, sync: 0, reconcile: 0 }
}

/** What the handlers of this application did, in order of the numbers: each number should be there once. */
export async function effects(db: Database, application: Application): Promise<number[]> {
  const { rows } = await db.query<{ n: number }>({
    text: 'select n from public.effects where application = $1 order by n',
    values: [application],
  })
  return rows.map(({ n }) => n)
}
