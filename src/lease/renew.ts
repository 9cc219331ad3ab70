import type { BatchStatements } from './settle.ts'
import { and, type Parameters, parameters, statement } from './statement.ts'
import { leasedCondition } from './table.ts'
import { among, held, inBucket, lockHeld, rowIdSql, type TableSql } from './table-sql.ts'

/** Extends every lease that is still ours and alive. No index mentions the end of the lease, so that the update can be HOT. */
export function renew(t: TableSql): BatchStatements {
  const leased = leasedCondition(t.table)
  const alive = [
    `t.${t.until} > now()`,
    // `is true` hides the condition from the planner, which would leave the id for a partial index on it.
    leased === undefined ? '' : `(${leased}) is true`,
  ]
  const $: Parameters = parameters()
  const change = statement(
    t.table,
    'renew',
    $,
    `
with ${lockHeld(t, $, alive)}
update ${t.target} as t
set ${t.until} = greatest(t.${t.until}, now() + ${$('leaseMs', 'float8')} * interval '1 millisecond')
where ${and([inBucket(t, $, 't.'), ...among(t, 'ours')], '  ')}
returning ${rowIdSql(t, 't.')}`,
  )
  return { change, held: held(t, 'held to renew', () => alive) }
}
