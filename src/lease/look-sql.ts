/** The look of a claim: which rows it finds, in which order, where it ended, and when there will be more. */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { LAST_BUNDLE, LEFT, nextBundle, takeBundles } from './bundle-sql.ts'
import type { Lines } from './line-sql.ts'
import { inBucket, isFree, list, type Parts } from './parts.ts'
import type { Parameters } from './statement.ts'

/** The most rows one claim or reap can take. */
export const MAX_BATCH = 10_000

/** Where the look begins: at the start of the order, or at the place where another look ended. */
export type From = 'start' | 'place'

interface Look {
  readonly from: From
  readonly lines?: Lines
  readonly besides?: readonly string[]
  /** Instead of all that was asked for. */
  readonly limit?: string
}

/** The CTEs up to `next`: the rows that are found, each locked. */
export function nextRows(parts: Parts, parameter: Parameters, look: Look): string {
  const most = look.limit ?? parameter('limit', 'int')
  if (parts.bundles === undefined)
    return `next as materialized (${rowsInOrder(parts, parameter, look, most)})`
  const { key } = parts
  const from =
    look.from === 'place'
      ? [`(at, id) >= (${parameter('"@o1"', 'timestamptz')}, ${parameter('"@o2"', 'bigint')})`]
      : []
  const where = [
    ...key.map(({ column, alias }) => `${column} = any (array(select ${alias} from listed))`),
    ...conditions(parts, parameter, look),
  ]
  return `${takeBundles(parts, parameter, { from, most, cap: MAX_BATCH })},
next as materialized (
  select *
  from (
    select ${list([...key.map(({ column, alias }) => `${column} as ${alias}`), ...lineColumn(look)])}
    from ${parts.target}
    where ${where.join('\n      and ')}
    for update skip locked
  ) as found
  limit ${LEFT}
)`
}

/** What is true of a row that can be claimed. */
function conditions(parts: Parts, parameter: Parameters, { lines, besides = [] }: Look): string[] {
  const { table } = parts
  return [
    ...inBucket(parts, parameter),
    `(${table.claimable})`,
    ...(lines === undefined ? [] : [`not ${lines.behind}`]),
    ...(table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]),
    // Not leased, whatever `claimable` says: a declaration may forget to make it untrue. Said with `coalesce`, because
    // the planner takes a plain `is null` on a table without statistics for one row in 200 and gives up the order.
    // A lease without an owner is none.
    `coalesce(${isFree(parts)}, true)`,
    ...(table.exhausted === undefined ? [] : [`(${parts.owner} is null or not (${table.exhausted}))`]),
    ...besides,
  ]
}

function lineColumn({ lines }: Look): string[] {
  return lines === undefined ? [] : [`${lines.key} as "@line"`]
}

/** Found along an index that has them in order. */
function rowsInOrder(parts: Parts, parameter: Parameters, how: Look, most: string): string {
  const { target, key, order } = parts
  const columns = [
    ...[...key, ...order].map(({ column, alias }) => `${column} as ${alias}`),
    ...lineColumn(how),
  ]
  const where = [
    ...conditions(parts, parameter, how),
    ...(how.from === 'place'
      ? [
          `(${list(order.map(({ column }) => column))}) >= (${list(order.map((o) => parameter(o.alias, o.type)))})`,
        ]
      : []),
  ]
  const look = (also: readonly string[], most: string | number): string => `select ${list(columns)}
      from ${target}
      where ${[...also, ...where].join('\n        and ')}
      order by ${list(order.map((o) => `${o.column} ${o.direction}`))}
      limit ${most}
      for update skip locked`
  const few = `limit (select ${most})`
  // The limit stands there twice because the planner takes one for a tenth of what it limits. With a thousand rows to
  // expect it found its generic plan a little dearer than a new one, and made a new one, 1 ms, for every exchange.
  return `
  select *
  from (
    select *
    from (
      ${fromLanes(parts, parameter, (lane) => (lane === undefined ? look([], MAX_BATCH) : look([lane], 'lane."@room"')))}
    ) as candidates
    ${few}
  ) as few
  ${few}
`
}

/** Each lane is looked at by itself, and no further than there is room for rows of it. */
function fromLanes(
  { table, laneType }: Parts,
  parameter: Parameters,
  look: (lane: string | undefined) => string,
): string {
  if (table.lanes === undefined || laneType === undefined) return look(undefined)
  return `select found.*
      from ${openLanes(parameter, laneType)}
      cross join lateral (
      ${look(`${quote(table.lanes)} = lane."@lane"`)}
      ) as found
      limit ${MAX_BATCH}`
}

function openLanes(parameter: Parameters, laneType: string): string {
  return `unnest(${parameter('lanes', `${laneType}[]`)}, ${parameter('rooms', 'int[]')}) as lane ("@lane", "@room")`
}

/** Where the look ended. The values of that row alone become texts, not of all before it. */
export function lastPlace({ order, bundles }: Parts): string {
  if (bundles !== undefined) return LAST_BUNDLE
  return `select array[${list(order.map((o) => `${o.alias}::text`))}]
    from (select * from next offset (select greatest(count(*) - 1, 0) from next)) as last`
}

/** In how many milliseconds the next row that is not due yet will be: a worker with nothing to do need not poll for it. */
export function nextDue(parts: Parts, parameter: Parameters): string {
  const { table, target, bundles } = parts
  if (bundles !== undefined) return inMilliseconds(nextBundle(parts, parameter))
  if (table.availableAt === undefined) return 'null::float8'
  const at = quote(table.availableAt)
  const where = [
    ...inBucket(parts, parameter),
    `(${table.claimable})`,
    ...(table.ordering === undefined ? [] : [`not ${quote(table.ordering.behind)}`]),
    `${at} > now()`,
    // PostgreSQL 15 cannot subtract from infinity.
    `isfinite(${at})`,
  ]
  const first = (also: readonly string[]): string =>
    `select ${at} as "@at" from ${target} where ${[...also, ...where].join(' and ')} order by ${at} limit 1`
  const soonest =
    table.lanes === undefined || parts.laneType === undefined
      ? first([])
      : `select min("@at") as "@at" from ${openLanes(parameter, parts.laneType)} cross join lateral (${first([`${quote(table.lanes)} = lane."@lane"`])}) as first`
  return inMilliseconds(soonest)
}

function inMilliseconds(soonest: string): string {
  return `(select extract(epoch from "@at" - now())::float8 * 1000 from (${soonest}) as soonest)`
}
