import { quoteIdentifier as quote, quoteLiteral, quoteQualified } from '../postgres/identifiers.ts'
import { tableName } from '../lease/table.ts'

export interface LeaseMigration {
  readonly table: { readonly schema: string; readonly name: string }
  readonly key: readonly string[]
  readonly status: string
  /** The values of an enum; none of any other type. */
  readonly statuses: readonly string[]
  readonly lease: { readonly owner: string; readonly until: string; readonly token: string | undefined }
  /** The column by which rows come in turn; without one they come by their keys. */
  readonly createdAt: string | undefined
  readonly partitioned: boolean
  readonly open: readonly string[] | undefined
}

/** What the owner of the table runs, and what they declare then. */
export function leaseMigration(migration: LeaseMigration): string {
  const { table, lease } = migration
  const target = quoteQualified(table.schema, table.name)
  const columns = [
    `${quote(lease.owner)} text`,
    `${quote(lease.until)} timestamptz`,
    ...(lease.token === undefined ? [] : [`${quote(lease.token)} bigint`]),
  ]
  return [
    comment(`A lease for the rows of ${tableName(table)}, so that several reconcilers can share them.

The columns may be null and have no default: adding them rewrites nothing, rows that are there can be claimed at
once, and whoever writes to the table need not know of them.
They hold ${
      lease.token === undefined
        ? 'the id of a worker with a number, and a moment'
        : 'the id of a worker, a moment and a number'
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
    ...openIndex(migration),
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
 * REC-07's index has the leases that are over side by side, and the claim would still sort all that is open: with 20,000
 * rows open 106 ms for ten of them, and with an index in the order of the claim 0.5 ms (docs/decisions/012-reconcile.md).
 */
function openIndex(migration: LeaseMigration): string[] {
  const index = createIndex(migration, indexName(migration, '_open'), orderOf(migration), isOpen(migration))
  const what = 'The open rows in the order in which they are claimed, so that a claim does not sort them all.'
  if (migration.open !== undefined) return [comment(what), index]
  return [comment(`${what}\nPut in which statuses are open:\n${index}`)]
}

function isOpen({ status, open = ['…'] }: LeaseMigration): string {
  return `${bare(status)} in (${open.map(quoteLiteral).join(', ')})`
}

function indexNote(migration: LeaseMigration): string {
  if (migration.partitioned)
    return `By which open rows, and leases that are over, are found. PostgreSQL builds no index concurrently over partitions:
writes wait until this one is there. Where that takes too long, build one on each partition concurrently first,
with these columns: PostgreSQL then takes them over.`
  return `By which open rows, and leases that are over, are found. Built while the table is in use, and therefore outside
a transaction: psql does so unless told otherwise (--single-transaction), migration tools have a switch for it.
If it fails, it leaves an invalid index behind, which has to go before it is built again:
DROP INDEX CONCURRENTLY ${quote(migration.table.schema)}.${quote(indexName(migration))};`
}

function declaration(migration: LeaseMigration): string {
  const { table, key, lease, createdAt, open, statuses } = migration
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
    '  })',
  ].join('\n')
}

/** A name that means the same without quotes is easier to read without them. */
function bare(name: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : quote(name)
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
