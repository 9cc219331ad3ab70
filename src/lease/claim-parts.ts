/** The parts that all claims share: what a claim writes, and what it answers. */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { and, list, type Parameters, wrapped } from './statement.ts'
import {
  among,
  assignments,
  CLOCK_TOKEN,
  inBucket,
  rowIdSql,
  type TableSql,
  TOKEN_MARK,
} from './table-sql.ts'

/** Takes the rows of the CTE `taken` and gives each a new token (RULE-020-001, D3). */
export function claimTaken(t: TableSql, $: Parameters): string {
  const { table, owner, until, token } = t
  const worker = $('owner', 'text')
  const expired = `case when t.${owner} is null then 0 else 1 end`
  const set = [
    `${until} = now() + ${$('leaseMs', 'float8')} * interval '1 millisecond'`,
    ...(token === undefined
      ? [`${owner} = ${worker} || '${TOKEN_MARK}' || ${CLOCK_TOKEN}`]
      : [`${owner} = ${worker}`, `${token} = coalesce(t.${token}, 0) + 1`]),
    // A lease that expired and was not reaped is a failed attempt (D4).
    ...(table.onExpiry === 'reap'
      ? []
      : [table.attempts?.column, table.attempts?.expiries].flatMap((counter) =>
          counter === undefined ? [] : [`${quote(counter)} = coalesce(t.${quote(counter)}, 0) + ${expired}`],
        )),
    ...assignments(table.writes.claim),
  ]
  const id = t.idColumn === undefined ? [rowIdSql(t, 't.')] : []
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
 * and read for every row. `claim-answer.ts` reads the columns by position.
 */
export function answer(t: TableSql, $: Parameters, facts: Readonly<Record<string, string>>): string {
  const all = {
    until: `extract(epoch from now() + ${$('leaseMs', 'float8')} * interval '1 millisecond')::float8 * 1000`,
    order: `(select json_agg(${rowIdSql(t)}) from taken)`,
    ...facts,
  }
  const named = Object.entries(all).map(([name, fact]) => `'${name}', ${fact}`)
  return `select facts.*, claimed.*                 -- one row of facts, then the claimed rows
from (select json_build_object(
  ${named.join(',\n  ')}
)) as facts full join claimed on false`
}

/** The columns a scan selects: the key, the columns it is ordered by, and the size of the row. */
export function scanned(t: TableSql): string {
  const names = new Set([...t.key, ...t.order].map(({ name }) => name))
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
