import { quoteIdentifier as quote, quoteLiteral, quoteQualified } from '../postgres/identifiers.ts'
import { SUSPECT_EXPIRIES, tableName } from '../lease/table.ts'

export interface LeaseMigration {
  readonly table: { readonly schema: string; readonly name: string }
  readonly key: readonly string[]
  readonly status: string
  /** The values of an enum; none of any other type. */
  readonly statuses: readonly string[]
  readonly lease: { readonly owner: string; readonly until: string; readonly token: string | undefined }
  /** The column that counts expired leases. */
  readonly expiries: string
  /** The column by which rows come in turn; without one they come by their keys. */
  readonly createdAt: string | undefined
  readonly partitioned: boolean
  readonly open: readonly string[] | undefined
}

/** What the owner of the table runs, and what they declare then. */
export function leaseMigration(migration: LeaseMigration): string {
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

The columns may be null and have no default: adding them rewrites nothing, rows that are there can be claimed at
once, and whoever writes to the table need not know of them.
They hold ${
      lease.token === undefined
        ? 'the id of a worker with a token, a moment and a count'
        : 'the id of a worker, a moment, a token and a count'
    }.`),
    '',
    comment(`Whoever reads or writes the table waits behind an ALTER TABLE that waits: this one gives up soon, and can be
run again.`),
    `SET lock_timeout = '5s';`,
    `ALTER TABLE ${target}\n  ${columns.map((column) => `ADD COLUMN IF NOT EXISTS ${column}`).join(',\n  ')};`,
    'RESET lock_timeout;',
    '',
    comment(indexNote(migration)),
    createIndex(migration, indexName(migration), [migration.status, lease.until, ...orderOf(migration)]),
    '',
    ...openIndexes(migration),
    '',
    comment(`What to declare:\n\n${declaration(migration)}`),
    '',
  ].join('\n')
}

/** What orders the claim: `(created_at, id)`, or the key alone. */
function orderOf({ createdAt, key }: LeaseMigration): string[] {
  return [...(createdAt === undefined ? [] : [createdAt]), ...key.filter((column) => column !== createdAt)]
}

function indexName({ table, lease }: LeaseMigration, suffix = ''): string {
  const name = `${table.name}_${lease.owner.replace(/_owner$/, '')}`
  // By bytes, and without half a letter at the end.
  const cut = Buffer.from(name)
    .subarray(0, 63 - suffix.length)
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
 * With REC-07's index alone, a claim sorts all open rows: with 20,000 of them 106 ms for ten rows, against 0.5 ms with an
 * index in the order of the claim (docs/decisions/012-reconcile.md). The same goes for suspects, of which there are
 * mostly none: without an index of their own every claim would read all open rows to find that out.
 */
function openIndexes(migration: LeaseMigration): string[] {
  const { open } = migration
  const [columns, condition] = [orderOf(migration), isOpen(migration)]
  const suspects = `${condition} AND coalesce(${quote(migration.expiries)}, 0) >= ${SUSPECT_EXPIRIES}`
  const indexes = [
    createIndex(migration, indexName(migration, '_open'), columns, condition),
    createIndex(migration, indexName(migration, '_suspects'), columns, suspects),
  ]
  const what = `The open rows in the order in which they are claimed, so that a claim does not sort them all; and those whose
lease has expired twice or more, of which a process claims one at a time.`
  if (open !== undefined) return [comment(what), ...indexes]
  return [comment(`${what}\nPut in which statuses are open:\n${indexes.join('\n')}`)]
}

function isOpen({ status, open = ['…'] }: LeaseMigration): string {
  return `${quote(status)} in (${open.map(quoteLiteral).join(', ')})`
}

function indexNote(migration: LeaseMigration): string {
  if (migration.partitioned)
    return `By which open rows and expired leases are found. PostgreSQL builds no index concurrently over partitions:
writes wait until this one is there. Where that takes too long, build one on each partition concurrently first,
with these columns: PostgreSQL then takes them over.`
  return `By which open rows and expired leases are found. Built while the table is in use, and therefore outside
a transaction: psql does so unless told otherwise (--single-transaction), migration tools have a switch for it.
If it fails, it leaves an invalid index behind, which has to go before it is built again:
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

/** A string as TypeScript has it, in whichever quotes need no escapes. */
function text(value: string): string {
  const json = JSON.stringify(value)
  return value.includes("'") || json.includes('\\') ? json : `'${value}'`
}

/** Whatever a name contains, it does not get out of the comment. */
function comment(lines: string): string {
  return lines
    .split(/\r\n|[\n\r]/)
    .map((line) => (line === '' ? '--' : `-- ${line}`))
    .join('\n')
}
