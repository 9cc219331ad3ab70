/** Which way each statement takes to its rows, whatever the size of the table and its statistics. See docs/decisions/002-plans.md. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { indexesOf } from '../../scripts/sql.mjs'
import { useDatabase } from '../../test/support/database.ts'
import { events, specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { chunkTable, jobTable } from '../sync/table.ts'
import { webhookTable } from '../webhooks/table.ts'
import { inspectTable } from './inspect.ts'
import type { Lease } from './lease.ts'
import { nodesOf, type PlanNode } from './plans.ts'
import type { LeaseStatement } from './statement.ts'
import { allStatements, leaseStatements } from './statements.ts'
import { openLeaseStore } from './store.ts'
import type { LeaseTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
afterAll(async () => db.close())

type Values = Readonly<Record<string, unknown>>
const MODES = ['custom', 'generic'] as const

/** The plan PostgreSQL makes for real values (custom) or for any values (generic), as a prepared statement has it. */
async function plan(
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

function bound(statement: LeaseStatement, values: Values): unknown[] {
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

async function statementsOf(table: LeaseTable): Promise<LeaseStatement[]> {
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
function sampleValues(table: LeaseTable, bucket = 0): Record<string, unknown> {
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
    overlapMs: 1_000,
    rows: 1_000,
    oldestFirst: true,
    suspects: 1,
    bucket,
    tokens: `{${keys.map(() => 1).join(',')}}`,
    args: '{}',
    backoffMs: [1_000, 2_000],
    ...(table.id.length === 1 ? { id1: keys, excluded1: [], freed1: keys } : { id1: keys, id2: keys }),
    cursor1: table.order[0]?.column === 'due' ? '1' : '-infinity',
    cursor2: table.name === 'payments' ? '00000000-0000-4000-8000-000000000000' : '-9223372036854775808',
    keyCursor: '',
    groups,
    rooms: groups.map(() => 10),
    groupCursors: groups.map(() => ''),
  }
}

/** Rows in every state: some in flight, some expired, some suspects, some not due, most of them finished. */
const OWN_TABLES: readonly { readonly table: LeaseTable; readonly fill: (rows: number) => string }[] = [
  {
    table: outboxTable(),
    fill: (rows) => `insert into leasehold.outbox
        (event_type, payload, ordering_key, status, expiries, available_at, claimed_at, claimed_by, locked_until, lock_token, published_at, dead_at)
      select 'test', '{}', case when n % 2 = 0 then 'key ' || n % 5000 end, s, case when n % 1001 = 0 then 2 else 0 end,
        now() - (${rows} - n) * interval '1 millisecond' + case when n % 50 = 49 then interval '1 hour' else interval '0' end,
        case when s = 'CLAIMED' then now() end, case when s = 'CLAIMED' then 'worker' end,
        case when s = 'CLAIMED' then now() + (n % 3 - 1) * interval '1 minute' end, 1,
        case when s = 'PUBLISHED' then now() end, case when s = 'DEAD' then now() end
      from (select n, case when n % 200 = 1 or n between 2 and 50 then 'CLAIMED' when n % 997 = 0 then 'DEAD'
        when n <= ${rows} * 0.6 then 'PUBLISHED' else 'PENDING' end as s from generate_series(1, ${rows}) as n) as rows`,
  },
  {
    table: webhookTable(),
    fill: (rows) => `insert into leasehold.webhook_outbox
        (endpoint_id, event_type, body, ordering_key, delivery_status, expiries, next_attempt_at, lease_owner, lease_until, lease_token, delivered_at, failed_at)
      select ('00000000-0000-7000-8000-' || lpad((n / 2 % 50)::text, 12, '0'))::uuid, 'test', '{}', case when n % 2 = 0 then 'key ' || n % 5000 end,
        case when s = 'leased' then 'pending' else s end, case when n % 1001 = 0 then 2 else 0 end,
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
      select 'definition ' || n % 20, 'matrix ' || n, n % 3, case when n % 1001 = 0 then 2 else 0 end,
        now() + case when n % 50 = 49 then interval '1 hour' else interval '0' end, case when leased then 'worker' end,
        case when leased then now() + (n % 3 - 1) * interval '1 minute' end, case when n <= ${rows} * 0.6 then now() end
      from (select n, n > ${rows} * 0.6 and n % 200 = 1 as leased from generate_series(1, ${rows}) as n) as rows`,
  },
  {
    table: chunkTable(),
    fill: (rows) => `insert into leasehold.sync_checkpoints
        (matrix_id, chunk_hash, definition, chunk_query, priority, position, expiries, locked_by, locked_until, completed_at, last_synced_at, row_count)
      select 'matrix ' || n % 100, md5(n::text), 'definition ' || n % 20, '{}', n % 3, n, case when n % 1001 = 0 then 2 else 0 end,
        case when leased then 'worker' end, case when leased then now() + (n % 3 - 1) * interval '1 minute' end,
        case when done then now() end, case when done then now() end, case when done then 1 end
      from (select n, n > ${rows} * 0.6 and n % 200 = 1 as leased, n <= ${rows} * 0.6 as done from generate_series(1, ${rows}) as n) as rows`,
  },
]

/** As if nobody had gathered statistics yet. */
async function forgetStatistics(target: string): Promise<void> {
  await db.query({
    text: `delete from pg_statistic where starelid = '${target}'::regclass;
      update pg_class set reltuples = -1, relpages = 0
      where oid in (select '${target}'::regclass union select indexrelid from pg_index where indrelid = '${target}'::regclass)`,
  })
}

describe.each(OWN_TABLES)('the statements of $table.name', ({ table, fill }) => {
  const target = `leasehold.${table.name}`

  beforeAll(async () => db.query({ text: `alter table ${target} set (autovacuum_enabled = off)` }))

  describe.each([
    { rows: 0, statistics: false },
    { rows: 1_000, statistics: false },
    { rows: 1_000, statistics: true },
    { rows: 100_000, statistics: false },
    { rows: 100_000, statistics: true },
  ])('with $rows rows, statistics: $statistics', ({ rows, statistics }) => {
    beforeAll(async () => {
      await db.query({ text: `truncate ${target} restart identity cascade` })
      if (rows > 0) await db.query({ text: fill(rows) })
      await forgetStatistics(target)
      if (statistics) await db.query({ text: `analyze ${target}` })
    })

    it.each(MODES)('all statements stay on their indexes (%s plan)', async (mode) => {
      for (const statement of await statementsOf(table)) {
        const label = `${statement.purpose} ${mode}`
        const nodes = await plan(statement, mode, sampleValues(table))
        const used = new Set(nodes.flatMap((node) => node['Index Name'] ?? []))
        const expected = indexesOf(table.name, statement.purpose)
        // Without statistics PostgreSQL takes `locked_by is not null` to be true of almost every row. sync_* are analysed
        // within a minute, and a reap that reads 100,000 rows takes 20 ms until then.
        if (!statistics && table.bucket === undefined && /reap|find (?:expired|owned)/.test(label)) continue
        // Sent only after a data error, or once in each run of the reaper; at 1,000 rows a scan costs them as much as an index.
        if (rows <= 1_000 && /^find |^leased buckets/.test(statement.purpose)) continue
        expect(scansOf(nodes, table), label).not.toContain('Seq Scan')
        expect(
          [...used].filter((index) => !expected.includes(index)),
          label,
        ).toEqual([])
        // On a table of a few pages two indexes can cost the same.
        const needed = rows >= 100_000 || statistics ? expected : []
        expect(
          needed.filter((index) => !used.has(index)),
          label,
        ).toEqual([])
        // These read the first entry of each bucket, or all that is leased, and name no bucket.
        if (statement.purpose.endsWith(' buckets')) continue
        for (const node of nodes)
          expect(isNarrow(node, table), `${label}: ${JSON.stringify(node)}`).toBe(true)
      }
    })
  })

  it('all statements keep one generic plan, whatever values they are first called with', async () => {
    // A table of 100,000 rows with statistics, from the last case above.
    // An owner that holds nothing: what is planned is the same, and nothing is settled without arguments.
    const values = { ...sampleValues(table), owner: 'nobody' }
    const one = (value: unknown): unknown => (Array.isArray(value) ? value.slice(0, 1) : value)
    const small = {
      ...Object.fromEntries(Object.entries(values).map(([name, value]) => [name, one(value)])),
      limit: 1,
      tokens: '{1}',
      // Near the end of what there is: a plan for this value would look cheaper than one for any.
      cursor1: new Date(),
      keyCursor: 'key 999',
    }
    for (const [label, given] of [
      ['a batch', values],
      ['one row', small],
    ] as const) {
      const alone = openDatabase({ url, maxConnections: 1 })
      for (const statement of await statementsOf(table)) {
        for (let i = 0; i < 8; i += 1)
          await alone.transaction(async (tx) => {
            await tx.query({ name: statement.name, text: statement.text, values: bound(statement, given) })
            await tx.query({ text: 'rollback and chain' })
          })
      }
      const { rows } = await alone.query<{ name: string; generic: number }>({
        text: "select name, generic_plans::int as generic from pg_prepared_statements where name like 'leasehold_%'",
      })
      await alone.close()
      expect(rows.length, label).toBe((await statementsOf(table)).length)
      expect(
        rows.filter(({ generic }) => generic < 3).map(({ name }) => name),
        label,
      ).toEqual([])
    }
  })
})

it('where all events are of one ordering key, claims find its head by the index of keys', async () => {
  const table = outboxTable()
  await db.query({
    text: `truncate leasehold.outbox;
      insert into leasehold.outbox (event_type, payload, ordering_key) select 'test', '{}', 'order 4711' from generate_series(1, 20000)`,
  })
  await db.query({ text: 'analyze leasehold.outbox' })
  for (const mode of MODES) {
    for (const statement of await statementsOf(table)) {
      if (!statement.purpose.endsWith('by key')) continue
      for (const node of await plan(statement, mode, sampleValues(table)))
        expect(isNarrow(node, table), `${statement.purpose} ${mode}: ${JSON.stringify(node)}`).toBe(true)
    }
  }
  // A relay starts on such a table.
  await expect(openLeaseStore(db, table, { owner: 'worker' })).resolves.toBeDefined()
})

function scansOf(nodes: readonly PlanNode[], table: LeaseTable): string[] {
  return nodes
    .filter((node) => node['Relation Name'] === table.name && node['Node Type'].endsWith('Scan'))
    .map((node) => node['Node Type'])
}

/** No index is read from end to end for the bucket alone, but for the one that has the rows in flight. */
function isNarrow(node: PlanNode, table: LeaseTable): boolean {
  const index = node['Index Name'] ?? ''
  const condition = node['Index Cond'] ?? ''
  if (index.endsWith('_pkey')) return condition.includes('= ANY')
  if (index.endsWith('_keys')) return condition.includes(table.ordering?.key ?? '')
  if (/_(?:pending|suspects|open)$/.test(index))
    return condition.includes(table.groups ?? table.availableAt ?? '')
  return true
}

describe.each(specimens)('on $name', (specimen) => {
  const { table, bucket } = specimen
  const target = quoteQualified(table.schema, table.name)

  it('no statement reads the whole table, with 20,000 rows', async () => {
    const subject = subjectOf(db, specimen)
    await subject.create()
    await subject.insert(20_000)
    await db.query({ text: `analyze ${target}` })
    for (const mode of MODES) {
      for (const statement of await statementsOf(table)) {
        const nodes = await plan(statement, mode, sampleValues(table, bucket))
        // How rows are found is as good as the user's index; how those that were found are reached is up to us.
        if (/^find|owned by/.test(statement.purpose)) continue
        const [root = { 'Node Type': 'no plan' }] = nodes
        const finds = (root.Plans ?? []).filter((child) => child['Subplan Name'] === 'CTE next')
        const found = new Set(finds.flatMap(nodesOf))
        const rest = nodes.filter((node) => !found.has(node))
        expect(scansOf(rest, table), `${statement.purpose} ${mode}`).not.toContain('Seq Scan')
      }
    }
  })
})

it('a plan that was made for a handful of rows does not outlive them by more than one statement', async () => {
  const { table } = events
  const target = quoteQualified(table.schema, table.name)
  await db.query({ text: `drop table if exists ${target}` })
  await subjectOf(db, events).create()
  await db.query({ text: `alter table ${target} set (autovacuum_enabled = off)` })
  await db.query({ text: `insert into ${target} (payload) select '{}' from generate_series(1, 5)` })
  await db.query({ text: `analyze ${target}` })
  const alone = openDatabase({ url, maxConnections: 1, queryTimeoutMs: 60_000 })
  try {
    const store = await openLeaseStore(alone, table, { owner: 'worker' })
    const claim = async (limit: number): Promise<Lease[]> =>
      (await store.claim({ limit, leaseMs: 60_000 })).claimed.map(({ lease }) => lease)
    const scansSoFar = async (): Promise<number> => {
      await alone.query({ text: 'select pg_stat_force_next_flush()' })
      const { rows } = await alone.query<{ scans: number }>({
        text: `select seq_scan::int as scans from pg_stat_user_tables where relid = $1::regclass`,
        values: [target],
      })
      return rows[0]?.scans ?? 0
    }
    for (let round = 0; round < 12; round += 1) await store.release(await claim(5))
    await db.query({
      text: `insert into ${target} (payload, status, available_at) select '{}', 'PUBLISHED', null from generate_series(1, 800000)`,
    })
    await db.query({ text: `insert into ${target} (payload) select '{}' from generate_series(1, 1000)` })
    const small = await scansSoFar()
    // The plan for five rows, on all of them; then, at the latest from the third on, the plan for what there is.
    await claim(10)
    await claim(10)
    const grown = await scansSoFar()
    expect(await claim(100)).toHaveLength(100)
    expect(await scansSoFar(), 'the old plan was still in use').toBe(grown)
    expect(grown, 'the old plan was never in use: this test shows nothing').toBeGreaterThan(small)
  } finally {
    await alone.close()
  }
})
