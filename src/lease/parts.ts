/** The pieces from which `sql.ts` puts its statements together: quoted names, casts, guards. */
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { keepsBigints } from '../postgres/whole-numbers.ts'
import type { TableShape } from './inspect.ts'
import type { Parameters } from './statement.ts'
import { type Assignments, canRest, type LeaseTable } from './table.ts'

/** Between the owner and the token, in a table that has no token column. */
export const TOKEN_MARK = '#'

export interface KeyColumn {
  readonly column: string
  readonly alias: string
  readonly type: string
}

export interface Parts {
  readonly table: LeaseTable
  readonly target: string
  readonly key: readonly KeyColumn[]
  readonly order: readonly (KeyColumn & { readonly direction: string })[]
  readonly owner: string
  readonly until: string
  readonly token: string | undefined
  readonly tokenAfterClaim: string
  readonly columns: readonly string[]
  /** The id of a row is one of these columns, as it is: it need not be returned twice. */
  readonly idIsColumn: boolean
  readonly bucketType: string | undefined
  /** Where claims are noted: the table, and the column of the row that names its note. */
  readonly notes: { readonly target: string; readonly column: string } | undefined
  /** Where bundles of claimable rows are. */
  readonly bundles: string | undefined
  /** The type of the ordering key. */
  readonly lineType: string | undefined
  readonly laneType: string | undefined
}

/** Strictly later with every claim of a row, as long as the database's clock is not set back. */
export const CLOCK_TOKEN = '(extract(epoch from clock_timestamp()) * 1000000)::bigint::text'

export function partsOf(table: LeaseTable, shape: TableShape): Parts {
  const type = (column: string): string => shape.columns.get(column)?.type ?? 'text'
  const owner = quote(table.lease.owner)
  const token = table.lease.token === undefined ? undefined : quote(table.lease.token)
  return {
    table,
    target: quoteQualified(table.schema, table.name),
    key: table.key.map((name, i) => ({ column: quote(name), alias: `"@k${i + 1}"`, type: type(name) })),
    order: table.order.map(({ column, direction }, i) => ({
      column: quote(column),
      alias: `"@o${i + 1}"`,
      type: type(column),
      direction,
    })),
    owner,
    until: quote(table.lease.until),
    token,
    tokenAfterClaim:
      token === undefined ? `substring(t.${owner} from '${TOKEN_MARK}([0-9]+)$')` : `t.${token}`,
    columns: returnedColumns(table, shape),
    idIsColumn: idColumn(table, shape) !== undefined,
    bucketType: table.bucket === undefined ? undefined : type(table.bucket),
    notes:
      table.notes === undefined
        ? undefined
        : {
            target: quoteQualified(table.notes.schema, table.notes.name),
            column: quote(table.notes.column),
          },
    bundles:
      table.bundles === undefined ? undefined : quoteQualified(table.bundles.schema, table.bundles.name),
    lineType: table.ordering === undefined ? undefined : type(table.ordering.key),
    laneType: table.lanes === undefined ? undefined : type(table.lanes),
  }
}

/** The row's columns in the order in which a claim returns them. */
export function returnedColumns(table: LeaseTable, shape: TableShape): readonly string[] {
  return table.columns ?? [...shape.columns.keys()]
}

/** Types whose values `pg` hands out as the text that PostgreSQL writes, or as numbers that print like it. */
const PLAIN = new Set(['smallint', 'integer', 'bigint', 'text', 'character varying', 'uuid'])

/** Where among the returned columns the id of a row stands, if it does. */
export function idColumn(table: LeaseTable, shape: TableShape): number | undefined {
  const [only = '', ...more] = table.key
  const at = returnedColumns(table, shape).indexOf(only)
  const type = shape.columns.get(only)?.type ?? ''
  const isPlain = PLAIN.has(type) && (type !== 'bigint' || keepsBigints())
  return more.length === 0 && at >= 0 && isPlain ? at : undefined
}

/** The leases of a batch, as rows: key, owner and token of each. */
export function heldLeases(parts: Parts, parameter: Parameters): string {
  const arrays = [...parts.key.map((k) => parameter(k.alias, `${k.type}[]`)), parameter('tokens', 'bigint[]')]
  const names = [...parts.key.map((k) => k.alias), '"@token"']
  const owner =
    parts.token === undefined
      ? `, ${parameter('owner', 'text')} || '${TOKEN_MARK}' || "@token" as "@owner"`
      : ''
  return `
  select *${owner}
  from unnest(${list(arrays)}) as leases (${list(names)})
`
}

/**
 * The fence: key, owner and token (D3). The owner is the same for all, unless it carries the token; `is true` hides it
 * from the planner, which would leave the key for an index on it.
 */
export function ours(parts: Parts, parameter: Parameters): string[] {
  const { key, owner, token } = parts
  const own = token === undefined ? [] : [`(t.${owner} = ${parameter('owner', 'text')}) is true`]
  const fence = [
    ...key.map((k) => [k.column, k.alias]),
    token === undefined ? [owner, '"@owner"'] : [token, '"@token"'],
  ]
  return [...throughIndex(key, 'held'), ...own, among(fence, 'held')]
}

/** Exactly the rows that a CTE names. */
export function named(key: readonly KeyColumn[], source: string): string[] {
  const exactly =
    key.length === 1
      ? []
      : [
          among(
            key.map((k) => [k.column, k.alias]),
            source,
          ),
        ]
  return [...throughIndex(key, source), ...exactly]
}

function throughIndex(key: readonly KeyColumn[], source: string): string[] {
  return key.map(({ column, alias }) => `t.${column} = any (array(select ${alias} from ${source}))`)
}

function among(pairs: readonly (readonly string[])[], source: string): string {
  const columns = pairs.map(([column]) => `t.${column}`)
  const aliases = pairs.map(([, alias]) => alias ?? '')
  return `((${list(columns)}) in (select ${list(aliases)} from ${source})) is true`
}

export function inBucket(parts: Parts, parameter: Parameters, alias = ''): string[] {
  const { table, bucketType } = parts
  if (table.bucket === undefined || bucketType === undefined) return []
  return [`${alias}${quote(table.bucket)} = ${parameter('bucket', bucketType)}`]
}

/** The bucket's column and value, for a row that is written beside the table; none where there are no buckets. */
export function bucketValue(
  { table, bucketType }: Parts,
  parameter: Parameters,
): { readonly column: string; readonly value: string }[] {
  if (table.bucket === undefined || bucketType === undefined) return []
  return [{ column: quote(table.bucket), value: parameter('bucket', bucketType) }]
}

/** One column is its own text; several are a JSON array of their texts, as `rowId` in `lease.ts` writes it. */
export function rowId(columns: readonly string[]): string {
  const [only = '', ...more] = columns.map((column) => `${column}::text`)
  if (more.length === 0) return only
  return `('[' || ${[only, ...more].map((text) => `to_json(${text})::text`).join(" || ',' || ")} || ']')`
}

export function assignments(set: Assignments): string[] {
  return Object.entries(set).map(([column, expression]) => `${quote(column)} = ${expression}`)
}

export function list(items: readonly string[]): string {
  return items.join(', ')
}

/** Without an owner there is no lease; a row that rests is left alone all the same. */
export function isFree({ table, until, owner }: Parts): string {
  const isOver = `${until} ${table.onExpiry === 'claimable' ? '<= now()' : "< '-infinity'"}`
  return canRest(table)
    ? `${isOver} or (${owner} is null and ${until} <= now())`
    : `${isOver} or ${owner} is null`
}
