/**
 * Bundles: which rows may be claimable, where a table declares `bundles`. What can be claimed is said by the row; a
 * bundle only says where to look. docs/decisions/014-bundles.md has the proof of the two rules:
 *
 * 1. Whoever makes a row claimable writes a bundle that names it in the same transaction, for a moment at which it is
 *    not due later. That is a trigger's work, so that it holds for everyone. So whoever sees a row that can be claimed
 *    sees a bundle of it.
 * 2. A claim that removes a row from a bundle has seen it, and has claimed it, or marked it as waiting, or seen that it
 *    cannot be claimed, or put it into another bundle. A row that can be claimed later has a later bundle.
 */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { bucketValue, inBucket, list, type Parts } from './parts.ts'
import type { Parameters } from './statement.ts'

/** How long a row is left alone that a look found and could not have. */
const REST_MS = 100

/** How many rows may be claimed of those that are listed. */
export const LEFT = '(select "@left" from most)'

const MOST = '(select "@most" from most)'

/** The list ends within this bundle. */
const IS_CUT = `"@end" > ${MOST} and "@end" - "@size" < ${MOST}`

/** How the look of a claim goes on: from a place, to claim so many rows. */
interface Look {
  /** Conditions on `at` and `id`, where it goes on from a place. */
  readonly from: readonly string[]
  /** How many rows may be claimed, as SQL; more are listed where a claim has found many in vain. */
  readonly most: string
  /** The largest number that PostgreSQL is told to expect. */
  readonly cap: number
}

/**
 * The CTEs before the look at the rows: `taken` are the bundles that are due and that nobody else takes, `listed` the
 * rows of the first of them. Of the bundle in which the list ends the rest stays; those behind it stay whole.
 *
 * How many bundles it takes is what the first ones promise without a lock, so that none is kept from others in vain.
 */
export function takeBundles(parts: Parts, parameter: Parameters, { from, most, cap }: Look): string {
  const bucket = inBucket(parts, parameter)
  const target = parts.bundles ?? ''
  const due = (columns: string, limit: string | number): string => `select ${columns}
      from ${target}
      where ${[...bucket, 'at <= now()', ...from].join('\n        and ')}
      order by at, id
      limit ${limit}`
  const listing = parameter('listing', 'int')
  return `most as materialized (
  select left_over as "@left", left_over + greatest(0, ${listing} - ${parameter('limit', 'int')}) as "@most"
  from (select ${most} as left_over) as asked
),
ahead as materialized (
  select "@size", sum("@size") over (order by "@at", "@bundle") - "@size" as "@before"
  from (
    ${due(`id as "@bundle", at as "@at", cardinality(rows) as "@size"`, `(select ${parameter('bundles', 'int')})`)}
  ) as first
),
wanted as materialized (
  select count(*) filter (where "@before" < ${MOST}) as "@wanted",
    count(*) < ${parameter('bundles', 'int')} and coalesce(sum("@size"), 0) < ${MOST} as "@all"
  from ahead
),
taken as materialized (
  select *, sum("@size") over (order by "@at", "@bundle") as "@end"
  from (
    select *
    from (
      ${due(`id as "@bundle", at as "@at", rows as "@rows", cardinality(rows) as "@size"`, cap)}
      for update skip locked
    ) as free
    limit (select "@wanted" from wanted)
  ) as few
),
listed as materialized (
  select unnest("@rows") as "@k1" from taken limit ${MOST}
),
emptied as (
  delete from ${target}
  where ${[...bucket, `id = any (array(select "@bundle" from taken where "@end" <= ${MOST}))`].join('\n    and ')}
),
shortened as (
  update ${target} as b
  set rows = b.rows[1 + (select ${MOST} - "@end" + "@size" from taken where ${IS_CUT}) : ]
  where ${[
    ...inBucket(parts, parameter, 'b.'),
    `b.id = any (array(select "@bundle" from taken where ${IS_CUT}))`,
  ].join('\n    and ')}
)`
}

/** Where the look ended: in this bundle, or behind it. */
export const LAST_BUNDLE = `select array["@at"::text, "@bundle"::text]
    from taken where "@end" - "@size" < ${MOST} order by "@end" desc limit 1`

/** The first bundle that is not due yet; it is when the next row is, or earlier. */
export function nextBundle(parts: Parts, parameter: Parameters): string {
  const where = [...inBucket(parts, parameter), 'at > now()', 'isfinite(at)']
  return `select at as "@at" from ${parts.bundles ?? ''} where ${where.join(' and ')} order by at limit 1`
}

/** The key of a claimed row, among what a claim returns. */
function claimedKey({ key, idIsColumn }: Parts): string {
  return idIsColumn ? (key[0]?.column ?? '') : `"@id"::${key[0]?.type ?? 'bigint'}`
}

/**
 * What was listed, can be claimed, and is neither claimed nor marked: somebody has it locked, it is not due yet, a
 * trigger kept it. It is written down again. `continued` are CTEs with rows that were claimed without being listed.
 */
export function putBack(parts: Parts, parameter: Parameters, continued: readonly string[]): string {
  const { table, target, key } = parts
  const id = key[0]?.column ?? ''
  // What could be claimed already goes behind what waits. What was looked at in vain rests a little: somebody may have
  // it locked for long, and those behind it are not to wait until it has been looked at as often.
  const rest = `case when (select count(*) from next) < ${LEFT} then interval '${REST_MS} milliseconds' else interval '0' end`
  const at = `greatest(${quote(table.availableAt ?? '')}, now() + ${rest})`
  const bucket = bucketValue(parts, parameter)
  const marked = table.ordering === undefined ? [] : ['marked']
  const gone = [
    `select ${claimedKey(parts)} from claimed`,
    ...marked.map((cte) => `select "@k1" from ${cte}`),
  ]
  const counted = (ctes: readonly string[]): string =>
    ctes.map((cte) => `(select count(*) from ${cte})`).join(' + ')
  const left = `select "@k1" from listed
      where ${counted(['claimed', ...marked])} < ${counted(['listed', ...continued])}
        and ("@k1" in (${gone.join(' union all ')})) is not true`
  return `put_back as (
  insert into ${parts.bundles ?? ''} (${list([...bucket.map(({ column }) => column), 'at', 'rows'])})
  select ${list([...bucket.map(({ value }) => value), at, `array_agg(${id} order by ${id})`])}
  from ${target}
  where ${[
    ...inBucket(parts, parameter),
    `${id} = any (array(
      ${left}
    ))`,
    `(${table.claimable})`,
    ...(table.ordering === undefined ? [] : [`not ${quote(table.ordering.behind)}`]),
  ].join('\n    and ')}
  group by ${at}
)`
}

/** What a statement with bundles says of them: how many it took, and how many rows they had. */
export const BUNDLE_FACTS: Readonly<Record<string, string>> = {
  bundles: '(select count(*) from taken)',
  missed: '(select "@wanted" from wanted) - (select count(*) from taken)',
  all: '(select "@all" from wanted)',
  bundled: '(select coalesce(sum("@size"), 0) from taken)',
}

/** Something was listed: it has left its bundle, or rests. */
export const LISTED = 'exists (select from listed)'
