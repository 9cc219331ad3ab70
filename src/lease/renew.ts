import { and, type LeaseStatement, parameters, statement } from './statement.ts'
import { heldOf } from './table.ts'
import { among, fenced, heldLeases, inBucket, keyNames, rowIdSql, type TableSql } from './table-sql.ts'

/**
 * Extends every lease that is still ours and alive, and says of each whether it was. A row that another session has
 * locked (the handler's own transaction, an operator) is skipped and reported as busy, so that it does not delay the
 * renewal of the others. No index mentions the end of the lease, so that the update can be HOT.
 */
export function renew(t: TableSql): LeaseStatement {
  const $ = parameters()
  const held = heldOf(t.table)
  const alive = [
    ...fenced(t, $),
    `t.${t.until} > now()`,
    // `is true` hides the condition from the planner, which would leave the key for a partial index on it.
    held === undefined ? '' : `(${held}) is true`,
  ]
  return statement(
    t.table,
    'renew',
    $,
    `
with held as materialized (
  ${heldLeases(t, $)}
),
ours as materialized (              -- a row that another session has locked is skipped, and reported as busy
  select ${keyNames(t, 't.')}
  from ${t.target} as t
  where ${and(alive, '    ')}
  for no key update skip locked
),
renewed as (
  update ${t.target} as t
  set ${t.until} = greatest(t.${t.until}, now() + ${$('leaseMs', 'float8')} * interval '1 millisecond')
  where ${and([inBucket(t, $, 't.'), ...among(t, 'ours')], '    ')}
  returning ${keyNames(t, 't.')}
)
select ${rowIdSql(t)} as id, false as busy from renewed
union all
select ${rowIdSql(t, 't.')}, true
from ${t.target} as t
where ${and(['(select count(*) from ours) < (select count(*) from held)', ...alive, `((${keyNames(t, 't.')}) in (select ${keyNames(t)} from ours)) is not true`], '  ')}`,
  )
}
