/** The SQL of one lease table: its quoted names, and the conditions and parts that several statements share. */
import { CITUS_BUCKETS } from '../postgres/citus.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { keepsBigints } from '../postgres/value-types.ts'
import type { TableShape } from './inspect.ts'
import {
  and,
  indented,
  type LeaseStatement,
  list,
  type Parameters,
  parameters,
  statement,
  wrapped,
} from './statement.ts'
import {
  type Assignments,
  canRest,
  type LeaseTable,
  oneMore,
  type OutcomeSql,
  type Sql,
  SUSPECT_EXPIRIES,
} from './table.ts'

export const INSTANT = 'timestamp with time zone'

/** The most rows of one claim, settlement or reap. */
export const MAX_BATCH = 10_000

/** Between the owner and the token, in a table that has no token column. */
export const TOKEN_MARK = '#'

/** Grows with every claim of a row, as long as the database's clock is not set back. */
export const CLOCK_TOKEN = '(extract(epoch from clock_timestamp()) * 1000000)::bigint::text'

/**
 * Before the first token of a row. Its id may have belonged to another row that a worker still holds: before a restore,
 * a deletion, a TRUNCATE … RESTART IDENTITY. A token that starts at the time of the first claim is none of that row's (D12).
 * It is computed in a subquery because Citus requires one (`assign`), so that there is one text for both.
 */
const FIRST_TOKEN = '(extract(epoch from now()) * 1000000)::bigint'

export interface ColumnSql {
  readonly name: string
  readonly type: string
}

export interface TableSql {
  readonly table: LeaseTable
  readonly target: string
  readonly idColumns: readonly ColumnSql[]
  readonly order: readonly (ColumnSql & { readonly direction: string })[]
  /** The lowest cursor; undefined: claims of this table always scan from the start. */
  readonly lowestCursor: readonly string[] | undefined
  readonly owner: string
  readonly until: string
  readonly token: string | undefined
  readonly bucket: ColumnSql | undefined
  /** Where Citus distributes the table by its bucket: the table that has one row for each bucket, beside its rows. */
  readonly buckets: string | undefined
  readonly group: ColumnSql | undefined
  readonly orderingKey: (ColumnSql & { readonly lowest: string }) | undefined
  /** The columns by which rows with an ordering key are found as they become due. */
  readonly arrival: readonly (ColumnSql & { readonly lowest: string })[]
  readonly attempts: string | undefined
  readonly expiries: string | undefined
  /** One more failed attempt is the last one. */
  readonly exhausted: string | undefined
  readonly columns: readonly string[]
  /** Where among the returned columns the id of a row is, if a claim need not return it separately. */
  readonly idPosition: number | undefined
}

/** The value every other one is at least as large as, by type; a cursor of another type is not supported. */
export const LOWEST: Readonly<Record<string, string>> = {
  [INSTANT]: '-infinity',
  text: '',
  'character varying': '',
  uuid: '00000000-0000-0000-0000-000000000000',
  smallint: '-32768',
  integer: '-2147483648',
  bigint: '-9223372036854775808',
}

function withLowest(column: ColumnSql): ColumnSql & { readonly lowest: string } {
  return { ...column, lowest: LOWEST[column.type] ?? '' }
}

export function tableSql(table: LeaseTable, shape: TableShape): TableSql {
  const column = (name: string): ColumnSql => ({
    name: quote(name),
    type: shape.columns.get(name)?.type ?? 'text',
  })
  const optional = (name: string | undefined): ColumnSql | undefined =>
    name === undefined ? undefined : column(name)
  const counter = (name: string | undefined): string | undefined =>
    name === undefined || shape.columns.get(name)?.notNull === true
      ? name && quote(name)
      : `coalesce(${quote(name)}, 0)`
  const attempts = counter(table.attempts?.column)
  const max = table.attempts?.max
  const key = optional(table.ordering?.key)
  return {
    table: attempts === undefined ? table : { ...table, outcomes: withAttempts(table, attempts) },
    target: quoteQualified(table.schema, table.name),
    idColumns: table.id.map(column),
    order: table.order.map((by) => ({ ...column(by.column), direction: by.direction })),
    lowestCursor: lowestCursor(table, shape),
    owner: quote(table.lease.owner),
    until: quote(table.lease.until),
    token: table.lease.token === undefined ? undefined : quote(table.lease.token),
    bucket: optional(table.bucket),
    buckets:
      shape.distributed && table.bucket !== undefined
        ? quoteQualified(table.schema, CITUS_BUCKETS)
        : undefined,
    group: optional(table.groups),
    orderingKey: key === undefined ? undefined : withLowest(key),
    arrival: [table.availableAt, ...table.id].flatMap((name) =>
      name === undefined ? [] : [withLowest(column(name))],
    ),
    attempts,
    expiries: counter(table.attempts?.expiries),
    exhausted:
      attempts === undefined || max === undefined
        ? undefined
        : // Not "attempts + 1": a counter at the end of its type must not stop the statement.
          `${attempts} >= ${typeof max === 'number' ? max - 1 : `${quote(max)} - 1`}`,
    columns: table.columns ?? [...shape.columns.keys()],
    idPosition: idPosition(table, shape),
  }
}

/** The outcomes, in which one more attempt is counted as the column allows: the declaration does not know its type. */
function withAttempts(
  { outcomes, attempts }: LeaseTable,
  counter: Sql,
): Readonly<Record<string, OutcomeSql>> {
  const declared = oneMore(quote(attempts?.column ?? ''))
  const counted = (set: Assignments): Assignments =>
    Object.fromEntries(
      Object.entries(set).map(([column, value]) => [column, value === declared ? `${counter} + 1` : value]),
    )
  return Object.fromEntries(
    Object.entries<OutcomeSql>(outcomes).map(([name, outcome]) => [
      name,
      { ...outcome, set: counted(outcome.set) },
    ]),
  )
}

/**
 * A row comparison finds no row with a null in it, so a cursor needs columns that are never null. A row whose
 * `availableAt` is null is not claimed anyway.
 */
function lowestCursor(table: LeaseTable, shape: TableShape): string[] | undefined {
  if (table.groups !== undefined || changesOrder(table)) return undefined
  const lowest = table.order.map(({ column, direction }) => {
    const { type = '', notNull = false } = shape.columns.get(column) ?? {}
    const isNeverNull = notNull || column === table.availableAt
    return direction === 'asc' && isNeverNull ? LOWEST[type] : undefined
  })
  return lowest.every((value) => value !== undefined) ? lowest : undefined
}

/** A claim writes a column of the order: then the rows that it returns do not tell where they were. */
function changesOrder({ order, writes }: LeaseTable): boolean {
  return order.some(({ column }) => Object.hasOwn(writes.claim, column))
}

/** Types whose values `pg` hands out as the text that PostgreSQL writes, or as numbers that print like it. */
const PLAIN = new Set(['smallint', 'integer', 'bigint', 'text', 'character varying', 'uuid'])

function idPosition(table: LeaseTable, shape: TableShape): number | undefined {
  const [only = '', ...more] = table.id
  const at = (table.columns ?? [...shape.columns.keys()]).indexOf(only)
  const type = shape.columns.get(only)?.type ?? ''
  const isPlain = PLAIN.has(type) && (type !== 'bigint' || keepsBigints())
  return more.length === 0 && at >= 0 && isPlain ? at : undefined
}

export function inBucket(t: TableSql, $: Parameters, alias = ''): string {
  return t.bucket === undefined ? '' : `${alias}${t.bucket.name} = ${$('bucket', t.bucket.type)}`
}

/** The names of the id columns, each with this in front. */
export function idNames(t: TableSql, alias = ''): string {
  return list(t.idColumns.map(({ name }) => `${alias}${name}`))
}

/** One column is its own text; several are a JSON array of their texts, as `rowId` in `lease.ts` writes it. */
export function rowIdSql(t: TableSql, alias = ''): string {
  const [only = '', ...more] = t.idColumns.map(({ name }) => `${alias}${name}::text`)
  if (more.length === 0) return only
  return `('[' || ${[only, ...more].map((text) => `to_json(${text})::text`).join(" || ',' || ")} || ']')`
}

/**
 * The rows a CTE names, through the index of the id. PostgreSQL takes `any (array(select …))` for ten elements,
 * whatever the statistics say, and stays on that index (docs/decisions/002-plans.md).
 */
export function among(t: TableSql, source: string): string[] {
  const throughIndex = t.idColumns.map(({ name }) => `t.${name} = any (array(select ${name} from ${source}))`)
  return t.idColumns.length === 1
    ? throughIndex
    : [...throughIndex, `((${idNames(t, 't.')}) in (select ${idNames(t)} from ${source})) is true`]
}

/** The leases of a batch, one row each: their ids and tokens. */
function heldLeases(t: TableSql, $: Parameters): string {
  const arrays = [...idArrays(t, $), $('tokens', 'bigint[]')]
  const names = [...t.idColumns.map(({ name }) => name), 'held_token']
  const owner =
    t.token === undefined ? `, ${$('owner', 'text')} || '${TOKEN_MARK}' || held_token as held_owner` : ''
  return `select *${owner} from unnest(${list(arrays)}) as held (${list(names)})`
}

/**
 * The fence: id, owner and token (D3). `is true` hides a condition from the planner, which would otherwise leave the
 * index of the id for one on the owner or the status, or turn the comparison of tokens into a nested loop.
 */
function fenced(t: TableSql, $: Parameters): string[] {
  const ownToken =
    t.token === undefined
      ? [`((${idNames(t, 't.')}, t.${t.owner}) in (select ${idNames(t)}, held_owner from held)) is true`]
      : [
          `(t.${t.owner} = ${$('owner', 'text')}) is true`,
          `((${idNames(t, 't.')}, t.${t.token}) in (select ${idNames(t)}, held_token from held)) is true`,
        ]
  const throughIndex = t.idColumns.map(({ name }) => `t.${name} = any (array(select ${name} from held))`)
  return [inBucket(t, $, 't.'), ...throughIndex, ...ownToken]
}

/** The CTE `held`, the leases of a batch; and which rows are still leased by them, if these conditions are true as well. */
function stillHeld(
  t: TableSql,
  $: Parameters,
  conditions: readonly string[],
): { readonly held: string; readonly where: string } {
  return {
    held: `held as materialized (
  ${heldLeases(t, $)}
)`,
    where: and([...fenced(t, $), ...conditions], '    '),
  }
}

/**
 * The CTEs `held` and `ours`: the rows of a batch that are still leased by it, each locked. One that another session has
 * locked (the handler's own transaction, an operator) is skipped, so that it does not delay the others.
 */
export function lockHeld(t: TableSql, $: Parameters, conditions: readonly string[]): string {
  const { held, where } = stillHeld(t, $, conditions)
  return `${held},
ours as materialized (  -- rows that another session has locked are skipped; the caller tries them again
  select ${idNames(t, 't.')} from ${t.target} as t
  where ${where}
  for no key update skip locked
)`
}

/** Which rows of a batch are still leased by it: of those that a statement did not change, because they were locked. */
export function held(
  t: TableSql,
  purpose: string,
  conditions: ($: Parameters) => readonly string[],
): LeaseStatement {
  const $ = parameters()
  const { held: batch, where } = stillHeld(t, $, conditions($))
  return statement(
    t.table,
    purpose,
    $,
    `
with ${batch}
select ${rowIdSql(t, 't.')} from ${t.target} as t
where ${where.replaceAll('\n    ', '\n  ')}`,
  )
}

/**
 * Not leased. An expired lease is taken back first, by a statement of its own. `coalesce` hides the condition from the
 * planner, which takes a plain `is null` for one row in 200 where there are no statistics, and gives up the order of the
 * index.
 */
export function notLeased(t: TableSql): string {
  const { table, owner, until } = t
  const free = canRest(table)
    ? `(${owner} is null and ${until} <= now()) or ${until} is null`
    : `${owner} is null or ${until} is null`
  return `coalesce(${free}, true)`
}

/** What is true of a row that can be claimed at this moment. */
export function claimableNow(t: TableSql): string[] {
  const { table } = t
  return [
    `(${table.claimable})`,
    table.availableAt === undefined ? '' : `${quote(table.availableAt)} <= now()`,
    notLeased(t),
  ]
}

/** The same, and what can be claimed as soon as its expired lease is taken back, which a claim does itself. */
export function claimableOrExpired(t: TableSql): string[] {
  const [claimable = '', due = '', free = ''] = claimableNow(t)
  if (t.table.onExpiry === 'reap') return [claimable, due, free]
  const expired = `${t.until} <= now() and (${t.exhausted ?? 'false'}) is not true`
  return [claimable, due, `(${free} or (${expired}) is true)`]
}

/** Rows that a data error stopped are left alone for a while; see `data-errors.ts`. */
export function notExcluded(t: TableSql, $: Parameters, alias = ''): string {
  const [only] = t.idColumns
  if (only !== undefined && t.idColumns.length === 1) {
    const type = `${only.type}[]`
    return `${alias}${only.name} <> all ((select ${$('excluded1', type)})::${type})`
  }
  const arrays = list(t.idColumns.map((k, i) => `(select ${$(`excluded${i + 1}`, `${k.type}[]`)})`))
  return `((${idNames(t, alias)}) in (select * from unnest(${arrays}))) is not true`
}

/** The arrays of row ids that a statement is given, one for each id column. */
export function idArrays(t: TableSql, $: Parameters): string[] {
  return t.idColumns.map(({ type }, i) => $(`id${i + 1}`, `${type}[]`))
}

/** Rows with an ordering key are claimed by key. */
export function withoutKey(t: TableSql): string[] {
  return t.orderingKey === undefined ? [] : [`${t.orderingKey.name} is null`]
}

/** The names of the ordering key and of the id, which `leaseTable` has checked that there are. */
export function orderingOf(t: TableSql): { readonly key: string; readonly id: string } {
  return { key: t.orderingKey?.name ?? '', id: t.idColumns[0]?.name ?? '' }
}

/**
 * Nothing else of the row's ordering key is in flight. A scalar subquery, which is one probe of the unique index: as
 * `not exists` it becomes an anti-join that scans the index for every key.
 */
export function noneInFlight(t: TableSql, $: Parameters, row: string, indent = '      '): string {
  const { key, id } = orderingOf(t)
  const sameGroup = t.group === undefined ? '' : `f.${t.group.name} = ${row}.${t.group.name}`
  const where = [inBucket(t, $, 'f.'), sameGroup, `f.${key} = ${row}.${key}`, `(${t.table.leased ?? ''})`]
  return `(select f.${id} from ${t.target} as f
${indent}where ${and([...where, `f.${id} <> ${row}.${id}`], `${indent}  `)} limit 1) is null`
}

/** Suspects, or the others, written like the predicate of a partial index; nothing where expiries are not counted. */
export function suspects(t: TableSql, wanted: boolean): string {
  return t.expiries === undefined ? '' : `${t.expiries} ${wanted ? '>=' : '<'} ${SUSPECT_EXPIRIES}`
}

/** An assignment of an UPDATE. */
export function assign(t: TableSql, column: string, expression: string): string {
  return `${column} = ${t.buckets !== undefined && isEvaluatedByRow(expression) ? `(select ${expression})` : expression}`
}

/**
 * Citus refuses an UPDATE that computes a value from the time and from columns of the row: on several copies of a shard
 * the results could differ. Leasehold's shards have one copy each, and within a subquery it is accepted.
 */
function isEvaluatedByRow(expression: string): boolean {
  return expression !== 'now()' && /\bnow\(\)|\bjsonb_build_/.test(expression)
}

/** Only then the claim index leads to the row that is due next; otherwise finding it would read all that wait. */
export function isOrderedByDue({ table }: TableSql): boolean {
  const [first] = table.order
  return first?.column === table.availableAt && first?.direction === 'asc'
}

/** A moment as a text that sorts like it, and from which it can be read exactly: as UTC, whatever the session's time zone. */
function momentText(expression: string): string {
  return `(${expression} at time zone 'utc')::text`
}

/** A column of the order as a text, for the cursor. */
export function cursorText({ name, type }: ColumnSql, alias = ''): string {
  return type === INSTANT ? momentText(`${alias}${name}`) : `${alias}${name}::text`
}

/** What a claim returns of each row, and where. */
export interface ReturnedSql {
  readonly columns: readonly string[]
  /** Where the row's id is, the texts of its order, and the first of the table's own columns. */
  readonly positions: {
    readonly bytes: number | undefined
    readonly id: number
    readonly order: readonly number[]
    /** The row's place among the rows of the claim, where its order cannot be read from it. */
    readonly place: number | undefined
    readonly columns: number
  }
}

const PLACE = 'place'

/** Where the token and the end of the lease are. */
export const TOKEN_AT = 0
export const UNTIL_AT = 1

/** The token, the end of the lease, what the caller needs to know of the row's place, and the columns of the table. */
export function returned(t: TableSql): ReturnedSql {
  const columns = [claimedToken(t), `date_part('epoch', t.${t.until}) * 1000`]
  const add = (sql: string): number => columns.push(sql) - 1
  const bytes = t.table.bytes === undefined ? undefined : add(`coalesce(${t.table.bytes}, 0)`)
  const only = t.idPosition === undefined ? add(rowIdSql(t, 't.')) : undefined
  const place = changesOrder(t.table) ? add(PLACE) : undefined
  const order = (place === undefined ? t.order : []).map((column) => {
    const isId = column.name === t.idColumns[0]?.name && t.idPosition !== undefined
    return isId ? undefined : add(cursorText(column, 't.'))
  })
  const first = columns.length
  columns.push(...t.columns.map((column) => `t.${quote(column)}`))
  const id = only ?? first + (t.idPosition ?? 0)
  return { columns, positions: { bytes, id, order: order.map((at) => at ?? id), place, columns: first } }
}

/**
 * Leases the rows that the CTE names, each with a new token (RULE-020-001, D3). Citus refuses a RETURNING that calls what is
 * not immutable, as the size of a row and the text of a moment are: there the UPDATE is a CTE, and a SELECT computes them.
 */
export function lease(t: TableSql, $: Parameters, source: string, more: readonly string[] = []): string {
  const { ctes, rows } = leasing(t, $, source, more)
  return ctes === '' ? rows : `, ${ctes}\n${rows}`
}

/** The same as the CTE `claimed`. */
export function leaseAsCte(t: TableSql, $: Parameters, source: string, more: readonly string[] = []): string {
  const { ctes, rows } = leasing(t, $, source, more)
  return `${ctes === '' ? '' : `${ctes},\n`}claimed as (\n${indented(rows)}\n)`
}

function claimedColumns(t: TableSql, source: string): string[] {
  const place = `array_position(array(select ${rowIdSql(t)} from ${source}), ${rowIdSql(t, 't.')})`
  return returned(t).columns.map((column) => (column === PLACE ? place : column))
}

function leasing(
  t: TableSql,
  $: Parameters,
  source: string,
  more: readonly string[],
): { readonly ctes: string; readonly rows: string } {
  const { table, owner, until, token } = t
  const worker = $('owner', 'text')
  const set = [
    `${until} = now() + ${$('leaseMs', 'float8')} * interval '1 millisecond'`,
    ...(token === undefined
      ? [`${owner} = ${worker} || '${TOKEN_MARK}' || ${CLOCK_TOKEN}`]
      : [
          `${owner} = ${worker}`,
          `-- the first token of a row is the time, each later one is one higher
  ${token} = (select coalesce(nullif(t.${token}, 0), ${FIRST_TOKEN}) + 1)`,
        ]),
    ...Object.entries(table.writes.claim).map(([column, value]) => assign(t, quote(column), value)),
  ]
  const update = `update ${t.target} as t
set ${wrapped(set, ', ', '  ')}
where ${and([inBucket(t, $, 't.'), ...among(t, source)], '  ')}`
  const columns = wrapped([...claimedColumns(t, source), ...more], ', ', '  ')
  return t.buckets === undefined
    ? { ctes: '', rows: `${update}\nreturning ${columns}` }
    : {
        ctes: `leased as (\n${indented(`${update}\nreturning t.*`)}\n)`,
        rows: `select ${columns}\nfrom leased as t`,
      }
}

function claimedToken({ token, owner }: TableSql): string {
  return token === undefined ? `substring(t.${owner} from '${TOKEN_MARK}([0-9]+)$')` : `t.${token}`
}

/** The size of the row, in a table that declares it; a size that comes out as null counts as none. */
export function bytesColumn({ table }: TableSql): string[] {
  return table.bytes === undefined ? [] : [`coalesce(${table.bytes}, 0) as bytes`]
}

export function orderBy(t: TableSql, alias = ''): string {
  return list(t.order.map((o) => `${alias}${o.name}${o.direction === 'desc' ? ' desc' : ''}`))
}

/** The columns by which a scan knows and orders its rows. */
export function scannedColumns(t: TableSql): string[] {
  return [...new Set([...t.idColumns, ...t.order].map(({ name }) => name))]
}

/** The size of all rows up to this one, in this order. */
export function runningTotal(order: string, bytes = 'bytes'): string {
  return `sum(${bytes}) over (order by ${order} rows unbounded preceding) as total`
}

/** Which rows fit into the byte budget: at least the first one. */
export function fits($: Parameters): string {
  return `total = bytes or total <= ${$('bytes', 'float8')}`
}

/** The CTE `fitting`: as many rows of another as fit into the byte budget, in this order. */
export function fitting($: Parameters, source: string, order: string): string {
  return `fitting as materialized (  -- as many as fit into the byte budget, but at least one
  select * from (select *, ${runningTotal(order)} from ${source}) as sized
  where ${fits($)}
)`
}

/**
 * The CTE `taken`: the heads of ordering keys that another has found, as many as there is room for. Each is locked: what
 * has changed since it was found is checked once more.
 */
export function taken(t: TableSql, $: Parameters, source: string): string {
  const { id } = orderingOf(t)
  const isSized = t.table.bytes !== undefined
  const where = [
    inBucket(t, $, 't.'),
    `t.${id} = any (array(select ${id} from ${source}${isSized ? ` where ${fits($)}` : ''}))`,
    `(${and(claimableNow(t), '      ')}) is true`,
  ]
  const budget = isSized ? 'within the byte budget, at least one; ' : ''
  return `taken as materialized (  -- ${budget}rows that are locked or have changed are left out
  select t.${id} from ${t.target} as t
  where ${and(where, '    ')}
  order by t.${id} limit (select ${$('limit', 'int')}) for update skip locked
)`
}

/** In the answer of a claim with a byte budget: how many rows it found, with those that did not fit. */
export function foundIn({ table }: TableSql, source: string): string[] {
  return table.bytes === undefined ? [] : [`(select count(*)::int from ${source}) as found`]
}

/** The number of milliseconds until the earliest of these moments that is not reached yet; infinity does not count. */
export function millisecondsUntil(moment: string, from: string): string {
  return `(select extract(epoch from min(${moment}) - now())::float8 * 1000
    from ${from} where ${moment} > now() and isfinite(${moment}))`
}
