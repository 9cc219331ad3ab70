/** The SQL of one lease table: its quoted names, and the conditions and parts that several statements share. */
import { CITUS_BUCKETS } from '../postgres/citus.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { keepsBigints } from '../postgres/value-types.ts'
import type { TableShape } from './inspect.ts'
import { and, list, type Parameters, wrapped } from './statement.ts'
import { canRest, type LeaseTable, SUSPECT_EXPIRIES } from './table.ts'

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
const LOWEST: Readonly<Record<string, string>> = {
  'timestamp with time zone': '-infinity',
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
    table,
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

/**
 * A row comparison finds no row with a null in it, so a cursor needs columns that are never null. A row whose
 * `availableAt` is null is not claimed anyway.
 */
function lowestCursor(table: LeaseTable, shape: TableShape): string[] | undefined {
  if (table.groups !== undefined) return undefined
  const lowest = table.order.map(({ column, direction }) => {
    const { type = '', notNull = false } = shape.columns.get(column) ?? {}
    const isNeverNull = notNull || column === table.availableAt
    return direction === 'asc' && isNeverNull ? LOWEST[type] : undefined
  })
  return lowest.every((value) => value !== undefined) ? lowest : undefined
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

/**
 * The CTEs `held` (the batch) and `ours`: the rows of it that are still leased by it and fulfil the conditions. A row that
 * another session has locked (the handler's own transaction, an operator) is skipped, so that it does not delay the others.
 */
export function lockHeld(t: TableSql, $: Parameters, conditions: readonly string[]): string {
  return `held as materialized (
  ${heldLeases(t, $)}
),
ours as materialized (              -- a row that another session has locked is skipped, and reported as busy
  select ${idNames(t, 't.')}
  from ${t.target} as t
  where ${and([...fenced(t, $), ...conditions], '    ')}
  for no key update skip locked
)`
}

/** Each row that the CTE changed, and each that `lockHeld` skipped because another session has locked it. */
export function changedAndBusy(
  t: TableSql,
  $: Parameters,
  changed: string,
  conditions: readonly string[],
): string {
  const where = [
    '(select count(*) from ours) < (select count(*) from held)',
    ...fenced(t, $),
    ...conditions,
    `((${idNames(t, 't.')}) in (select ${idNames(t)} from ours)) is not true`,
  ]
  return `select ${rowIdSql(t)} as id, false as busy from ${changed}
union all
select ${rowIdSql(t, 't.')}, true
from ${t.target} as t
where ${and(where, '  ')}`
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
export function notExcluded(t: TableSql, $: Parameters): string {
  const [only] = t.idColumns
  if (only !== undefined && t.idColumns.length === 1) {
    const type = `${only.type}[]`
    return `${only.name} <> all ((select ${$('excluded1', type)})::${type})`
  }
  const arrays = list(t.idColumns.map((k, i) => `(select ${$(`excluded${i + 1}`, `${k.type}[]`)})`))
  return `((${idNames(t)}) in (select * from unnest(${arrays}))) is not true`
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
export function noneInFlight(t: TableSql, $: Parameters, row: string): string {
  const { key, id } = orderingOf(t)
  const sameGroup = t.group === undefined ? '' : `f.${t.group.name} = ${row}.${t.group.name}`
  const where = [inBucket(t, $, 'f.'), sameGroup, `f.${key} = ${row}.${key}`, `(${t.table.leased ?? ''})`]
  return `(select f.${id} from ${t.target} as f
      where ${and([...where, `f.${id} <> ${row}.${id}`], '        ')} limit 1) is null`
}

export function isSuspect(t: TableSql): string {
  return t.expiries === undefined ? 'false' : `${t.expiries} >= ${SUSPECT_EXPIRIES}`
}

/**
 * How much of the room for suspects a row takes up: one that has to run alone takes up all of it. A death in company costs an
 * innocent row an attempt. It must not be its last one, and there is only one such death for a row.
 */
export function suspectLoad(t: TableSql): string {
  if (t.expiries === undefined) return '0 as load'
  const alone = [`${t.expiries} > ${SUSPECT_EXPIRIES}`, ...(t.exhausted === undefined ? [] : [t.exhausted])]
  return `case when ${t.expiries} < ${SUSPECT_EXPIRIES} then 0 when ${alone.join(' or ')} then ${ALONE} else 1 end as load`
}

const ALONE = 1_000_000

/** The load of the suspects up to this row, in the order of the claim. */
export function suspectsBefore(order: string): string {
  return `sum(load) over (order by ${order} rows unbounded preceding) as all_load`
}

/** As many suspects as there is room for; the first of all may be one that has to run alone. */
export function withinSuspects(t: TableSql, $: Parameters): string {
  if (t.expiries === undefined) return ''
  return `(load = 0 or all_load <= ${$('suspects', 'int')} or (${$('alone', 'boolean')} and all_load = load))`
}

/** In the answer of a claim: which of the taken rows are suspects, and whether the only one has to run alone. */
export function suspectFacts(t: TableSql): Record<'suspects' | 'alone', string> {
  if (t.expiries === undefined) return { suspects: 'null', alone: 'null' }
  return {
    suspects: `(select json_agg(${rowIdSql(t)}) from taken where load > 0)`,
    alone: `(select max(load) >= ${ALONE} from taken)`,
  }
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

/** The number of milliseconds until the earliest of these moments that is not reached yet; infinity does not count. */
export function millisecondsUntil(moment: string, from: string, where: readonly string[] = []): string {
  const conditions = and([...where, `${moment} > now()`, `isfinite(${moment})`], '     ')
  return `(select extract(epoch from min(${moment}) - now()) * 1000
     from ${from} where ${conditions})`
}

/** Takes the rows of the CTE `taken` and gives each a new token (RULE-020-001, D3). */
export function claimTaken(t: TableSql, $: Parameters): string {
  const { table, owner, until, token } = t
  const worker = $('owner', 'text')
  const set = [
    `${until} = now() + ${$('leaseMs', 'float8')} * interval '1 millisecond'`,
    ...(token === undefined
      ? [`${owner} = ${worker} || '${TOKEN_MARK}' || ${CLOCK_TOKEN}`]
      : [`${owner} = ${worker}`, `${token} = (select coalesce(nullif(t.${token}, 0), ${FIRST_TOKEN}) + 1)`]),
    ...Object.entries(table.writes.claim).map(([column, value]) => assign(t, quote(column), value)),
  ]
  const id = t.idPosition === undefined ? [rowIdSql(t, 't.')] : []
  const returned = [claimedToken(t), ...id, ...t.columns.map((column) => `t.${quote(column)}`)]
  return `claimed as (
  update ${t.target} as t
  set ${wrapped(set, ', ', '    ')}
  where ${and([inBucket(t, $, 't.'), ...among(t, 'taken')], '    ')}
  returning ${wrapped(returned, ', ', '    ')}
)`
}

function claimedToken({ token, owner }: TableSql): string {
  return token === undefined ? `substring(t.${owner} from '${TOKEN_MARK}([0-9]+)$')` : `t.${token}`
}

/**
 * One row with what concerns the whole claim, then a row for each claimed one: facts as columns would be computed, sent
 * and read for every row. `claims.ts` reads the columns by position.
 */
export function answer(t: TableSql, $: Parameters, facts: Readonly<Record<string, string>>): string {
  const all = {
    until: `extract(epoch from now() + ${$('leaseMs', 'float8')} * interval '1 millisecond') * 1000`,
    order: `(select json_agg(${rowIdSql(t)}) from taken)`,
    ...facts,
  }
  const named = Object.entries(all).map(([name, fact]) => `'${name}', ${fact}`)
  return `select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  ${named.join(',\n  ')}
)) as facts full join claimed on false`
}

/** The columns a scan selects: the id, the columns it is ordered by, and the size of the row. */
export function scanned(t: TableSql): string {
  const names = new Set([...t.idColumns, ...t.order].map(({ name }) => name))
  return list([...names, ...bytesColumn(t)])
}

/** The size of the row, in a table that declares it; a size that comes out as null counts as none. */
export function bytesColumn({ table }: TableSql): string[] {
  return table.bytes === undefined ? [] : [`coalesce(${table.bytes}, 0) as bytes`]
}

export function orderBy(t: TableSql, direction: 'as declared' | 'reversed' = 'as declared'): string {
  const reversed = direction === 'reversed'
  return list(t.order.map((o) => ((o.direction === 'desc') === reversed ? o.name : `${o.name} desc`)))
}

/** The bytes of the rows before this one in the given order. */
export function bytesBefore(t: TableSql, order: string): string {
  return t.table.bytes === undefined
    ? ''
    : `, coalesce(sum(bytes) over (order by ${order} rows between unbounded preceding and 1 preceding), 0) as bytes_before`
}

/** As many rows as fit into the byte budget, but at least one. */
export function withinBytes(t: TableSql, $: Parameters): string {
  return t.table.bytes === undefined
    ? ''
    : `(bytes_before = 0 or bytes_before + bytes <= ${$('bytes', 'float8')})`
}
