/** Which way PostgreSQL takes to the rows of a statement: its plans, and tables of different sizes to plan for. */
import { inspectTable } from '../../src/lease/inspect.ts'
import type { LeaseStatement } from '../../src/lease/statement.ts'
import { allStatements, leaseStatements } from '../../src/lease/statements.ts'
import type { LeaseTable } from '../../src/lease/table.ts'
import { outboxTable } from '../../src/outbox/table.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { Queryable } from '../../src/postgres/queryable.ts'
import { chunkTable, jobTable } from '../../src/sync/table.ts'
import { webhookTable } from '../../src/webhooks/table.ts'

/** One node of `EXPLAIN (FORMAT JSON)`, as far as the tests read it. */
export interface PlanNode {
  readonly 'Node Type': string
  readonly 'Subplan Name'?: string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly Plans?: readonly PlanNode[]
}

export function nodesOf(plan: PlanNode): PlanNode[] {
  return [plan, ...(plan.Plans ?? []).flatMap(nodesOf)]
}

export type Values = Readonly<Record<string, unknown>>
export const MODES = ['custom', 'generic'] as const

/** The plan PostgreSQL makes for real values (custom) or for any values (generic), as a prepared statement has it. */
export async function plan(
  db: Database,
  statement: LeaseStatement,
  mode: (typeof MODES)[number],
  values: Values,
): Promise<PlanNode[]> {
  return db.transaction(async (tx) => {
    const explained =
      mode === 'custom' ? `explain (format json) ${statement.text}` : await preparedForAny(tx, statement)
    const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
      text: explained,
      values: mode === 'custom' ? bound(statement, values) : [],
    })
    return nodesOf(rows[0]?.['QUERY PLAN'][0].Plan ?? { 'Node Type': 'no plan' })
  })
}

export function bound(statement: LeaseStatement, values: Values): unknown[] {
  return statement.parameters.map((parameter) => values[parameter] ?? null)
}

/** The plan that a connection keeps once it has stopped planning for each call. */
async function preparedForAny(tx: Queryable, statement: LeaseStatement): Promise<string> {
  await tx.query({ text: 'deallocate all' })
  await tx.query({ text: 'set local plan_cache_mode = force_generic_plan' })
  await tx.query({ text: `prepare any_values as ${statement.text}` })
  const nulls = statement.parameters.map(() => 'null').join(', ')
  return `explain (format json) execute any_values ${nulls === '' ? '' : `(${nulls})`}`
}

export async function statementsOf(db: Queryable, table: LeaseTable): Promise<LeaseStatement[]> {
  const inspection = await inspectTable(db, table)
  if (inspection.found !== 'table') throw new Error(`${table.name} is missing`)
  return allStatements(leaseStatements(table, inspection.shape))
}

const BATCH = Array.from({ length: 200 }, (_, i) => String(i + 1))
const ENDPOINTS = Array.from(
  { length: 50 },
  (_, i) => `00000000-0000-7000-8000-${String(i).padStart(12, '0')}`,
)

/** What a busy worker asks, for any statement of the table. */
export function sampleValues(table: LeaseTable, bucket = 0): Record<string, unknown> {
  const isUuid = table.name === 'payments'
  const keys = isUuid ? BATCH.map((n) => `00000000-0000-4000-8000-${n.padStart(12, '0')}`) : BATCH
  const groups = table.name === 'webhook_outbox' ? ENDPOINTS : ['definition 1', 'definition 2']
  return {
    owner: 'worker',
    ownedBy: 'worker',
    leaseMs: 30_000,
    delayMs: 0,
    limit: 200,
    bytes: 1e7,
    steps: 1_000,
    rows: 1_000,
    alone: false,
    bucket,
    tokens: `{${keys.map(() => 1).join(',')}}`,
    args: '{}',
    backoffMs: [1_000, 2_000],
    ...(table.id.length === 1 ? { id1: keys, excluded1: [] } : { id1: keys, id2: keys }),
    cursor1: table.order[0]?.column === 'due' ? '1' : '-infinity',
    cursor2: table.name === 'payments' ? '00000000-0000-4000-8000-000000000000' : '-9223372036854775808',
    // Those that wait, also in a small table.
    keys: BATCH.map((n) => `key ${1_200 + 2 * Number(n)}`),
    groups,
    rooms: groups.map(() => 10),
    groupCursors: groups.map(() => ''),
  }
}

interface OwnTable {
  readonly table: LeaseTable
  /** The INSERT of so many rows; `bucket`: that of the row `n`, in a table that has buckets. */
  readonly fill: (rows: number, bucket?: string) => string
}

/** Rows in every state: some in flight, some expired, some suspects, some not due, most of them finished. */
export const OWN_TABLES: readonly OwnTable[] = [
  {
    table: outboxTable(),
    fill: (rows, bucket = '0') => `insert into leasehold.outbox
        (bucket, event_type, payload, ordering_key, status, expiries, available_at, claimed_at, claimed_by, locked_until, lock_token, published_at, dead_at)
      select ${bucket}, 'test', '{}', case when n % 2 = 0 then 'key ' || n % 5000 end, s, case when n % 501 = 0 then 2 else 0 end,
        now() - (${rows} - n) * interval '1 millisecond' + case when n % 50 = 49 then interval '1 hour' else interval '0' end,
        case when s = 'CLAIMED' then now() end, case when s = 'CLAIMED' then 'worker' end,
        case when s = 'CLAIMED' then now() + (n % 3 - 1) * interval '1 minute' end, 1,
        case when s = 'PUBLISHED' then now() end, case when s = 'DEAD' then now() end
      from (select n, case when n % 200 = 1 or n between 2 and 50 then 'CLAIMED' when n % 997 = 0 then 'DEAD'
        when n <= ${rows} * 0.6 then 'PUBLISHED' else 'PENDING' end as s from generate_series(1, ${rows}) as n) as rows`,
  },
  {
    table: webhookTable(),
    fill: (rows, bucket = '0') => `insert into leasehold.webhook_outbox
        (bucket, endpoint_id, event_type, body, ordering_key, delivery_status, expiries, next_attempt_at, lease_owner, lease_until, lease_token, delivered_at, failed_at)
      select ${bucket}, ('00000000-0000-7000-8000-' || lpad((n / 2 % 50)::text, 12, '0'))::uuid, 'test', '{}', case when n % 2 = 0 then 'key ' || n % 5000 end,
        case when s = 'leased' then 'pending' else s end, case when n % 501 = 0 then 2 else 0 end,
        now() - (${rows} - n) * interval '1 millisecond' + case when n % 50 = 49 then interval '1 hour' else interval '0' end,
        case when s = 'leased' then 'worker' end, case when s = 'leased' then now() + (n % 3 - 1) * interval '1 minute' end, 1,
        case when s = 'delivered' then now() end, case when s = 'failed' then now() end
      from (select n, case when n % 200 = 1 or n between 2 and 50 then 'leased' when n % 997 = 0 then 'failed'
        when n <= ${rows} * 0.6 then 'delivered' else 'pending' end as s from generate_series(1, ${rows}) as n) as rows`,
  },
  {
    table: jobTable(),
    fill: (rows) => `insert into leasehold.sync_jobs
        (definition, matrix_id, priority, expiries, next_check_at, locked_by, locked_until, completed_at)
      select 'definition ' || n % 20, 'matrix ' || n, n % 3, case when n % 501 = 0 then 2 else 0 end,
        now() + case when n % 50 = 49 then interval '1 hour' else interval '0' end, case when leased then 'worker' end,
        case when leased then now() + (n % 3 - 1) * interval '1 minute' end, case when n <= ${rows} * 0.6 then now() end
      from (select n, n > ${rows} * 0.6 and n % 200 = 1 as leased from generate_series(1, ${rows}) as n) as rows`,
  },
  {
    table: chunkTable(),
    fill: (rows) => `insert into leasehold.sync_checkpoints
        (matrix_id, chunk_hash, definition, chunk_query, priority, position, expiries, locked_by, locked_until, completed_at, last_synced_at, row_count)
      select 'matrix ' || n % 100, md5(n::text), 'definition ' || n % 20, '{}', n % 3, n, case when n % 501 = 0 then 2 else 0 end,
        case when leased then 'worker' end, case when leased then now() + (n % 3 - 1) * interval '1 minute' end,
        case when done then now() end, case when done then now() end, case when done then 1 end
      from (select n, n > ${rows} * 0.6 and n % 200 = 1 as leased, n <= ${rows} * 0.6 as done from generate_series(1, ${rows}) as n) as rows`,
  },
]

/** As if nobody had gathered statistics yet. */
export async function forgetStatistics(db: Queryable, target: string): Promise<void> {
  await db.query({
    text: `delete from pg_statistic where starelid = '${target}'::regclass;
      update pg_class set reltuples = -1, relpages = 0
      where oid in (select '${target}'::regclass union select indexrelid from pg_index where indrelid = '${target}'::regclass)`,
  })
}
