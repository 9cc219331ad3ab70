/**
 * Lines: rows that share an ordering key, one of them in flight at a time. The parts that the verbs put into their
 * statements where a table declares `ordering`; docs/decisions/006-ordering.md has the protocol and its proof.
 *
 * A row that was found waiting is marked `behind` and leaves the index that claims read, so that a line of 100,000
 * costs nobody anything. Taking the mark away is always safe: the next claim judges the row again. Setting it is not:
 * somebody must be left who will take it away. Hence the rules that everything here serves:
 *
 * 1. A row is marked only while the row it waits for is locked, is seen to be still waited for, and is not marked.
 * 2. Whoever settles a row that is no longer waited for takes the mark from the next in its line, in the same
 *    statement. It may not see the next (its snapshot is older than the lock it waited for), or find it locked: then
 *    the line is looked at again by the next statement.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { inBucket, isFree, type Parts } from './parts.ts'
import { type LeaseStatement, type Parameters, parameters, statement } from './statement.ts'
import { canRest, type Ordering, type Sql } from './table.ts'

/** What a declaration with `ordering` has for sure (`declaration.ts` refuses others). */
export interface Lines {
  readonly key: Sql
  readonly behind: Sql
  readonly waitedFor: Sql
  readonly inFlight: Sql
  readonly id: Sql
  /** It can be claimed: nobody has it, or nobody has it any more. */
  readonly free: Sql
}

export function linesOf(parts: Parts): Lines | undefined {
  const { table, key } = parts
  const { ordering, held, claimable } = table
  const id = key[0]?.column
  if (ordering === undefined || held === undefined || id === undefined) return undefined
  const free =
    table.onExpiry === 'reap' && !canRest(table)
      ? `(${claimable})`
      : `((${claimable}) and coalesce(${isFree(parts)}, true))`
  return { ...quoted(ordering), inFlight: ordering.inFlight ?? held, id, free }
}

function quoted({ key, behind, waitedFor }: Ordering): Pick<Lines, 'key' | 'behind' | 'waitedFor'> {
  return { key: quote(key), behind: quote(behind), waitedFor }
}

/** In flight first, then by id: the order of the index that a table with `ordering` has to have. */
function inLine({ inFlight, id }: Lines, alias: string): string {
  return `(not (${inFlight})), ${alias}.${id}`
}

/** Who stands first in the line of this key, apart from those that this statement has just settled. */
export function firstInLine(
  parts: Parts,
  lines: Lines,
  parameter: Parameters,
  key: Sql,
  apart: boolean,
): string {
  const where = [
    ...inBucket(parts, parameter, 'l.'),
    `l.${lines.key} = ${key}`,
    `(${lines.waitedFor})`,
    ...(apart ? [`(l.${lines.id} in (select "@k1" from freed)) is not true`] : []),
  ]
  return `select l.${lines.id}
      from ${parts.target} as l
      where ${where.join('\n        and ')}
      order by ${inLine(lines, 'l')}
      limit 1`
}

/** What a settlement returns besides the id: the line that it leaves, if it is no longer waited for. */
export function leftLine({ key, waitedFor, id }: Lines): string {
  return `t.${id} as "@k1", case when (${waitedFor}) then null else t.${key} end as "@left"`
}

/**
 * The next in each line that was left, or is to be looked at again: `freed` are the rows that left, `ends` who stands
 * first there now, `followers` those of them that can be claimed. Others are in flight already (a late commit was
 * overtaken) or hold up their line; then there is nothing to do.
 */
export function followers(
  parts: Parts,
  lines: Lines,
  parameter: Parameters,
  ended: string,
  again: boolean,
): string {
  const { table, target, lineType = 'text' } = parts
  const due = table.availableAt === undefined ? 'true' : `${quote(table.availableAt)} <= now()`
  const remembered = again ? ` union select unnest(${parameter('again', `${lineType}[]`)})` : ''
  return `freed as materialized (
  select "@k1", "@left" from ${ended} where "@left" is not null
),
ends as materialized (
  select "@line", (
      ${firstInLine(parts, lines, parameter, 'line."@line"', true)}
    ) as "@first"
  from (select "@left" as "@line" from freed${remembered}) as line
  group by "@line"
),
followers as materialized (
  select t.${lines.id} as "@k1", (${due} and t.${lines.behind}) as "@takeable"
  from ${target} as t
  where ${[
    ...inBucket(parts, parameter, 't.'),
    `t.${lines.id} = any (array(select "@first" from ends))`,
    `${lines.free} is true`,
  ].join('\n    and ')}
)`
}

/** Takes the mark from followers that are not claimed at once. What somebody has locked is left for the next time. */
export function advance(parts: Parts, lines: Lines, parameter: Parameters, besides?: string): string {
  const { target } = parts
  const bucket = inBucket(parts, parameter, 't.')
  const rest = besides === undefined ? '' : ` where ("@k1" in (select "@k1" from ${besides})) is not true`
  return `locked as materialized (
  select t.${lines.id} as "@k1", t.${lines.behind} as "@behind"
  from ${target} as t
  where ${[
    ...bucket,
    `t.${lines.id} = any (array(select "@k1" from followers${rest}))`,
    `${lines.free} is true`,
  ].join('\n    and ')}
  for update skip locked
),
advanced as (
  update ${target} as t
  set ${lines.behind} = false
  where ${[...bucket, `t.${lines.id} = any (array(select "@k1" from locked where "@behind"))`].join('\n    and ')}
  returning 1
)`
}

/** The lines to look at again: where nobody was seen behind a row that left, or the next was locked by somebody. */
export function lookAgain(besides?: string): string {
  const handled = ['locked', ...(besides === undefined ? [] : [besides])]
    .map((source) => `select "@k1" from ${source}`)
    .join(' union all ')
  return `array(
    select "@line"::text from ends
    where ("@first" is null and ("@line" in (select "@left" from freed)) is true)
      or (("@first" in (select "@k1" from followers)) is true and ("@first" in (${handled})) is not true)
  )`
}

/**
 * Followers that were marked and are claimed at once, without a look: at most half of the claim, so that busy lines do
 * not keep new ones out. One without a mark is where looks find it, in its turn.
 */
export function continued(parts: Parts, lines: Lines, parameter: Parameters): string {
  const { table, target, key } = parts
  // Where there are lanes, only those who know them can say whether there is room for one more.
  if (table.lanes !== undefined)
    return `continued as materialized (select null::${key[0]?.type ?? 'bigint'} as "@k1" where false)`
  const due = table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]
  return `continued as materialized (
  select t.${lines.id} as "@k1"
  from ${target} as t
  where ${[
    ...inBucket(parts, parameter, 't.'),
    `t.${lines.id} = any (array(
      select "@k1" from followers where "@takeable" limit (select ${parameter('limit', 'int')} / 2)
    ))`,
    `${lines.free} is true`,
    ...due,
  ].join('\n    and ')}
  for update skip locked
)`
}

/**
 * Judges the rows of a look: `heads` are first in their lines, or in none; the others are marked, each under the lock
 * of the row it waits for. That lock is shared: any number of looks may find rows behind the same one. Rows that this
 * statement holds already need no further lock. Each line is looked up once, however many of its rows were found.
 * Where the first of a line is itself marked (a row in flight was overtaken by a late commit and then given back), its
 * mark is taken away: a line in which all are marked would never go on.
 */
export function judged(
  parts: Parts,
  lines: Lines,
  parameter: Parameters,
  own: readonly string[],
  apart: boolean,
): string {
  const { target } = parts
  const bucket = inBucket(parts, parameter, 't.')
  const ours = ['heads', ...own].map((source) => `select "@k1" from ${source}`).join(' union all ')
  return `firsts as materialized (
  select "@line", (
      ${firstInLine(parts, lines, parameter, 'line."@line"', apart)}
    ) as "@first"
  from (select distinct "@line" from next where "@line" is not null) as line
),
heads as materialized (
  select * from next where "@line" is null or ("@k1" in (select "@first" from firsts)) is true
),
ours as materialized (${ours}),
awaited as materialized (
  select t.${lines.id} as "@k1"
  from ${target} as t
  where ${[
    ...bucket,
    `t.${lines.id} = any (array(
      select "@first" from firsts where ("@first" in (select "@k1" from ours)) is not true
    ))`,
    `(${lines.waitedFor}) is true`,
    `t.${lines.behind} is not true`,
  ].join('\n    and ')}
  for share skip locked
),
halted as materialized (
  select t.${lines.id} as "@k1"
  from ${target} as t
  where ${[
    ...bucket,
    `t.${lines.id} = any (array(
      select "@first" from firsts where ("@first" in (select "@k1" from ours)) is not true
    ))`,
    `${lines.free} is true`,
    `t.${lines.behind} is true`,
  ].join('\n    and ')}
  for update skip locked
),
revived as (
  update ${target} as t
  set ${lines.behind} = false
  where ${[...bucket, `t.${lines.id} = any (array(select "@k1" from halted))`].join('\n    and ')}
  returning 1
),
standing as materialized (
  select "@line" from firsts
  where ("@first" in (
    select "@k1" from ours union all select "@k1" from awaited union all select "@k1" from halted
  )) is true
),
marked as (
  update ${target} as t
  set ${lines.behind} = true
  where ${[
    ...bucket,
    `t.${lines.id} = any (array(
      select "@k1" from next
      where ("@line" in (select "@line" from standing)) is true
        and ("@k1" in (select "@first" from firsts)) is not true
    ))`,
  ].join('\n    and ')}
  returning t.${lines.id} as "@k1"
)`
}

/** Lines looked at by one sweep. */
export const SWEEP = 1_000

/**
 * Takes the mark from whoever stands first in a line and is marked: after a row was deleted by hand, say. From line to
 * line by the index, so that a long line costs as little as a short one. Returns how many, where to go on, and which of
 * these lines it found their first row locked by somebody in.
 */
export function sweep(parts: Parts, lines: Lines, from: 'start' | 'place' | 'keys'): LeaseStatement {
  const { target, lineType = 'text' } = parts
  const parameter = parameters()
  const bucket = inBucket(parts, parameter, 'l.')
  const next = (after: string[]): string =>
    `select l.${lines.key} as "@line" from ${target} as l
    where ${[...bucket, ...after, `l.${lines.key} is not null`, `(${lines.waitedFor})`].join(' and ')}
    order by l.${lines.key} limit 1`
  const waits = [`${lines.free} is true`, `t.${lines.behind} is true`]
  const start = from === 'place' ? [`l.${lines.key} > ${parameter('after', lineType)}`] : []
  const visited =
    from === 'keys'
      ? `visited as materialized (select unnest(${parameter('keys', `${lineType}[]`)}) as "@line")`
      : `walk as (
  (${next(start)})
  union all
  select (${next([`l.${lines.key} > walk."@line"`])}) from walk where "@line" is not null
),
visited as materialized (select "@line" from walk where "@line" is not null limit ${SWEEP})`
  return statement(
    `sweep_${from}`,
    parameter,
    `
with recursive ${visited},
ends as materialized (
  select "@line", (${firstInLine(parts, lines, parameter, 'visited."@line"', false)}) as "@first" from visited
),
marked as materialized (
  select t.${lines.id} as "@k1"
  from ${target} as t
  where ${[...inBucket(parts, parameter, 't.'), `t.${lines.id} = any (array(select "@first" from ends))`, ...waits].join('\n    and ')}
),
left_behind as materialized (
  select t.${lines.id} as "@k1"
  from ${target} as t
  where ${[...inBucket(parts, parameter, 't.'), `t.${lines.id} = any (array(select "@k1" from marked))`, ...waits].join('\n    and ')}
  for update skip locked
),
advanced as (
  update ${target} as t
  set ${lines.behind} = false
  where ${[...inBucket(parts, parameter, 't.'), `t.${lines.id} = any (array(select "@k1" from left_behind))`].join('\n    and ')}
  returning 1
)
select (select count(*) from advanced)::int as "@advanced", (select count(*) from visited)::int as "@visited",
  (select "@line"::text from visited order by "@line" desc limit 1) as "@last",
  array(
    select "@line"::text from ends
    where ("@first" in (select "@k1" from marked)) is true and ("@first" in (select "@k1" from left_behind)) is not true
  ) as "@again"`,
  )
}
