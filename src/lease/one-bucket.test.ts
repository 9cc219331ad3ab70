/**
 * Each statement of a table with buckets concerns one bucket: it can be sent to the server that has it, whole. Citus routes
 * a statement to one shard if it names the bucket wherever it reads the table, has only SELECT and UPDATE, and calls no
 * volatile function. This is checked without Citus: PostgreSQL itself parses and plans each statement.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { chunks } from '../../test/support/lease-tables.ts'
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
import { quoteIdentifier, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { webhookTable } from '../webhooks/table.ts'
import { leaseTable } from './declaration.ts'
import type { LeaseStatement } from './statement.ts'
import type { LeaseTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
afterAll(async () => db.close())

/** A table of a user's, with a bucket whose name has to be quoted. */
const PARCELS = `create table public.parcels (
  "the bucket" int not null, id bigint not null, customer text, depot text not null, payload text not null,
  status text not null, attempts int not null, expiries int not null, last_error text, available_at timestamptz not null,
  lease_owner text, lease_until timestamptz, lease_token bigint not null, primary key ("the bucket", id))`

const parcels = {
  table: 'public.parcels',
  bucket: 'the bucket',
  claimable: "status = 'ready'",
  availableAt: 'available_at',
  leased: "status = 'leased'",
  attempts: { max: 10 },
  bytes: 'octet_length(payload)',
  writes: { claim: { status: "'leased'" }, release: { status: "'ready'" } },
  outcomes: { done: { status: "'sent'" }, retry: { status: "'ready'" }, dead: { status: "'lost'" } },
} as const
const ordering = { key: 'customer', unfinished: "status in ('ready', 'leased')" }

const TABLES: readonly { readonly kind: string; readonly table: LeaseTable }[] = [
  { kind: 'outbox', table: outboxTable() },
  { kind: 'webhook_outbox', table: webhookTable() },
  { kind: 'a table with a composite id', table: chunks.table },
  { kind: 'a table with ordering keys', table: leaseTable({ ...parcels, ordering, onExpiry: 'reap' }) },
  { kind: 'a table with groups', table: leaseTable({ ...parcels, ordering, groups: 'depot' }) },
]

/** The only ones that concern all buckets: they find those in which there is something to do. */
const OF_ALL_BUCKETS = ['waiting buckets', 'leased buckets']

beforeAll(async () => {
  await db.query({ text: chunks.ddl })
  await db.query({ text: PARCELS })
})

describe.each(TABLES)('the statements of $kind', ({ table }) => {
  it('concern one bucket, have only SELECT and UPDATE, and call no volatile function', async () => {
    const statements = await statementsOf(db, table)
    const found: [string, string[]][] = []
    for (const statement of statements) found.push([statement.purpose, await obstacles(statement, table)])
    const obstructed = found.filter(([, own]) => own.length > 0)
    const unnamed = `${table.name} is read without "${quoteIdentifier(table.bucket ?? '')} = $bucket"`
    // The order of `allStatements`.
    expect(obstructed).toEqual(OF_ALL_BUCKETS.map((purpose) => [purpose, [unnamed]]))
    expect(found.length).toBeGreaterThan(10)
  })

  it('have no condition on the bucket that could be left out', async () => {
    for (const statement of await statementsOf(db, table)) {
      if (OF_ALL_BUCKETS.includes(statement.purpose)) continue
      const conditions = [...statement.text.matchAll(bucketCondition(table))]
      expect(conditions.length, statement.purpose).toBeGreaterThan(0)
      for (const { index, 0: condition, 1: parameter } of conditions) {
        const before = statement.text.slice(0, index)
        const after = statement.text.slice(index + condition.length)
        const text = `${before}${parameter} is not null${after}`
        expect(await obstacles({ ...statement, text }, table), text).toEqual([
          expect.stringContaining('is read without'),
        ])
      }
    }
  })
})

it.each([
  [
    'a volatile function',
    (text: string): string => text.replace('now()', 'clock_timestamp()'),
    'clock_timestamp() is volatile',
  ],
  [
    'a volatile operator',
    (text: string): string => text.replace('now()', "(now() - ('a' operator(public.~~~) 'b'))"),
    'volatile_difference(text,text) is volatile',
  ],
  [
    'a DELETE in WITH',
    (text: string): string =>
      text.replace(/^with /m, 'with gone as (delete from leasehold.outbox where bucket = $2::smallint), '),
    'DELETE',
  ],
  [
    'another table',
    (text: string): string => text.replace('now()', '(select max(started_at) from leasehold.workers)'),
    'workers is read as well',
  ],
  [
    'the bucket as an alternative',
    (text: string): string => text.replace(/bucket = \$2::smallint/, '(bucket = $2::smallint or parked)'),
    'outbox is read without "bucket = $bucket"',
  ],
  [
    'another bucket',
    (text: string): string => text.replace('bucket = $', 'bucket = 1 + $'),
    'outbox is read without "bucket = $bucket"',
  ],
])('a statement with %s would be noticed', async (_, changed, obstacle) => {
  await db.query({
    text: `create or replace function public.volatile_difference(text, text) returns interval volatile
        language sql return random() * interval '1 second';
      drop operator if exists public.~~~ (text, text);
      create operator public.~~~ (leftarg = text, rightarg = text, function = public.volatile_difference)`,
  })
  const table = outboxTable()
  const statement = (await statementsOf(db, table)).find(({ purpose }) => purpose === 'reap expired')
  if (statement === undefined) throw new Error('the outbox has no reap')
  // The bucket is the second parameter of this statement, of which there are several.
  expect(statement.parameters.indexOf('bucket')).toBe(1)
  const text = changed(statement.text)
  expect(text).not.toBe(statement.text)
  expect(await obstacles({ ...statement, text }, table)).toContain(obstacle)
})

function bucketCondition(table: LeaseTable): RegExp {
  const column = quoteIdentifier(table.bucket ?? '')
  return new RegExp(`(?:\\b[a-z]\\.)?${column} = (\\$\\d+::\\w+)`, 'g')
}

/** What would keep the statement from being routed to one shard. */
async function obstacles(statement: LeaseStatement, table: LeaseTable): Promise<string[]> {
  const parsed = await db.transaction(async (tx) => parse(tx, statement))
  const nodes = await plan(db, statement, 'generic', {})
  const scans = nodes.filter((node) => node['Relation Name'] !== undefined && isScan(node))
  const column = quoteIdentifier(table.bucket ?? '')
  const named = `${column} = $${statement.parameters.indexOf('bucket') + 1}`
  const isOfOneBucket = (scan: PlanNode): boolean =>
    conditionsOf(scan).some((condition) => condition.replace(/^\w+\./, '') === named)
  return [
    ...parsed.commands.filter((command) => command !== 'SELECT' && command !== 'UPDATE'),
    ...parsed.relations.filter((name) => name !== table.name).map((name) => `${name} is read as well`),
    ...parsed.volatile.map((name) => `${name} is volatile`),
    ...(scans.length > 0 && scans.every(isOfOneBucket)
      ? []
      : [`${table.name} is read without "${column} = $bucket"`]),
  ]
}

const isScan = (node: PlanNode): boolean => node['Node Type'].endsWith('Scan')

/** What is true of every row that a scan of a table returns. */
function conditionsOf(scan: PlanNode): string[] {
  return ['Index Cond', 'Recheck Cond', 'Filter'].flatMap((name) => {
    const condition: unknown = Reflect.get(scan, name)
    return typeof condition === 'string' ? conjuncts(condition) : []
  })
}

/** The parts of `((a = 1) AND (b = 2))`. */
function conjuncts(condition: string): string[] {
  const inner = condition.slice(1, -1)
  const parts: string[] = []
  let [depth, start] = [0, 0]
  for (const { 0: token, index } of inner.matchAll(/'[^']*'|"[^"]*"|[()]| AND /g)) {
    if (token === '(') depth += 1
    else if (token === ')') depth -= 1
    else if (token === ' AND ' && depth === 0) {
      parts.push(inner.slice(start, index))
      start = index + token.length
    }
  }
  if (parts.length === 0) return [inner]
  return [...parts, inner.slice(start)].map((part) => part.replace(/^\((.*)\)$/s, '$1'))
}

interface Parsed {
  /** Of all its parts. */
  readonly commands: readonly string[]
  readonly relations: readonly string[]
  /** Functions, also those of operators and aggregates. */
  readonly volatile: readonly string[]
}

/** As `CmdType` in PostgreSQL's nodes/nodes.h numbers them. */
const COMMANDS = ['UNKNOWN', 'SELECT', 'UPDATE', 'INSERT', 'DELETE', 'MERGE', 'UTILITY']

/**
 * What a statement consists of, from PostgreSQL's own parser: as the body of a function it is stored as a parse tree, which
 * names everything in it by its oid.
 */
async function parse(tx: Queryable, { text }: LeaseStatement): Promise<Parsed> {
  await tx.query({ text: `deallocate all; prepare parsed as ${text}` })
  const prepared = await tx.query<{ types: string[] }>({
    text: "select parameter_types::text[] as types from pg_prepared_statements where name = 'parsed'",
  })
  const types = prepared.rows[0]?.types ?? []
  await tx.query({
    text: `create function pg_temp.parsed(${types.join(', ')}) returns setof record language sql begin atomic ${text}\n; end`,
  })
  const stored = await tx.query<{ tree: string }>({
    text: 'select prosqlbody::text as tree from pg_proc where oid = $1::regproc',
    values: ['pg_temp.parsed'],
  })
  await tx.query({ text: 'drop function pg_temp.parsed' })
  const tree = stored.rows[0]?.tree ?? ''
  const oids = (pattern: RegExp): string[] => [...tree.matchAll(pattern)].map(([, oid]) => oid ?? '')
  const relations = await tx.query<{ name: string }>({
    text: 'select relname as name from pg_class where oid = any ($1::oid[])',
    values: [oids(/ :relid ([1-9]\d*)/g)],
  })
  const volatile = await tx.query<{ name: string }>({
    text: `select oid::regprocedure::text as name from pg_proc
      where provolatile = 'v' and (oid = any ($1::oid[])
        or oid in (select oprcode from pg_operator where oid = any ($2::oid[])))`,
    values: [oids(/ :(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)/g), oids(/ :opno (\d+)/g)],
  })
  const commands = new Set(
    oids(/\{QUERY :commandType (\d+)/g).map((number) => COMMANDS[Number(number)] ?? ''),
  )
  return {
    commands: [...commands],
    relations: relations.rows.map(({ name }) => name),
    volatile: volatile.rows.map(({ name }) => name),
  }
}

const BUCKETS = 64
const BUCKET = 5
const ROWS = 2_000

/** Rows without a key and rows with one are in every bucket. */
const SPREAD = `(n / 2) % ${BUCKETS}`
/** All buckets but the one that is claimed from. */
const OTHERS = `(n / 2) % ${BUCKETS - 1} + case when (n / 2) % ${BUCKETS - 1} >= ${BUCKET} then 1 else 0 end`

describe.each(OWN_TABLES.filter(({ table }) => table.bucket !== undefined))(
  'with 64 buckets, the statements of $table.name',
  ({ table, fill }) => {
    const target = quoteQualified(table.schema, table.name)

    beforeAll(async () => {
      await db.query({ text: `call leasehold.raise_bucket_count(${BUCKETS})` })
      await db.query({ text: `alter table ${target} set (autovacuum_enabled = off)` })
    })

    describe.each([
      { rows: 0, statistics: false },
      { rows: 1_000, statistics: false },
      { rows: 1_000, statistics: true },
      { rows: 100_000, statistics: false },
      { rows: 100_000, statistics: true },
    ])('with $rows rows, statistics: $statistics', ({ rows, statistics }) => {
      beforeAll(async () => {
        await db.query({ text: `truncate ${target} restart identity cascade` })
        if (rows > 0) await db.query({ text: unplaced(fill(rows, SPREAD)) })
        await forgetStatistics(db, target)
        if (statistics) await db.query({ text: `analyze ${target}` })
      })

      it.each(MODES)(
        'read the range of one bucket in each index, and nothing else (%s plan)',
        async (mode) => {
          const byBucket = await indexesByBucket(db, table)
          for (const statement of await statementsOf(db, table)) {
            if (OF_ALL_BUCKETS.includes(statement.purpose)) continue
            // Sent only after a data error; at 1,000 rows a scan costs as much as an index.
            if (rows <= 1_000 && statement.purpose.startsWith('find ')) continue
            const label = `${statement.purpose} ${mode}`
            const nodes = await plan(db, statement, mode, sampleValues(table, BUCKET))
            const scans = nodes.filter((node) => node['Relation Name'] === table.name && isScan(node))
            expect(scans.length, label).toBeGreaterThan(0)
            for (const scan of scans) {
              const shown = `${label}: ${JSON.stringify(scan)}`
              const indexes = nodesOf(scan).filter((node) => node['Index Name'] !== undefined)
              expect(indexes.length, shown).toBeGreaterThan(0)
              for (const index of indexes) {
                expect(byBucket, shown).toContain(index['Index Name'])
                expect(index['Index Cond'], shown).toMatch(
                  mode === 'generic'
                    ? `bucket = $${statement.parameters.indexOf('bucket') + 1})`
                    : `bucket = '${BUCKET}'::smallint)`,
                )
              }
            }
          }
        },
      )
    })

    it('read as many rows as if the other buckets were empty', async () => {
      const claims = (await statementsOf(db, table)).filter(({ purpose }) => /\bclaim\b/.test(purpose))
      expect(claims.length).toBeGreaterThan(1)
      const readsAfter = async (others: string): Promise<Map<string, Reads>> => {
        await db.query({
          text: unplaced(`truncate ${target} cascade; ${others}; alter table ${target} alter column id restart;
            ${fill(ROWS, String(BUCKET))}`),
        })
        await db.query({ text: `vacuum analyze ${target}` })
        return readsOf(claims, table)
      }
      const alone = await readsAfter('')
      const among = await readsAfter(fill(ROWS * (BUCKETS - 1), OTHERS))
      for (const [purpose, reads] of alone) {
        expect(reads.rows, purpose).toBeGreaterThan(0)
        expect(among.get(purpose)?.rows, purpose).toBe(reads.rows)
        // The trees of the indexes are higher, by a page for each descent.
        expect(among.get(purpose)?.pages, purpose).toBeLessThan(3 * reads.pages)
      }
    })
  },
)

/** Writes rows into the buckets that they name, whatever their ordering keys are: as a replica, which takes them as they are. */
function unplaced(sql: string): string {
  return `begin; set local session_replication_role = replica; ${sql}; commit`
}

/** The indexes of which one bucket is one range. */
async function indexesByBucket(queryable: Queryable, table: LeaseTable): Promise<string[]> {
  const { rows } = await queryable.query<{ name: string }>({
    text: `select c.relname as name
      from pg_index as i join pg_class as c on c.oid = i.indexrelid
      join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
      where i.indrelid = $1::regclass and a.attname = $2`,
    values: [quoteQualified(table.schema, table.name), table.bucket],
  })
  return rows.map(({ name }) => name)
}

interface Reads {
  readonly rows: number
  readonly pages: number
}

/** How many rows and pages each claim reads; what it changes is rolled back. */
async function readsOf(claims: readonly LeaseStatement[], table: LeaseTable): Promise<Map<string, Reads>> {
  const reads = new Map<string, Reads>()
  for (const claim of claims)
    reads.set(
      claim.purpose,
      await db.transaction(async (tx) => {
        const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
          text: `explain (analyze, buffers, timing off, format json) ${claim.text}`,
          values: bound(claim, sampleValues(table, BUCKET)),
        })
        await tx.query({ text: 'rollback and chain' })
        const root = rows[0]?.['QUERY PLAN'][0].Plan ?? { 'Node Type': 'no plan' }
        const scans = nodesOf(root).filter((node) => node['Relation Name'] === table.name && isScan(node))
        return {
          rows: Math.round(scans.reduce((sum, scan) => sum + rowsRead(scan), 0)),
          pages: figure(root, 'Shared Hit Blocks') + figure(root, 'Shared Read Blocks'),
        }
      }),
    )
  return reads
}

/** Also those that a condition left out afterwards. */
function rowsRead(scan: PlanNode): number {
  const each = ['Actual Rows', 'Rows Removed by Filter', 'Rows Removed by Index Recheck']
  return each.reduce((sum, name) => sum + figure(scan, name), 0) * figure(scan, 'Actual Loops')
}

function figure(node: PlanNode, name: string): number {
  const value: unknown = Reflect.get(node, name)
  return typeof value === 'number' ? value : 0
}
