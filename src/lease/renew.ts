import { and, type LeaseStatement, parameters, statement } from './statement.ts'
import { leasedCondition } from './table.ts'
import { among, changedAndBusy, idNames, inBucket, lockHeld, type TableSql } from './table-sql.ts'

/**
 * Extends every lease that is still ours and alive, and says of each whether it was. No index mentions the end of the
 * lease, so that the update can be HOT.
 */
export function renew(t: TableSql): LeaseStatement {
  const $ = parameters()
  const leased = leasedCondition(t.table)
  const alive = [
    `t.${t.until} > now()`,
    // `is true` hides the condition from the planner, which would leave the id for a partial index on it.
    leased === undefined ? '' : `(${leased}) is true`,
  ]
  return statement(
    t.table,
    'renew',
    $,
    `
with ${lockHeld(t, $, alive)},
renewed as (
  update ${t.target} as t
  set ${t.until} = greatest(t.${t.until}, now() + ${$('leaseMs', 'float8')} * interval '1 millisecond')
  where ${and([inBucket(t, $, 't.'), ...among(t, 'ours')], '    ')}
  returning ${idNames(t, 't.')}
)
${changedAndBusy(t, $, 'renewed', alive)}`,
  )
}
