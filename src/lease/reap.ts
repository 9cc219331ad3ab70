import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import {
  and,
  type LeaseStatement,
  list,
  type Parameters,
  parameters,
  statement,
  wrapped,
} from './statement.ts'
import { type OutcomeSql, replaceArguments, type Sql } from './table.ts'
import {
  among,
  assign,
  idArrays,
  idNames,
  inBucket,
  notExcluded,
  rowIdSql,
  type TableSql,
  TOKEN_MARK,
} from './table-sql.ts'

/** A lease that was taken back. */
export interface Reaped {
  readonly id: string
  /** Who held the row. */
  readonly owner: string
  readonly token: bigint
  /** How long the lease had been over. */
  readonly staleMs: number
  /** Its attempts are used up. */
  readonly exhausted: boolean
}

/**
 * Takes leases back and reports whose they were (RULE-020-021): those that expired, or all of one owner that is known to
 * be dead, however long they would still run. Fencing makes the second as safe as the first. With ids, only those.
 */
export function reap(t: TableSql, which: 'expired' | 'owned by'): LeaseStatement {
  const $ = parameters()
  const ids = idArrays(t, $)
  const only = `(${ids[0]} is null or (${idNames(t)}) in (select * from unnest(${list(ids)})))`
  return statement(
    t.table,
    `reap ${which}`,
    $,
    `
with taken_back as materialized (
  select ${idNames(t)}, ${t.owner} as held_owner, ${t.token === undefined ? 'null' : `${t.token}::text`} as held_token,
    ${t.until} as held_until, ${t.exhausted === undefined ? 'false' : `coalesce(${t.exhausted}, false)`} as exhausted
  from ${t.target}
  where ${and([...leased(t, $, which, '      '), only, notExcluded(t, $)], '    ')}
  limit (select ${$('limit', 'int')}) for update skip locked
),
reaped as (
  update ${t.target} as t
  set ${wrapped(expire(t, $, which), ', ', '    ')}
  where ${and([inBucket(t, $, 't.'), ...among(t, 'taken_back')], '    ')}
)
select ${rowIdSql(t)} as id, held_owner as owner, held_token as token, exhausted,
  greatest(0, extract(epoch from now() - held_until)::float8 * 1000) as stale_ms
from taken_back`,
  )
}

/** What a reap would take back, without doing it: to find the row that stops it. */
export function findExpired(t: TableSql, which: 'expired' | 'owned by'): LeaseStatement {
  const $ = parameters()
  return statement(
    t.table,
    `find ${which}`,
    $,
    `
select ${rowIdSql(t)} as id from ${t.target}
where ${and([...leased(t, $, which, '    '), notExcluded(t, $)], '  ')}
limit (select ${$('limit', 'int')})`,
  )
}

/** Written like the predicate of the index that the reaper reads, which has leased rows only. */
function leased(t: TableSql, $: Parameters, which: 'expired' | 'owned by', indent: string): string[] {
  const condition = `(${t.table.leased ?? `${t.owner} is not null`})`
  if (which === 'owned by') return [inBucket(t, $), condition, `${ownerSql(t)} = ${$('ownedBy', 'text')}`]
  const bucket = inBucket(t, $)
  const grace = `now() - (select ${$('graceMs', 'float8')}) * interval '1 millisecond'`
  const living = `(select ${$('living', 'text[]')})::text[]`
  const leftToOwner = `(${t.until} > ${grace}  -- for this time it is left to a living owner
${indent}and ${ownerSql(t)} = any (${living})) is not true`
  return [bucket, condition, `${t.until} <= now()`, leftToOwner]
}

/** The owner as workers are named. */
function ownerSql(t: TableSql): Sql {
  return t.token === undefined ? `regexp_replace(${t.owner}, '${TOKEN_MARK}[0-9]+$', '')` : t.owner
}

/**
 * An expiry is a failed attempt that nobody reported (D4): the row gets the table's own outcome `retry`, or `dead` when
 * its attempts are used up. The first expiry brings it back at once; from the second on the backoff applies (D10). It is
 * counted as an expiry unless the owner lives.
 */
function expire(t: TableSql, $: Parameters, which: 'expired' | 'owned by'): string[] {
  const { table, exhausted, expiries, attempts } = t
  const outcomes: Readonly<Record<string, OutcomeSql | undefined>> = table.outcomes
  const { retry, dead } = outcomes
  // Without an outcome of its own an expired lease ends as if it had been released.
  const onRetry = retry?.set ?? table.writes.release
  const onDeath = exhausted === undefined ? {} : (dead?.set ?? {})
  /** A parameter exists once it is asked for: not every table makes a row wait. */
  function delay(): Sql {
    if (expiries === undefined) return '0'
    const backoff = $('backoffMs', 'float8[]')
    const step = `(${backoff})[least(${attempts ?? expiries}, cardinality(${backoff}) - 1) + 1]`
    return `(case when ${expiries} = 0 then 0  -- at once after the first expiry, then after the delay of this attempt
        else coalesce(${step}, 0) end)`
  }
  const given = (name: string, outcome: OutcomeSql | undefined): Sql =>
    table.expired[name] ?? `null::${outcome?.args[name] ?? 'text'}`
  /** Who takes the row back may know what happened; the table has a text for when nobody does. */
  const error = (outcome: OutcomeSql | undefined): Sql =>
    outcome?.args['error'] === 'text'
      ? `coalesce(${$('reason', 'text')}, ${given('error', outcome)})`
      : given('error', outcome)
  const argument =
    (outcome: OutcomeSql | undefined) =>
    (name: string): Sql =>
      name === 'delay_ms' ? delay() : name === 'error' ? error(outcome) : given(name, outcome)

  const counters = [table.attempts?.column, table.attempts?.expiries].filter((column) => column !== undefined)
  const ifExhausted = (ifDead: Sql, ifRetried: Sql): Sql =>
    exhausted === undefined || dead === undefined || ifDead === ifRetried
      ? ifRetried
      : `case when ${exhausted} then ${ifDead} else ${ifRetried} end`

  /** A column that the outcome does not write stays. Expiries are counted, although `retry` sets them to 0. */
  function written(column: string): Sql {
    const ownOfReap = table.writes.reap[column]
    if (ownOfReap !== undefined) return replaceArguments(ownOfReap, argument(retry))
    if (column === table.attempts?.expiries && which === 'expired')
      return `${expiries} + case  -- not counted if the owner is alive: then no process has died
      when ${ownerSql(t)} = any (${$('living', 'text[]')}) then 0 else 1 end`
    if (column === table.attempts?.expiries) return `${expiries} + 1`
    const unassigned = column === table.attempts?.column ? `${attempts} + 1` : quote(column)
    const [retried, ended] = [onRetry[column], onDeath[column]]
    return ifExhausted(
      ended === undefined ? unassigned : replaceArguments(ended, argument(dead)),
      // The delay of an expiry is never null.
      retried === undefined
        ? unassigned
        : replaceArguments(retried.replace('coalesce($delay_ms, 0)', '$delay_ms'), argument(retry)),
    )
  }

  const assigned = [onRetry, onDeath, table.writes.reap].flatMap((set) => Object.keys(set))
  const columns = [...new Set([...counters, ...assigned])]
  const rest =
    retry?.rest === undefined ? 'null' : `now() + (${replaceArguments(retry.rest, argument(retry))})`
  return [
    `${t.owner} = null`,
    assign(t, t.until, ifExhausted('null', rest)),
    ...columns.map((column) => assign(t, quote(column), written(column))),
  ]
}
