/** Writes the migration that adds lease columns and claim indexes to a table of the user's. */
import { LeaseholdError } from '../errors.ts'
import { qualifiedName } from '../lease/declaration.ts'
import { inspectTable, type TableShape } from '../lease/inspect.ts'
import { SUSPECT_EXPIRIES, tableName } from '../lease/table.ts'
import { quoteIdentifier as quote, quoteLiteral, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { nearest } from '../nearest.ts'

export interface AddLeaseOptions {
  /** `'schema.table'`, or `'table'` in `public`. */
  readonly table: string | { readonly schema: string; readonly name: string }
  /** The column with the status. */
  readonly status: string
  /** The prefix of the new columns. Default `reconcile_lease`. */
  readonly prefix?: string
  /** Whether to add a column for the token. Without one the token is carried inside the owner. Default true. */
  readonly token?: boolean
  /** The statuses in which a row is open, for the declaration and the indexes. */
  readonly open?: readonly string[]
}

const DEFAULT_PREFIX = 'reconcile_lease'
/** Open rows are claimed in the order of this column, where the table has it. */
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

const LABELS = `
select e.enumlabel as name
from pg_attribute as a
join pg_enum as e on e.enumtypid = a.atttypid
where a.attrelid = $1::regclass and a.attname = $2 and not a.attisdropped
order by e.enumsortorder`

/**
 * The migration that adds a lease to a table (REC-07), as SQL to run. The table is inspected and not changed: its owner
 * decides when and how to run the migration.
 */
export async function addLease(db: Queryable, options: AddLeaseOptions): Promise<string> {
  const { status, prefix = DEFAULT_PREFIX, token = true, open } = options
  const table = qualifiedName(options.table)
  const lease = {
    owner: `${prefix}_owner`,
    until: `${prefix}_until`,
    token: token ? `${prefix}_token` : undefined,
  }
  const expiries = `${prefix}_expiries`
  const columns = [lease.owner, lease.until, ...(lease.token === undefined ? [] : [lease.token]), expiries]
  const shape = await shapeOf(db, table)
  refuseUnknown(table, shape, status)
  refuseTaken(table, shape, columns)
  const target = quoteQualified(table.schema, table.name)
  const key = await names(db, PRIMARY_KEY, [target])
  if (key.length === 0) {
    throw refused(
      table,
      'it has no primary key, and so a leased row could not be identified',
      `Run: ALTER TABLE ${target} ADD PRIMARY KEY (…);`,
    )
  }
  return leaseMigration({
    table,
    key,
    status,
    statuses: await names(db, LABELS, [target, status]),
    lease,
    expiries,
    createdAt: shape.columns.has(CREATED_AT) ? CREATED_AT : undefined,
    partitioned: shape.partitioned,
    open,
  })
}

interface Named {
  readonly schema: string
  readonly name: string
}

async function shapeOf(db: Queryable, table: Named): Promise<TableShape> {
  const inspection = await inspectTable(db, table)
  if (inspection.found === 'table') return inspection.shape
  if (inspection.found === 'nothing')
    throw refused(table, 'there is no such table', 'Name it with its schema: --table app.payment_requests.')
  throw refused(
    table,
    `it is not a table (relkind ${inspection.kind})`,
    'Name the table underneath: only a table can lock its rows.',
  )
}

function refuseUnknown(table: Named, { columns }: TableShape, status: string): void {
  if (columns.has(status)) return
  const known = [...columns.keys()]
  const meant = nearest(status, known)
  throw refused(
    table,
    `it has no column ${quote(status)} for the status`,
    `Its columns are ${known.map(quote).join(', ')}.${meant === undefined ? '' : ` Did you mean ${meant}?`}`,
  )
}

function refuseTaken(table: Named, { columns }: TableShape, added: readonly string[]): void {
  const long = added.find((name) => Buffer.byteLength(name) > MAX_NAME_BYTES)
  if (long !== undefined) {
    throw refused(
      table,
      `${quote(long)} is longer than the ${MAX_NAME_BYTES} bytes of a name`,
      'Choose a shorter prefix with --columns.',
    )
  }
  const taken = added.filter((name) => columns.has(name))
  if (taken.length === 0) return
  throw refused(
    table,
    `it has ${taken.map(quote).join(', ')} already`,
    'If they are a lease, declare them with leaseTable(); if not, choose another prefix with --columns.',
  )
}

async function names(db: Queryable, text: string, values: readonly unknown[]): Promise<string[]> {
  return (await db.query<{ name: string }>({ text, values })).rows.map(({ name }) => name)
}

function refused(table: Named, what: string, remedy: string): LeaseholdError {
  return new LeaseholdError(
    'LEASE_TABLE_MISMATCH',
    `The table ${tableName(table)} cannot be given a lease: ${what}.`,
    { remedy },
  )
}

interface LeaseMigration {
  readonly table: { readonly schema: string; readonly name: string }
  readonly key: readonly string[]
  readonly status: string
  /** The values of an enum; empty for any other type. */
  readonly statuses: readonly string[]
  readonly lease: { readonly owner: string; readonly until: string; readonly token: string | undefined }
  /** The column that counts expired leases. */
  readonly expiries: string
  /** The column that orders the rows; without one they are ordered by their keys. */
  readonly createdAt: string | undefined
  readonly partitioned: boolean
  readonly open: readonly string[] | undefined
}

/** The SQL to run, with the declaration of the table as a comment at its end. */
function leaseMigration(migration: LeaseMigration): string {
  const { table, lease, expiries } = migration
  const target = quoteQualified(table.schema, table.name)
  const columns = [
    `${quote(lease.owner)} text`,
    `${quote(lease.until)} timestamptz`,
    ...(lease.token === undefined ? [] : [`${quote(lease.token)} bigint`]),
    `${quote(expiries)} int`,
  ]
  return [
    comment(`A lease for the rows of ${tableName(table)}, so that several reconcilers can share them.

The columns may be null and have no default: adding them rewrites nothing, existing rows can be claimed at once,
and programs that write to the table need not know of them.
They hold ${
      lease.token === undefined
        ? 'the id of a worker with its token, a time and a count'
        : 'the id of a worker, a time, a token and a count'
    }.`),
    '',
    comment(`While an ALTER TABLE waits for its lock, all reads and writes of the table wait as well. This one gives up
after 5 s, and can be repeated.`),
    `SET lock_timeout = '5s';`,
    `ALTER TABLE ${target}\n  ${columns.map((column) => `ADD COLUMN IF NOT EXISTS ${column}`).join(',\n  ')};`,
    'RESET lock_timeout;',
    '',
    comment(indexComment(migration)),
    createIndex(migration, indexName(migration), [migration.status, lease.until, ...orderOf(migration)]),
    '',
    ...openIndexes(migration),
    '',
    comment(`What to declare:\n\n${declaration(migration)}`),
    '',
  ].join('\n')
}

/** The order of the claim: `(created_at, id)`, or the key alone. */
function orderOf({ createdAt, key }: LeaseMigration): string[] {
  return [...(createdAt === undefined ? [] : [createdAt]), ...key.filter((column) => column !== createdAt)]
}

function indexName({ table, lease }: LeaseMigration, suffix = ''): string {
  const name = `${table.name}_${lease.owner.replace(/_owner$/, '')}`
  // Truncated by bytes, without part of a character at the end.
  const cut = Buffer.from(name)
    .subarray(0, MAX_NAME_BYTES - suffix.length)
    .toString()
  return cut.replace(/\uFFFD+$/, '') + suffix
}

function createIndex(
  { table, partitioned }: LeaseMigration,
  name: string,
  columns: readonly string[],
  where?: string,
): string {
  const concurrently = partitioned ? '' : 'CONCURRENTLY '
  const condition = where === undefined ? '' : `\n  WHERE ${where}`
  return `CREATE INDEX ${concurrently}IF NOT EXISTS ${quote(name)}\n  ON ${quoteQualified(table.schema, table.name)} (${columns.map(quote).join(', ')})${condition};`
}

/**
 * With the index of REC-07 alone a claim sorts all open rows: with 20,000 of them it took 106 ms for ten rows, and 0.5 ms
 * with an index in the order of the claim (docs/decisions/012-reconcile.md). Suspects have an index for the same reason:
 * there are usually none, and without it every claim would read all open rows to find that out.
 */
function openIndexes(migration: LeaseMigration): string[] {
  const { open } = migration
  const [columns, condition] = [orderOf(migration), isOpen(migration)]
  const suspects = `${condition} AND coalesce(${quote(migration.expiries)}, 0) >= ${SUSPECT_EXPIRIES}`
  const indexes = [
    createIndex(migration, indexName(migration, '_open'), columns, condition),
    createIndex(migration, indexName(migration, '_suspects'), columns, suspects),
  ]
  const what = `The open rows in the order in which they are claimed, so that a claim does not sort them all; and the open rows
whose lease has expired twice or more, of which a process claims one at a time.`
  if (open !== undefined) return [comment(what), ...indexes]
  return [comment(`${what}\nFill in the open statuses:\n${indexes.join('\n')}`)]
}

function isOpen({ status, open = ['…'] }: LeaseMigration): string {
  return `${quote(status)} in (${open.map(quoteLiteral).join(', ')})`
}

function indexComment(migration: LeaseMigration): string {
  if (migration.partitioned)
    return `Finds open rows and expired leases. PostgreSQL builds no index concurrently over partitions:
writes wait until this one is built. If that takes too long, build one on each partition concurrently first, with these
columns: PostgreSQL then attaches them.`
  return `Finds open rows and expired leases. Built while the table is in use, and therefore outside
a transaction: psql does so unless told otherwise (--single-transaction), migration tools have a switch for it.
If it fails, it leaves an invalid index, which has to be dropped before the next attempt:
DROP INDEX CONCURRENTLY ${quote(migration.table.schema)}.${quote(indexName(migration))};`
}

function declaration(migration: LeaseMigration): string {
  const { table, key, lease, expiries, createdAt, open, statuses } = migration
  const hasDot = table.schema.includes('.') || table.name.includes('.')
  const [first = ''] = key
  const roles = Object.entries(lease).flatMap(([role, column]) =>
    column === undefined ? [] : [`${role}: ${text(column)}`],
  )
  const hint =
    open !== undefined
      ? ''
      : ` // the statuses that are still open${statuses.length === 0 ? '' : `, of ${statuses.join(', ')}`}`
  return [
    "  import { leaseTable } from 'leasehold'",
    '',
    '  const table = leaseTable({',
    `    table: ${hasDot ? `{ schema: ${text(table.schema)}, name: ${text(table.name)} }` : text(tableName(table))},`,
    `    id: ${key.length === 1 ? text(first) : list(key)},`,
    `    lease: { ${roles.join(', ')} },`,
    `    claimable: ${text(isOpen(migration))},${hint}`,
    `    order: ${list(orderOf(migration))},${createdAt === undefined ? ' // there is no created_at' : ''}`,
    "    onExpiry: 'claimable',",
    `    attempts: { expiries: ${text(expiries)} },`,
    '  })',
  ].join('\n')
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
