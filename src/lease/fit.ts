import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { checkTablesBeside } from './beside.ts'
import { inspectTable, type TableShape } from './inspect.ts'
import { misfit } from './misfit.ts'
import { refuseSlowPlans } from './plans.ts'
import type { LeaseTable } from './table.ts'

const TEXT = ['text', 'character varying']
const INTEGER = ['smallint', 'integer', 'bigint']
const INSTANT = ['timestamp with time zone']
const BOOLEAN = ['boolean']

/** A column a declaration names, what it must be, and what to create when it is missing. */
interface Expected {
  readonly role: string
  readonly column: string
  /** `undefined`: any type will do, and the library cannot suggest one. */
  readonly types?: readonly string[]
}

/**
 * Checks a declaration against the real table and returns its shape.
 * What does not fit is refused here, at start, with the statement that would mend it, not at the first claim.
 */
export async function fitTable(db: Database, table: LeaseTable): Promise<TableShape> {
  const inspection = await inspectTable(db, table)
  if (inspection.found === 'nothing') {
    throw misfit(table, 'there is no such table', 'Create it (run its migrations), or correct `table`.')
  }
  if (inspection.found === 'otherKind') {
    throw misfit(
      table,
      `it is not a table (relkind ${inspection.kind})`,
      'Lease the table underneath: only a table can lock its rows.',
    )
  }
  const { shape } = inspection
  for (const expected of expectedColumns(table)) checkColumn(table, shape, expected)
  checkKey(table, shape)
  checkNames(table, shape)
  checkRoom(table, shape)
  await checkTablesBeside(db, table, shape)
  await refuseSlowPlans(db, table, shape)
  return shape
}

function expectedColumns(table: LeaseTable): Expected[] {
  const { lease } = table
  const written = [
    ...Object.entries(table.writes).map(([verb, set]) => [`writes.${verb}`, set] as const),
    ...Object.entries(table.outcomes).map(([outcome, { set }]) => [`outcomes.${outcome}`, set] as const),
  ]
  return [
    ...table.key.flatMap((column) => named('id', column)),
    ...named('bucket', table.bucket, INTEGER),
    ...named('lease.owner', lease.owner, TEXT),
    ...named('lease.until', lease.until, INSTANT),
    ...named('lease.token', lease.token, ['bigint']),
    ...named('availableAt', table.availableAt, INSTANT),
    ...named('attempts', table.attempts, INTEGER),
    ...named('ordering.key', table.ordering?.key),
    ...named('ordering.behind', table.ordering?.behind, BOOLEAN),
    ...named('lanes', table.lanes),
    ...named('notes.column', table.notes?.column, ['bigint']),
    ...table.order.flatMap(({ column }) => named('order', column)),
    ...(table.columns ?? []).flatMap((column) => named('columns', column)),
    ...written.flatMap(([role, set]) => Object.keys(set).flatMap((column) => named(role, column))),
  ]
}

function checkColumn(table: LeaseTable, shape: TableShape, { role, column, types }: Expected): void {
  const target = quoteQualified(table.schema, table.name)
  const real = shape.columns.get(column)
  if (real === undefined) {
    throw misfit(
      table,
      `it has no column ${quote(column)}, which \`${role}\` names`,
      types === undefined
        ? `Correct \`${role}\`; the columns are ${[...shape.columns.keys()].map(quote).join(', ')}.`
        : `Run: ALTER TABLE ${target} ADD COLUMN ${quote(column)} ${types[0]};`,
    )
  }
  if (types !== undefined && !types.includes(real.type)) {
    throw misfit(
      table,
      `its column ${quote(column)}, which \`${role}\` names, is ${real.type} and must be ${types.join(' or ')}`,
      `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(column)} TYPE ${types[0]};`,
    )
  }
}

/** An id that is null names no row; one that names two would lease both; one without an index would read the whole table on every write. */
function checkKey(table: LeaseTable, shape: TableShape): void {
  const identifying = [...(table.bucket === undefined ? [] : [table.bucket]), ...table.key]
  const nullable = identifying.find((column) => shape.columns.get(column)?.notNull === false)
  if (nullable !== undefined) {
    throw misfit(
      table,
      `its column ${quote(nullable)} may be null, so that \`id\` does not identify every row`,
      `Run: ALTER TABLE ${quoteQualified(table.schema, table.name)} ALTER COLUMN ${quote(nullable)} SET NOT NULL;`,
    )
  }
  const unique = shape.indexes.some(
    (index) =>
      index.unique &&
      index.own &&
      index.predicate === undefined &&
      index.columns.every((column) => column !== undefined && identifying.includes(column)),
  )
  if (!unique) {
    const columns = identifying.map(quote).join(', ')
    throw misfit(
      table,
      `nothing keeps ${columns} unique, which \`id\` says identifies a row`,
      `Run: ALTER TABLE ${quoteQualified(table.schema, table.name)} ADD PRIMARY KEY (${columns}); or name the key in \`id\`.`,
    )
  }
}

/** A worker id and a token have to fit into the owner, and a moment into the end of the lease. */
const SHORTEST_OWNER = 100
const COARSEST_UNTIL = 3

function checkRoom(table: LeaseTable, shape: TableShape): void {
  const target = quoteQualified(table.schema, table.name)
  const { owner, until } = table.lease
  const length = shape.columns.get(owner)?.modifier ?? SHORTEST_OWNER
  if (length < SHORTEST_OWNER) {
    throw misfit(
      table,
      `its column ${quote(owner)} holds ${length} characters, which the id of a worker may exceed`,
      `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(owner)} TYPE text;`,
    )
  }
  const precision = shape.columns.get(until)?.modifier ?? COARSEST_UNTIL
  if (precision < COARSEST_UNTIL) {
    throw misfit(
      table,
      `its column ${quote(until)} keeps ${precision} digits of a second, so that a lease could end before it is over`,
      `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(until)} TYPE timestamp with time zone;`,
    )
  }
}

/** What a claim returns beside the row's own columns. */
const RESERVED = new Set(['@facts', '@id', '@token'])

function checkNames(table: LeaseTable, shape: TableShape): void {
  const reserved = (table.columns ?? [...shape.columns.keys()]).find((column) => RESERVED.has(column))
  if (reserved !== undefined) {
    throw misfit(
      table,
      `its column ${quote(reserved)} has a name that the kernel uses for its own results`,
      'Rename it, or leave it out of `columns`.',
    )
  }
}

function named(role: string, column: string | undefined, types?: readonly string[]): Expected[] {
  return column === undefined ? [] : [{ role, column, ...(types === undefined ? {} : { types }) }]
}
