/** Reconcile: payments of a table are observed at a bank until they are paid or refused. */
import { leaseTable } from '../../lease/index.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Database } from '../../postgres/index.ts'
import { type Answer, reconciler } from '../../reconcile/index.ts'
import type { WorkDeclaration } from '../../worker/index.ts'
import { pause } from '../../worker/loop.ts'
import type { DemoPart } from './demo.ts'

const PAYMENT_EVERY_MS = 1_500
const OBSERVED_EVERY_MS = 3_000
const TABLE = 'demo_payments'
const OPEN = "status in ('pending', 'authorised')"

type Status = 'pending' | 'authorised' | 'paid' | 'refused'

interface Payment {
  readonly id: string
  readonly status: Status
}

export function payments(schema: string, stopping: AbortSignal): DemoPart {
  const table = quoteQualified(schema, TABLE)
  const worker = reconciler<Payment, Status>({
    name: 'payments',
    table: leaseTable({
      table: `${schema}.${TABLE}`,
      id: 'id',
      lease: { owner: 'lease_owner', until: 'lease_until' },
      claimable: OPEN,
      order: ['created_at', 'id'],
      attempts: { column: false, expiries: 'lease_expiries', error: false },
    }),
    transitions: {
      pending: ['authorised', 'refused'],
      authorised: ['paid', 'refused'],
      paid: [],
      refused: [],
    },
    async observe(payment) {
      await pause(200 + Math.random() * 2_000, stopping)
      return askBank(payment)
    },
    everyMs: OBSERVED_EVERY_MS,
    settings: { pollMs: 1_000 },
  })
  return {
    // Only the handler knows the type of the rows; here they are passed on.
    workers: [worker as unknown as WorkDeclaration],
    prepare: async (db) => createTable(db, table),
    loops: [
      {
        name: 'payments',
        everyMs: PAYMENT_EVERY_MS,
        async work(db) {
          await db.query({
            text: `insert into ${table} (amount) values ($1)`,
            values: [1 + Math.floor(Math.random() * 500)],
          })
          await db.query({
            text: `delete from ${table} where not (${OPEN}) and created_at < now() - interval '10 minutes'`,
          })
        },
      },
    ],
  }
}

function askBank({ status }: Payment): Answer<Status> | undefined {
  const chance = Math.random()
  if (chance < 0.08) throw new Error('the bank does not answer')
  if (chance < 0.45) return undefined
  if (chance < 0.5) return 'refused'
  return status === 'pending' ? 'authorised' : 'paid'
}

/** As `leasehold lease add` would have added the lease to a table. The indexes belong to the declaration above. */
async function createTable(db: Database, table: string): Promise<void> {
  await db.query({
    text: `create table if not exists ${table} (
  id bigint generated always as identity primary key,
  amount int not null,
  status text not null default 'pending',
  created_at timestamptz not null default now(),
  lease_owner text,
  lease_until timestamptz,
  lease_expiries int
);
create index if not exists demo_payments_claim on ${table} (created_at, id) where ${OPEN};
create index if not exists demo_payments_suspects on ${table} (created_at, id)
  where (${OPEN}) and coalesce(lease_expiries, 0) >= 2;
create index if not exists demo_payments_leased on ${table} (id) where lease_owner is not null;
create index if not exists demo_payments_lease on ${table} (status, lease_until, created_at, id)`,
  })
  // The dashboard reads as these roles, where they exist.
  const { rows } = await db.query<{ role: string }>({
    text: `select quote_ident(rolname) as role from pg_roles where rolname in ('leasehold_reader', 'leasehold_operator')`,
  })
  for (const { role } of rows) await db.query({ text: `grant select on ${table} to ${role}` })
}
