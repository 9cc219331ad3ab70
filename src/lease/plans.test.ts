import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { events, specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { inspectTable } from './inspect.ts'
import type { Lease } from './lease.ts'
import { openLeaseStore } from './store.ts'
import { allStatements, leaseStatements } from './sql.ts'
import { nodesOf, type PlanNode } from './plans.ts'
import type { LeaseStatement } from './statement.ts'
import type { LeaseTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
afterAll(async () => db.close())

const BATCH = 500

/** The plan PostgreSQL makes for real values (custom) or for any values (generic), as a prepared statement has it. */
async function plan(
  statement: LeaseStatement,
  mode: 'custom' | 'generic',
  values: Readonly<Record<string, unknown>>,
): Promise<PlanNode[]> {
  return db.transaction(async (tx) => {
    const explained =
      mode === 'custom' ? `explain (format json) ${statement.text}` : await preparedForAny(tx, statement)
    const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
      text: explained,
      values: mode === 'custom' ? statement.parameters.map((parameter) => values[parameter] ?? null) : [],
    })
    return nodesOf(rows[0]?.['QUERY PLAN'][0].Plan ?? { 'Node Type': 'no plan' })
  })
}

/** The plan that a connection keeps once it has stopped planning for each call. */
async function preparedForAny(tx: Queryable, statement: LeaseStatement): Promise<string> {
  await tx.query({ text: 'deallocate all' })
  await tx.query({ text: 'set local plan_cache_mode = force_generic_plan' })
  await tx.query({ text: `prepare any_values as ${statement.text}` })
  return `explain (format json) execute any_values (${statement.parameters.map(() => 'null').join(', ')})`
}

function sampleValues(table: LeaseTable, bucket: number | undefined): Record<string, unknown> {
  const key = Array.from({ length: BATCH }, (_, i) => String(i + 1))
  const isUuid = table.name === 'payments' || table.name === 'postcards'
  const uuids = key.map((n) => `00000000-0000-4000-8000-${n.padStart(12, '0')}`)
  return {
    owner: 'worker',
    ownedBy: 'worker',
    leaseMs: 30_000,
    limit: BATCH,
    bucket: bucket ?? 0,
    tokens: `{${key.map(() => 1).join(',')}}`,
    args: '{}',
    '"@k1"': isUuid ? uuids : key,
    '"@k2"': key,
  }
}

/** How the rows of the table itself are reached. */
function scans(nodes: readonly PlanNode[], table: LeaseTable): string[] {
  return nodes
    .filter((node) => node['Relation Name'] === table.name && node['Node Type'].endsWith('Scan'))
    .map((node) => node['Node Type'])
}

describe.each([
  { rows: 1_000, statistics: false },
  { rows: 1_000, statistics: true },
  { rows: 100_000, statistics: false },
  { rows: 100_000, statistics: true },
  { rows: 1_000_000, statistics: false },
  { rows: 1_000_000, statistics: true },
])('with $rows rows, statistics: $statistics', ({ rows, statistics }) => {
  const { table } = events
  const target = quoteQualified(table.schema, table.name)

  beforeAll(async () => {
    await db.query({ text: `drop table if exists ${target}` })
    await subjectOf(db, events).create()
    await db.query({ text: `alter table ${target} set (autovacuum_enabled = off)` })
    await db.query({ text: `insert into ${target} default values` })
    await db.query({ text: `insert into ${target} (payload) select '{}' from generate_series(2, ${rows})` })
    // Some in every state: a partial index must not look better than the key.
    const store = await openLeaseStore(db, table, { owner: 'worker' })
    await store.claim({ limit: Math.min(10_000, rows / 10), leaseMs: 60_000 })
    if (statistics) await db.query({ text: `analyze ${target}` })
  })

  it.each(['custom', 'generic'] as const)(
    'claim, renew, settle, release and reap stay on their indexes (%s plan)',
    async (mode) => {
      const inspection = await inspectTable(db, table)
      if (inspection.found !== 'table') throw new Error('the table is missing')
      const statements = leaseStatements(table, inspection.shape)
      const values = { ...sampleValues(table, undefined), '"@o1"': new Date(0), '"@o2"': '1' }
      for (const statement of allStatements(statements)) {
        const nodes = await plan(statement, mode, values)
        expect(scans(nodes, table), statement.name).not.toContain('Seq Scan')
        const indexes = nodes.flatMap((node) => node['Index Name'] ?? [])
        expect(new Set(indexes), statement.name).toEqual(expectedIndexes(statement.name))
        expect(
          nodes.map((node) => node['Node Type']).filter((type) => /Loop|Join/.test(type)),
          statement.name,
        ).toEqual([])
      }
    },
  )
})

/** The key for the writes, the pending index for the claim, the claimed index for the reaper; nothing else. */
function expectedIndexes(statement: string): Set<string> {
  if (/_(?:claim|exchange)_/.test(statement)) return new Set(['events_pending', 'events_pkey'])
  if (statement.includes('_reap')) return new Set(['events_claimed', 'events_pkey'])
  return new Set(['events_pkey'])
}

describe.each(specimens.filter((specimen) => specimen !== events))('on $name', (specimen) => {
  const { table, bucket } = specimen
  const target = quoteQualified(table.schema, table.name)

  it('no verb joins or reads the whole table, with 20,000 rows', async () => {
    const subject = subjectOf(db, specimen)
    await subject.create()
    await subject.insert(20_000)
    await db.query({ text: `analyze ${target}` })
    const inspection = await inspectTable(db, table)
    if (inspection.found !== 'table') throw new Error('the table is missing')
    const statements = leaseStatements(table, inspection.shape)
    const { start: claim } = statements.claim
    for (const mode of ['custom', 'generic'] as const) {
      for (const statement of [
        statements.renew,
        statements.release,
        statements.reap,
        ...statements.settle.values(),
      ]) {
        const nodes = await plan(statement, mode, sampleValues(table, bucket))
        expect(scans(nodes, table), `${statement.name} ${mode}`).not.toContain('Seq Scan')
        expect(nodes.map((node) => node['Node Type']).filter((type) => /Loop|Join/.test(type))).toEqual([])
      }
      // The claim's own look is as good as the user's index; how it reaches what it found is up to us.
      const [root = { 'Node Type': 'no plan' }] = await plan(claim, mode, sampleValues(table, bucket))
      const writes = {
        ...root,
        Plans: root.Plans?.filter((child) => child['Subplan Name'] !== 'CTE next') ?? [],
      }
      expect(scans(nodesOf(writes), table), `${claim.name} ${mode}`).not.toContain('Seq Scan')
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
