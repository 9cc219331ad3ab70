/** Which way each statement takes to its rows, whatever the size of the table and its statistics. See docs/decisions/002-plans.md. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { indexesOf } from '../../scripts/sql.mjs'
import { useDatabase } from '../../test/support/database.ts'
import { events, specimens, subjectOf } from '../../test/support/lease-tables.ts'
import {
  bound,
  forgetStatistics,
  MODES,
  nodesOf,
  OWN_TABLES,
  plan,
  type PlanNode,
  sampleValues,
  statementsOf,
} from '../../test/support/statement-plans.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { webhookTable } from '../webhooks/table.ts'
import type { Lease } from './lease.ts'
import { openLeaseStore } from './store.ts'
import type { LeaseTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
// Some statements read several tables, and new statistics of any of them change what a plan costs.
beforeAll(async () => {
  const { rows } = await db.query<{ name: string }>({
    text: `select oid::regclass::text as name from pg_class
      where relnamespace = 'leasehold'::regnamespace and relkind = 'r'`,
  })
  for (const { name } of rows) await db.query({ text: `alter table ${name} set (autovacuum_enabled = off)` })
})
afterAll(async () => db.close())

describe.each(OWN_TABLES)('the statements of $table.name', ({ table, fill }) => {
  const target = `leasehold.${table.name}`

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
      await forgetStatistics(db, target)
      if (statistics) await db.query({ text: `analyze ${target}` })
    })

    it.each(MODES)('all statements stay on their indexes (%s plan)', async (mode) => {
      for (const statement of await statementsOf(db, table)) {
        const label = `${statement.purpose} ${mode}`
        const nodes = await plan(db, statement, mode, sampleValues(table))
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
        // Suspects are few: where their index is not in the order in which they are due, all of them are read.
        if (statement.purpose === 'next due' && table.bucket === undefined) continue
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
    }
    for (const [label, given] of [
      ['a batch', values],
      ['one row', small],
    ] as const) {
      const alone = openDatabase({ url, maxConnections: 1 })
      for (const statement of await statementsOf(db, table)) {
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
      expect(rows.length, label).toBe((await statementsOf(db, table)).length)
      expect(
        rows.filter(({ generic }) => generic < 3).map(({ name }) => name),
        label,
      ).toEqual([])
    }
  })
})

it.each([
  {
    table: outboxTable(),
    insert: `insert into leasehold.outbox (event_type, payload, ordering_key)
      select 'test', '{}', 'order 4711' from generate_series(1, 20000)`,
  },
  {
    table: webhookTable(),
    insert: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key)
      select '00000000-0000-7000-8000-000000000000', 'test', '{}', 'order 4711' from generate_series(1, 20000)`,
  },
])(
  'where all rows of $table.name are of one ordering key, claims find its head by the index of keys',
  async ({ table, insert }) => {
    const target = `leasehold.${table.name}`
    await db.query({ text: `truncate ${target} restart identity cascade; ${insert}` })
    await db.query({ text: `analyze ${target}` })
    for (const mode of MODES) {
      for (const statement of await statementsOf(db, table)) {
        if (!/\bkeys\b|^claim rows$|suspects$/.test(statement.purpose)) continue
        for (const node of await plan(db, statement, mode, sampleValues(table)))
          expect(isNarrow(node, table), `${statement.purpose} ${mode}: ${JSON.stringify(node)}`).toBe(true)
      }
    }
    // A worker starts on such a table.
    await expect(openLeaseStore(db, table, { owner: 'worker' })).resolves.toBeDefined()
  },
)

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
      for (const statement of await statementsOf(db, table)) {
        const nodes = await plan(db, statement, mode, sampleValues(table, bucket))
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
