/**
 * `leasehold lease add`: lease columns and the indexes of the kernel for a table of the user's. Each statement can be
 * repeated: what is there already stays as it is.
 */
import { randomBytes } from 'node:crypto'
import { LeaseholdError, messageOf } from '../errors.ts'
import { nearest } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { leaseTable, qualifiedName } from './declaration.ts'
import { inspectTable, type TableShape } from './inspect.ts'
import { openLeaseStore } from './store.ts'
import { type LeaseTable, type Sql, SUSPECT_EXPIRIES, tableName } from './table.ts'

export interface AddLeaseOptions {
  /** `'schema.table'`, or `'table'` in `public`. */
  readonly table: string | { readonly schema: string; readonly name: string }
  /** Which rows may be claimed, as SQL: `status = 'pending'`. */
  readonly claimable: Sql
  /** The prefix of the new columns. Default `lease`. */
  readonly prefix?: string
  /** Whether to add a column for the token. Without one the token is carried inside the owner. Default true. */
  readonly token?: boolean
  /** A column with a status: adds an index that begins with it, then the end of the lease, and the order (REC-07). */
  readonly status?: string
}

/** What is to be done to the table, and how it is declared afterwards. */
export interface LeaseAddition {
  /** The whole of it as a script with comments, which ends with the declaration. */
  readonly migration: string
  /** TypeScript to paste. */
  readonly declaration: string
  readonly alterTable: string
  readonly indexes: readonly Index[]
  readonly table: LeaseTable
}

interface Index {
  readonly name: string
  readonly sql: string
}

const DEFAULT_PREFIX = 'lease'
/** Rows are claimed in the order of this column, where the table has it. */
const CREATED_AT = 'created_at'
/** PostgreSQL truncates longer names, so that two of them could become one. */
const MAX_NAME_BYTES = 63

const PRIMARY_KEY = `
select a.attname as name
from pg_index as i
cross join unnest(i.indkey::int2[]) with ordinality as k (attnum, n)
join pg_attribute as a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = $1::regclass and i.indisprimary and k.n <= i.indnkeyatts
order by k.n`

/** Inspects the table and says what is to be done. The table is not changed. */
export async function planLease(db: Database, options: AddLeaseOptions): Promise<LeaseAddition> {
  const { claimable, prefix = DEFAULT_PREFIX, token = true, status } = options
  const named = qualifiedName(options.table)
  const shape = await shapeOf(db, named)
  const columns = leaseColumns(prefix, token)
  refuseTooLong(named, columns)
  refuseOtherTypes(named, shape, columns)
  if (status !== undefined) refuseUnknownColumn(named, shape, status)
  const target = quoteQualified(named.schema, named.name)
  const { rows } = await db.query<{ name: string }>({ text: PRIMARY_KEY, values: [target] })
  const key = rows.map(({ name }) => name)
  if (key.length === 0) {
    throw refused(
      named,
      'it has no primary key, and so a leased row could not be identified',
      `Run: ALTER TABLE ${target} ADD PRIMARY KEY (…);`,
    )
  }
  await refuseClaimable(db, named, claimable)
  const hasCreatedAt = shape.columns.has(CREATED_AT)
  return additionOf({
    named,
    key,
    columns,
    prefix,
    claimable: claimable.trim(),
    status,
    order: [...(hasCreatedAt ? [CREATED_AT] : []), ...key.filter((column) => column !== CREATED_AT)],
    isPartitioned: shape.partitioned,
  })
}

/** How long the ALTER TABLE waits for its lock. While it waits, all reads and writes of the table wait as well. */
const LOCK_TIMEOUT = '5s'

/**
 * Adds what is missing, and returns the names of what was added. Afterwards the table is checked as a worker would check
 * it at its start. Indexes are built concurrently, so this cannot be undone as a whole; it can be repeated.
 */
export async function addLease(db: Database, addition: LeaseAddition): Promise<readonly string[]> {
  const { table, alterTable, indexes } = addition
  const target = quoteQualified(table.schema, table.name)
  const before = await namesIn(db, target)
  await db.transaction(async (tx) => {
    await tx.query({ text: `set local lock_timeout = '${LOCK_TIMEOUT}'` })
    await tx.query({ text: alterTable })
  })
  for (const { name, sql } of indexes) {
    // A concurrent build that failed leaves an index that is never used, and that IF NOT EXISTS would find.
    if (before.invalid.includes(name))
      await db.query({ text: `drop index concurrently ${quoteQualified(table.schema, name)}` })
    await db.query({ text: sql })
  }
  await openLeaseStore(db, table, { owner: 'leasehold lease add' })
  const after = await namesIn(db, target)
  return after.valid.filter((name) => !before.valid.includes(name))
}

/** The columns and indexes that the table has. */
async function namesIn(
  db: Queryable,
  target: string,
): Promise<{ readonly valid: readonly string[]; readonly invalid: readonly string[] }> {
  const { rows } = await db.query<{ name: string; valid: boolean }>({
    text: `select attname as name, true as valid from pg_attribute
where attrelid = $1::regclass and attnum > 0 and not attisdropped
union all
select c.relname, i.indisvalid from pg_index as i join pg_class as c on c.oid = i.indexrelid
where i.indrelid = $1::regclass`,
    values: [target],
  })
  const names = (valid: boolean): string[] =>
    rows.filter((row) => row.valid === valid).map(({ name }) => name)
  return { valid: names(true), invalid: names(false) }
}

interface Named {
  readonly schema: string
  readonly name: string
}

type Role = 'owner' | 'until' | 'token' | 'expiries'

interface LeaseColumn {
  readonly role: Role
  readonly name: string
  readonly type: string
  /** As the catalog names the types that will do. */
  readonly types: readonly string[]
}

function leaseColumns(prefix: string, token: boolean): readonly LeaseColumn[] {
  const column = (role: Role, type: string, types: readonly string[]): LeaseColumn => ({
    role,
    name: `${prefix}_${role}`,
    type,
    types,
  })
  return [
    column('owner', 'text', ['text', 'character varying']),
    column('until', 'timestamptz', ['timestamp with time zone']),
    ...(token ? [column('token', 'bigint', ['bigint'])] : []),
    column('expiries', 'int', ['smallint', 'integer', 'bigint']),
  ]
}

async function shapeOf(db: Queryable, table: Named): Promise<TableShape> {
  const inspection = await inspectTable(db, table)
  if (inspection.found === 'table') return inspection.shape
  if (inspection.found === 'nothing')
    throw refused(table, 'there is no such table', 'Name it with its schema: --table app.payment_requests.')
  throw refused(
    table,
    `it is ${inspection.kind}, not a table`,
    'Name the table underneath: only a table can lock its rows.',
  )
}

function refuseTooLong(table: Named, columns: readonly LeaseColumn[]): void {
  const long = columns.find(({ name }) => Buffer.byteLength(name) > MAX_NAME_BYTES)
  if (long === undefined) return
  throw refused(
    table,
    `${quote(long.name)} is longer than the ${MAX_NAME_BYTES} bytes of a name`,
    'Choose a shorter prefix with --columns.',
  )
}

/** Columns of the right type are taken for a lease that was added before. */
function refuseOtherTypes(table: Named, shape: TableShape, columns: readonly LeaseColumn[]): void {
  const other = columns.flatMap(({ name, types }) => {
    const type = shape.columns.get(name)?.type
    return type === undefined || types.includes(type) ? [] : [`${quote(name)} of type ${type}`]
  })
  if (other.length === 0) return
  throw refused(table, `it has ${other.join(', ')} already`, 'Choose another prefix with --columns.')
}

function refuseUnknownColumn(table: Named, { columns }: TableShape, status: string): void {
  if (columns.has(status)) return
  const known = [...columns.keys()]
  const meant = nearest(status, known)
  throw refused(
    table,
    `it has no column ${quote(status)}`,
    `Its columns are ${known.map(quote).join(', ')}.${meant === undefined ? '' : ` Did you mean ${meant}?`}`,
  )
}

/**
 * Tries the condition on an empty table of the same columns, where nobody waits for it: a temporary one, or, for a role
 * that may not create those, one in the schema of the table, in which its indexes will be.
 */
async function refuseClaimable(db: Database, table: Named, claimable: Sql): Promise<void> {
  const target = quoteQualified(table.schema, table.name)
  try {
    // With a parameter, PostgreSQL accepts one statement only.
    const text = `select from ${target} where (${claimable}\n) and $1::boolean`
    await db.query({ text, values: [false] })
    await db.transaction(async (tx) => {
      const { rows } = await tx.query<{ temporary: boolean }>({
        text: `select has_database_privilege(current_database(), 'temporary') as temporary`,
      })
      const name = `leasehold_claimable_${randomBytes(6).toString('hex')}`
      const copy = rows[0]?.temporary === true ? `pg_temp.${name}` : quoteQualified(table.schema, name)
      await tx.query({ text: `create table ${copy} (like ${target})` })
      await tx.query({ text: `create index on ${copy} ((1)) where (${claimable}\n)` })
      await tx.query({ text: `drop table ${copy}` })
    })
  } catch (error) {
    throw refused(
      table,
      `its rows cannot be chosen by ${JSON.stringify(claimable)}: ${messageOf(error)}`,
      `Give a condition on its columns that does not depend on time or on other tables: --claimable "status = 'pending'".`,
    )
  }
}

function refused(table: Named, what: string, remedy: string): LeaseholdError {
  return new LeaseholdError(
    'LEASE_TABLE_MISMATCH',
    `The table ${tableName(table)} cannot be given a lease: ${what}.`,
    { remedy },
  )
}

interface Design {
  readonly named: Named
  readonly key: readonly string[]
  readonly columns: readonly LeaseColumn[]
  readonly prefix: string
  readonly claimable: Sql
  readonly status: string | undefined
  readonly order: readonly string[]
  readonly isPartitioned: boolean
}

function additionOf(design: Design): LeaseAddition {
  const { named, columns } = design
  const added = columns.map(({ name, type }) => `ADD COLUMN IF NOT EXISTS ${quote(name)} ${type}`)
  const alterTable = `ALTER TABLE ${quoteQualified(named.schema, named.name)}\n  ${added.join(',\n  ')};`
  const indexes = indexesOf(design)
  const declaration = declarationOf(design)
  return {
    alterTable,
    indexes: indexes.map(({ name, sql }) => ({ name, sql })),
    declaration,
    migration: migrationOf(design, alterTable, indexes, declaration),
    table: declared(design),
  }
}

function column({ columns }: Design, role: Role): string | undefined {
  return columns.find((each) => each.role === role)?.name
}

/**
 * Without an index in the order of the claim, a claim sorts all claimable rows: with 20,000 of them it took 106 ms for ten
 * rows, and 0.5 ms with it (docs/decisions/012-reconcile.md). Suspects have an index for the same reason: there are usually
 * none, and without it every claim would read all claimable rows to find that out.
 */
function indexesOf(design: Design): (Index & { readonly purpose: string })[] {
  const { claimable, key, order, status } = design
  const [owner = '', until = '', expiries = ''] = (['owner', 'until', 'expiries'] as const).map((role) =>
    column(design, role),
  )
  const index = (
    purpose: string,
    suffix: string,
    columns: readonly string[],
    where?: Sql,
  ): Index & { readonly purpose: string } => {
    const name = indexName(design, suffix)
    return { purpose, name, sql: createIndex(design, name, columns, where) }
  }
  return [
    index('The claimable rows in the order in which they are claimed.', '_claim', order, claimable),
    index(
      'Those whose lease has expired twice or more, of which a process claims one at a time.',
      '_suspects',
      order,
      `(${claimable}) AND coalesce(${quote(expiries)}, 0) >= ${SUSPECT_EXPIRIES}`,
    ),
    index('The leased rows, for the reaper.', '_leased', key, `${quote(owner)} IS NOT NULL`),
    ...(status === undefined
      ? []
      : [index('Rows by their status and the end of their lease.', '', [status, until, ...order])]),
  ]
}

function indexName({ named, prefix }: Design, suffix: string): string {
  // Truncated by bytes, without part of a character at the end.
  const cut = Buffer.from(`${named.name}_${prefix}`)
    .subarray(0, MAX_NAME_BYTES - suffix.length)
    .toString()
  return cut.replace(/\uFFFD+$/, '') + suffix
}

function createIndex(
  { named, isPartitioned }: Design,
  name: string,
  columns: readonly string[],
  where?: Sql,
): string {
  const concurrently = isPartitioned ? '' : 'CONCURRENTLY '
  const condition = where === undefined ? '' : `\n  WHERE ${where}`
  return `CREATE INDEX ${concurrently}IF NOT EXISTS ${quote(name)}\n  ON ${quoteQualified(named.schema, named.name)} (${columns.map(quote).join(', ')})${condition};`
}

function migrationOf(
  design: Design,
  alterTable: string,
  indexes: readonly (Index & { readonly purpose: string })[],
  declaration: string,
): string {
  const { named, isPartitioned } = design
  return [
    comment(`A lease for the rows of ${tableName(named)}, so that several workers can share them.

The columns may be null and have no default: adding them rewrites nothing, existing rows can be claimed at once,
and programs that write to the table need not know of them.
They hold ${
      column(design, 'token') === undefined
        ? 'the id of a worker with its token, a time and a count'
        : 'the id of a worker, a time, a token and a count'
    }. Every statement can be repeated.`),
    '',
    comment(`While an ALTER TABLE waits for its lock, all reads and writes of the table wait as well. This one gives up
after 5 s.`),
    `SET lock_timeout = '${LOCK_TIMEOUT}';`,
    alterTable,
    'RESET lock_timeout;',
    '',
    comment(
      isPartitioned
        ? `PostgreSQL builds no index concurrently over partitions: writes wait until each of these is built. If that
takes too long, build one on each partition concurrently first, with these columns: PostgreSQL then attaches them.`
        : `The indexes are built while the table is in use, and therefore outside a transaction: psql does so unless told
otherwise (--single-transaction), migration tools have a switch for it. One that fails leaves an invalid index, which has
to be dropped before the next attempt (DROP INDEX CONCURRENTLY).`,
    ),
    ...indexes.flatMap(({ purpose, sql }) => ['', comment(purpose), sql]),
    '',
    comment(
      `What to declare. ${WHAT_IS_MISSING}

${declaration.replaceAll(/^(?=.)/gm, '  ')}`,
    ),
    '',
  ].join('\n')
}

/** What the declaration of a lease that was added does not have. */
export const WHAT_IS_MISSING = `A reconciler takes it as it is. A worker of your own also needs outcomes: how a row is written
when it is done or dead, so that it is no longer claimable. No failed attempts are counted or limited until the table
has columns for them (\`attempts\`).`

function declarationOf({ named, key, columns, claimable, order }: Design): string {
  const hasDot = named.schema.includes('.') || named.name.includes('.')
  const [first = ''] = key
  const roles = columns.flatMap(({ role, name }) => (role === 'expiries' ? [] : [`${role}: ${text(name)}`]))
  const expiries = columns.find(({ role }) => role === 'expiries')?.name ?? ''
  return [
    "import { leaseTable } from 'leasehold'",
    '',
    'const table = leaseTable({',
    `  table: ${hasDot ? `{ schema: ${text(named.schema)}, name: ${text(named.name)} }` : text(tableName(named))},`,
    `  id: ${key.length === 1 ? text(first) : list(key)},`,
    `  lease: { ${roles.join(', ')} },`,
    `  claimable: ${text(claimable)},`,
    `  order: ${list(order)},`,
    `  attempts: { column: false, expiries: ${text(expiries)}, error: false },`,
    '})',
  ].join('\n')
}

/** The same as an object, to check the table with. */
function declared(design: Design): LeaseTable {
  const [owner = '', until = '', token, expiries = ''] = (
    ['owner', 'until', 'token', 'expiries'] as const
  ).map((role) => column(design, role))
  return leaseTable({
    table: design.named,
    id: design.key,
    lease: { owner, until, ...(token === undefined ? {} : { token }) },
    claimable: design.claimable,
    order: design.order,
    attempts: { column: false, expiries, error: false },
  })
}

function list(columns: readonly string[]): string {
  return `[${columns.map(text).join(', ')}]`
}

/** A string literal of TypeScript, in the quotes that need no escapes. */
function text(value: string): string {
  const json = JSON.stringify(value)
  return value.includes("'") || json.includes('\\') ? json : `'${value}'`
}

/** Every line is commented out, so that a line break in a name cannot end the comment. */
function comment(lines: string): string {
  return lines
    .split(/\r\n|[\n\r]/)
    .map((line) => (line === '' ? '--' : `-- ${line}`))
    .join('\n')
}
