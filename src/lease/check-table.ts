import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { suggestion } from '../nearest.ts'
import { statementMismatches } from './check-statements.ts'
import { inspectTable, type Mismatch, schemaMismatch, type TableShape } from './inspect.ts'
import { freeIndexName, missingIndexes, normalized } from './missing-indexes.ts'
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

export interface CheckedTable {
  readonly shape: TableShape
  /** What is not wrong, but slow. */
  readonly slow: readonly Mismatch[]
}

/**
 * Checks a declaration against the real table, by the catalog. What would be wrong is refused here, at the start, all of
 * it at once and with the statements that would mend it, not at the first claim. What would only be slow is returned.
 */
export async function checkTable(db: Database, table: LeaseTable): Promise<CheckedTable> {
  const inspection = await inspectTable(db, table)
  if (inspection.found === 'nothing') {
    throw schemaMismatch(table, [
      {
        what: 'there is no such table',
        remedy: 'Create it (run its migrations), or correct `table`.',
      },
    ])
  }
  if (inspection.found === 'otherKind') {
    throw schemaMismatch(table, [
      {
        what: `it is ${inspection.kind}, not a table`,
        remedy: 'Lease the table underneath: only a table can lock its rows.',
      },
    ])
  }
  const { shape } = inspection
  const columns = columnMismatches(table, shape)
  const mismatches = [
    ...columns,
    ...idMismatches(table, shape),
    ...(await inFlightMismatches(db, table, shape)),
    ...nameMismatches(table),
    ...roomMismatches(table, shape),
    // No statement can be parsed over columns that are not there.
    ...(columns.length === 0 ? await statementMismatches(db, table, shape) : []),
  ]
  if (mismatches.length > 0) throw schemaMismatch(table, mismatches)
  return { shape, slow: await missingIndexes(db, table, shape) }
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
    ...named('createdAt', table.createdAt, INSTANT, 'declare the table without `createdAt`'),
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

/** At most one for each column, however many fields name it. */
function columnMismatches(table: LeaseTable, shape: TableShape): Mismatch[] {
  const found = new Map<string, Mismatch>()
  for (const expected of expectedColumns(table)) {
    const mismatch = found.has(expected.column) ? undefined : columnMismatch(table, shape, expected)
    if (mismatch !== undefined) found.set(expected.column, mismatch)
  }
  return [...found.values()]
}

function columnMismatch(table: LeaseTable, shape: TableShape, expected: Expected): Mismatch | undefined {
  const { field, column, types, without } = expected
  const target = `ALTER TABLE ${quoteQualified(table.schema, table.name)}`
  const real = shape.columns.get(column)
  if (real === undefined) {
    const names = [...shape.columns.keys()]
    return {
      what: `it has no column ${quote(column)}, which \`${field}\` names`,
      remedy:
        types === undefined
          ? `Correct \`${field}\`: ${suggestion(column, names.map(quote), 'columns')}`
          : `Run: ${target} ADD COLUMN ${quote(column)} ${added(field, types)};${without === undefined ? '' : ` Or ${without}.`}`,
    }
  }
  if (types === undefined || types.includes(real.type)) return undefined
  return {
    what: `its column ${quote(column)}, which \`${field}\` names, is ${real.type} and must be ${types.join(' or ')}`,
    remedy: `Run: ${target} ${converted(quote(column), real.type, preferred(types))}`,
  }
}

/** The type that a new column gets, and what the rows that are there get in it. */
function added(field: string, types: readonly string[]): string {
  // A row whose due time is null is never claimed, and a row without a bucket is in none.
  if (field === 'availableAt') return `${preferred(types)} NOT NULL DEFAULT now()`
  return field === 'bucket' ? `${preferred(types)} NOT NULL DEFAULT 0` : preferred(types)
}

function preferred(types: readonly string[]): string {
  return types === INTEGER ? 'integer' : (types[0] ?? 'text')
}

/** The types that PostgreSQL can cast to another; text can be cast to all of them, and all of them to text. */
const CASTS: Readonly<Record<string, readonly string[]>> = {
  integer: ['numeric', 'real', 'double precision', 'boolean', 'jsonb'],
  bigint: ['smallint', 'integer', 'numeric', 'real', 'double precision', 'jsonb'],
  'timestamp with time zone': ['timestamp without time zone', 'date'],
}

function converted(column: string, from: string, to: string): string {
  const isCast = to === 'text' || [...TEXT, 'bpchar', ...(CASTS[to] ?? [])].includes(from)
  return isCast
    ? `ALTER COLUMN ${column} TYPE ${to} USING ${column}::${to};`
    : `DROP COLUMN ${column}, ADD COLUMN ${column} ${to}; (No ${from} can be turned into ${to}, so its values are lost.)`
}

/** An id that is null names no row; one that names two would lease both; one without an index would read the whole table on every write. */
function idMismatches(table: LeaseTable, shape: TableShape): Mismatch[] {
  const identifying = [...(table.bucket === undefined ? [] : [table.bucket]), ...table.id]
  // A column that is not there has been reported as such.
  if (identifying.some((column) => !shape.columns.has(column))) return []
  const target = quoteQualified(table.schema, table.name)
  const nullable = identifying.filter((column) => shape.columns.get(column)?.notNull === false)
  const unique = shape.indexes.some(
    (index) =>
      index.unique &&
      index.own &&
      index.predicate === undefined &&
      index.columns.every((column) => column !== undefined && identifying.includes(column)),
  )
  const columns = identifying.map(quote).join(', ')
  return [
    ...nullable.map((column) => ({
      what: `its column ${quote(column)} may be null, so that \`id\` does not identify every row`,
      remedy: `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(column)} SET NOT NULL;`,
    })),
    ...(unique
      ? []
      : [
          {
            what: `nothing keeps ${columns} unique, which \`id\` says identifies a row`,
            remedy: `Run: ALTER TABLE ${target} ADD UNIQUE (${columns}); Or name the key of the table in \`id\`.`,
          },
        ]),
  ]
}

/**
 * That one row of an ordering key is in flight is a constraint: two claims with different snapshots may pick two rows of
 * a key, and only a unique index refuses the second.
 */
async function inFlightMismatches(db: Database, table: LeaseTable, shape: TableShape): Promise<Mismatch[]> {
  const { ordering, groups, bucket, leased = '' } = table
  if (ordering === undefined) return []
  const columns = [bucket, groups, ordering.key].filter((column) => column !== undefined)
  const isUnique = shape.indexes.some(
    (index) =>
      index.unique &&
      index.own &&
      coversLeased(table, index.predicate) &&
      index.columns.includes(ordering.key) &&
      index.columns.every((column) => column !== undefined && columns.includes(column)),
  )
  if (isUnique) return []
  const concurrently = shape.partitioned ? '' : 'CONCURRENTLY '
  const name = quote(await freeIndexName(db, table, 'in_flight'))
  return [
    {
      what: 'nothing keeps two rows of an ordering key from being in flight at once',
      remedy: `Run: CREATE UNIQUE INDEX ${concurrently}${name} ON ${quoteQualified(table.schema, table.name)} (${columns.map(quote).join(', ')}) WHERE ${leased};`,
    },
  ]
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

function roomMismatches(table: LeaseTable, shape: TableShape): Mismatch[] {
  const target = quoteQualified(table.schema, table.name)
  const { owner, until } = table.lease
  // Only of a column of the right type: the modifier of another means something else.
  const modifierOf = (column: string, types: readonly string[], otherwise: number): number => {
    const { type = '', modifier } = shape.columns.get(column) ?? {}
    return types.includes(type) ? (modifier ?? otherwise) : otherwise
  }
  const length = modifierOf(owner, TEXT, SHORTEST_OWNER)
  const precision = modifierOf(until, INSTANT, COARSEST_UNTIL)
  return [
    ...(length >= SHORTEST_OWNER
      ? []
      : [
          {
            what: `its column ${quote(owner)} holds ${length} characters, which the id of a worker may exceed`,
            remedy: `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(owner)} TYPE text;`,
          },
        ]),
    ...(precision >= COARSEST_UNTIL
      ? []
      : [
          {
            what: `its column ${quote(until)} keeps ${precision} digits of a second, so that a lease could end before it is over`,
            remedy: `Run: ALTER TABLE ${target} ALTER COLUMN ${quote(until)} TYPE timestamp with time zone;`,
          },
        ]),
  ]
}

/** What the statements call their own columns; an id, order or group column of that name would be ambiguous. */
const RESERVED = new Set(
  `held_token held_owner held_until bytes total claimable ready step found room row_due_at exhausted key_cursor of_group
  read read_to no_room_from`.split(/\s+/),
)

function nameMismatches(table: LeaseTable): Mismatch[] {
  const used = [...table.id, ...table.order.map(({ column }) => column), table.groups, table.ordering?.key]
  const reserved = new Set(used.filter((column) => column !== undefined && RESERVED.has(column)))
  return [...reserved].map((column = '') => ({
    what: `its column ${quote(column)} has a name that the kernel's statements use for themselves`,
    remedy: 'Rename it, or use another column for `id`, `order`, `groups` and `ordering.key`.',
  }))
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
