import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { inspectTable, schemaMismatch, type TableShape } from './inspect.ts'
import { normalized, refuseSlowPlans } from './plans.ts'
import type { LeaseTable } from './table.ts'

const TEXT = ['text', 'character varying']
const INTEGER = ['smallint', 'integer', 'bigint']
const INSTANT = ['timestamp with time zone']
/** A walk from key to key needs to know the lowest value of the type. */
const ORDERING_KEY = ['text', 'character varying', 'uuid', 'smallint', 'integer', 'bigint']

/** A column a declaration names, what it must be, and what to do when it is missing. */
interface Expected {
  /** The field of the declaration, or that which the column is the default of. */
  readonly field: string
  readonly column: string
  /** `undefined`: any type will do, and the library cannot suggest one. */
  readonly types?: readonly string[]
  /** How to declare a table that has no such column. */
  readonly without?: string
}

/**
 * Checks a declaration against the real table and returns its shape.
 * What does not fit is refused here, at start, with the statement that would mend it, not at the first claim.
 */
export async function checkTable(db: Database, table: LeaseTable): Promise<TableShape> {
  const inspection = await inspectTable(db, table)
  if (inspection.found === 'nothing') {
    throw schemaMismatch(
      table,
      'there is no such table',
      'Create it (run its migrations), or correct `table`.',
    )
  }
  if (inspection.found === 'otherKind') {
    throw schemaMismatch(
      table,
      `it is not a table (relkind ${inspection.kind})`,
      'Lease the table underneath: only a table can lock its rows.',
    )
  }
  const { shape } = inspection
  for (const expected of expectedColumns(table)) checkColumn(table, shape, expected)
  checkId(table, shape)
  checkOneInFlight(table, shape)
  checkNames(table)
  checkRoom(table, shape)
  await refuseSlowPlans(db, table, shape)
  return shape
}

function expectedColumns(table: LeaseTable): Expected[] {
  const { lease } = table
  const { column: counter, expiries, error, max } = table.attempts ?? {}
  const written = [
    ...Object.entries(table.writes).map(([verb, set]) => [`writes.${verb}`, set] as const),
    ...Object.entries(table.outcomes).map(([outcome, { set }]) => [`outcomes.${outcome}`, set] as const),
  ]
  const otherNames = 'name the columns of the lease in `lease`'
  return [
    ...table.id.flatMap((column) => named('id', column)),
    ...named('bucket', table.bucket, INTEGER),
    ...named('lease.owner', lease.owner, TEXT, otherNames),
    ...named('lease.until', lease.until, INSTANT, otherNames),
    ...named('lease.token', lease.token, ['bigint'], 'declare `lease` without `token`'),
    ...named('availableAt', table.availableAt, INSTANT),
    ...named('attempts.column', counter, INTEGER, 'set `attempts.column` to false to count no attempts'),
    ...named('attempts.expiries', expiries, INTEGER, 'set `attempts.expiries` to false to count no expiries'),
    ...named('attempts.error', error, TEXT, 'set `attempts.error` to false to write no error'),
    ...named('attempts.max', typeof max === 'string' ? max : undefined, INTEGER),
    ...named('ordering.key', table.ordering?.key, ORDERING_KEY),
    ...named('groups', table.groups),
    ...table.order.flatMap(({ column }) => named('order', column)),
    ...(table.columns ?? []).flatMap((column) => named('columns', column)),
    ...written.flatMap(([field, set]) => Object.keys(set).flatMap((column) => named(field, column))),
  ]
}

function checkColumn(table: LeaseTable, shape: TableShape, expected: Expected): void {
  const { field, column, types, without } = expected
  const target = quoteQualified(table.schema, table.name)
  const real = shape.columns.get(column)
  if (real === undefined) {
    throw schemaMismatch(
      table,
      `it has no column ${quote(column)}, which \`${field}\` names`,
      types === undefined
        ? `Correct \`${field}\`; the columns are ${[...shape.columns.keys()].map(quote).join(', ')}.`
        : `Run: ALTER TABLE ${target} ADD COLUMN ${quote(column)} ${types === INTEGER ? 'integer' : types[0]};${without === undefined ? '' : ` Or ${without}.`}`,
    )
  }
  if (types !== undefined && !types.includes(real.type)) {
    throw schemaMismatch(
      table,
      `its column ${quote(column)}, which \`${field}\` names, is ${real.type} and must be ${types.join(' or ')}`,
      `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(column)} TYPE ${types[0]};`,
    )
  }
}

/** An id that is null names no row; one that names two would lease both; one without an index would read the whole table on every write. */
function checkId(table: LeaseTable, shape: TableShape): void {
  const identifying = [...(table.bucket === undefined ? [] : [table.bucket]), ...table.id]
  const nullable = identifying.find((column) => shape.columns.get(column)?.notNull === false)
  if (nullable !== undefined) {
    throw schemaMismatch(
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
    throw schemaMismatch(
      table,
      `nothing keeps ${columns} unique, which \`id\` says identifies a row`,
      `Run: ALTER TABLE ${quoteQualified(table.schema, table.name)} ADD PRIMARY KEY (${columns}); or name the key in \`id\`.`,
    )
  }
}

/**
 * That one row of an ordering key is in flight is a constraint: two claims with different snapshots may pick two rows of
 * a key, and only a unique index refuses the second.
 */
function checkOneInFlight(table: LeaseTable, shape: TableShape): void {
  const { ordering, groups, bucket, leased = '' } = table
  if (ordering === undefined) return
  const columns = [bucket, groups, ordering.key].filter((column) => column !== undefined)
  const isUnique = shape.indexes.some(
    (index) =>
      index.unique &&
      index.own &&
      coversLeased(table, index.predicate) &&
      index.columns.includes(ordering.key) &&
      index.columns.every((column) => column !== undefined && columns.includes(column)),
  )
  if (isUnique) return
  const concurrently = shape.partitioned ? '' : 'CONCURRENTLY '
  throw schemaMismatch(
    table,
    'nothing keeps two rows of an ordering key from being in flight at once',
    `Run: CREATE UNIQUE INDEX ${concurrently}${quote(`${table.name}_in_flight`.slice(0, 63))} ON ${quoteQualified(table.schema, table.name)} (${columns.map(quote).join(', ')}) WHERE ${leased};`,
  )
}

/** Every leased row is in the index: it has no predicate, or one that says no more than that a row is leased. */
function coversLeased({ leased = '', lease }: LeaseTable, predicate: string | undefined): boolean {
  return (
    predicate === undefined ||
    [leased, `${lease.owner} is not null`].map(normalized).includes(normalized(predicate))
  )
}

/** A worker id and a token have to fit into the owner, and a moment into the end of the lease. */
const SHORTEST_OWNER = 100
const COARSEST_UNTIL = 3

function checkRoom(table: LeaseTable, shape: TableShape): void {
  const target = quoteQualified(table.schema, table.name)
  const { owner, until } = table.lease
  const length = shape.columns.get(owner)?.modifier ?? SHORTEST_OWNER
  if (length < SHORTEST_OWNER) {
    throw schemaMismatch(
      table,
      `its column ${quote(owner)} holds ${length} characters, which the id of a worker may exceed`,
      `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(owner)} TYPE text;`,
    )
  }
  const precision = shape.columns.get(until)?.modifier ?? COARSEST_UNTIL
  if (precision < COARSEST_UNTIL) {
    throw schemaMismatch(
      table,
      `its column ${quote(until)} keeps ${precision} digits of a second, so that a lease could end before it is over`,
      `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(until)} TYPE timestamp with time zone;`,
    )
  }
}

/** What the statements call their own columns; an id, order or group column of that name would be ambiguous. */
const RESERVED = new Set(
  `held_token held_owner held_until suspect suspects bytes bytes_before claimable key_is_free ready step found room row_due_at
  nth nth_of_all exhausted`.split(/\s+/),
)

function checkNames(table: LeaseTable): void {
  const used = [...table.id, ...table.order.map(({ column }) => column), table.groups, table.ordering?.key]
  const reserved = used.find((column) => column !== undefined && RESERVED.has(column))
  if (reserved !== undefined) {
    throw schemaMismatch(
      table,
      `its column ${quote(reserved)} has a name that the kernel's statements use for themselves`,
      'Rename it, or use another column for `id`, `order`, `groups` and `ordering.key`.',
    )
  }
}

function named(
  field: string,
  column: string | undefined,
  types?: readonly string[],
  without?: string,
): Expected[] {
  if (column === undefined) return []
  return [
    {
      field,
      column,
      ...(types === undefined ? {} : { types }),
      ...(without === undefined ? {} : { without }),
    },
  ]
}
