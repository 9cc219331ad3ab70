import { LeaseholdError } from '../errors.ts'
import { qualifiedName } from '../lease/declaration.ts'
import { inspectTable, type TableShape } from '../lease/inspect.ts'
import { tableName } from '../lease/table.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { nearest } from '../nearest.ts'
import { leaseMigration } from './lease-migration.ts'

export interface AddLeaseOptions {
  /** `'schema.table'`, or `'table'` in `public`. */
  readonly table: string | { readonly schema: string; readonly name: string }
  /** The column that has the status. */
  readonly status: string
  /** What the names of the new columns begin with. Default `reconcile_lease`. */
  readonly prefix?: string
  /** Without one the token travels inside the owner. Default true. */
  readonly token?: boolean
  /** The statuses in which a row is still looked at, for the declaration. */
  readonly open?: readonly string[]
}

export const DEFAULT_PREFIX = 'reconcile_lease'
/** By which open rows are taken in turn, where the table has it. */
const CREATED_AT = 'created_at'
/** PostgreSQL cuts off what is longer, and two names could become one. */
const LONGEST_NAME = 63

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
 * The migration that gives a table a lease (REC-07), as SQL to run. The table is looked at, and not touched: when and
 * how its columns are added is the business of its owner.
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
      'it has no primary key, by which a row that is leased would be found again',
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
  const long = added.find((name) => Buffer.byteLength(name) > LONGEST_NAME)
  if (long !== undefined) {
    throw refused(
      table,
      `${quote(long)} is longer than the ${LONGEST_NAME} bytes of a name`,
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
    'LEASE_TABLE_MISFIT',
    `The table ${tableName(table)} cannot be given a lease: ${what}.`,
    { remedy },
  )
}
