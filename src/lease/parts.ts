/** The pieces from which `sql.ts` puts its statements together: quoted names, casts, guards. */
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { type TableShape } from './inspect.ts'
import { type Parameters } from './statement.ts'
import { type Assignments, type LeaseTable } from './table.ts'

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
  readonly bucketType: string | undefined
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
      token === undefined ? `substring(t.${owner} from '${TOKEN_MARK}([0-9]+)$')` : `t.${token}::text`,
    columns: table.columns ?? [...shape.columns.keys()],
    bucketType: table.bucket === undefined ? undefined : type(table.bucket),
  }
}

/** The leases of a batch, as rows: key, token, owner and the arguments of each. */
export function heldLeases(
  parts: Parts,
  parameter: Parameters,
  args: Readonly<Record<string, string>> = {},
): string {
  const arrays = [
    ...parts.key.map((k) => parameter(k.alias, `${k.type}[]`)),
    parameter('tokens', 'bigint[]'),
    ...Object.entries(args).map(([argument, type]) => parameter(argumentAlias(argument), `${type}[]`)),
  ]
  const names = [
    ...parts.key.map((k) => k.alias),
    '"@token"',
    ...Object.keys(args).map(argumentAlias),
    '"@n"',
  ]
  const owner = parameter('owner', 'text')
  const ownerValue = parts.token === undefined ? `${owner} || '${TOKEN_MARK}' || "@token"` : owner
  return `
  select *, ${ownerValue} as "@owner"
  from unnest(${list(arrays)}) with ordinality as leases (${list(names)})
`
}

/** The fence: key, owner and token (D3). */
export function ours(parts: Parts): string[] {
  return [
    ...reached(parts.key, 'held'),
    `t.${parts.owner} = held."@owner"`,
    ...(parts.token === undefined ? [] : [`t.${parts.token} = held."@token"`]),
  ]
}

/** The rows named by a CTE, found through the index on the key. */
export function reached(key: readonly KeyColumn[], source: string): string[] {
  return key.flatMap(({ column, alias }) => [
    `t.${column} = any (array(select ${alias} from ${source}))`,
    `t.${column} = ${source}.${alias}`,
  ])
}

export function inBucket(parts: Parts, parameter: Parameters, alias = ''): string[] {
  const { table, bucketType } = parts
  if (table.bucket === undefined || bucketType === undefined) return []
  return [`${alias}${quote(table.bucket)} = ${parameter('bucket', bucketType)}`]
}

/** One column is its own text; several are a JSON array of their texts. `store.ts` reads it back. */
export function rowId(columns: readonly string[]): string {
  const texts = columns.map((column) => `${column}::text`)
  return texts.length === 1 ? list(texts) : `jsonb_build_array(${list(texts)})::text`
}

export function assignments(set: Assignments): string[] {
  return Object.entries(set).map(([column, expression]) => `${quote(column)} = ${expression}`)
}

export function argumentAlias(argument: string): string {
  return quote(`@arg:${argument}`)
}

export function list(items: readonly string[]): string {
  return items.join(', ')
}
