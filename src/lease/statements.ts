/**
 * Every statement of a lease table, generated once. Three habits keep their plans where they are, whatever the
 * statistics say (docs/decisions/002-plans.md):
 * - Rows are reached by `id = any (array(select …))`. The planner takes such an array for ten elements, always, and
 *   stays on the index of the id; a known array of 500, or a join, becomes a sequential scan on a small table.
 * - What must match row by row is compared by `((…) in (select …)) is true`. With `is true` it stays a hashed subplan,
 *   one probe a row; as a join it can become a nested loop, 100 million comparisons for a batch of 10,000.
 * - The limit of a scan is `(select $n)`: a bare `limit $n` is a known number in a custom plan and a tenth of the table in
 *   a generic one.
 *
 * `now()` is the start of the transaction. In a transaction of the caller's it is early, so that a lease is at worst too
 * short and an expired lease at worst not seen yet.
 */
import { leasedBuckets, waitingBuckets } from './buckets.ts'
import { claimByGroup, findByGroup } from './claim-by-group.ts'
import { claimByKey, findByKey } from './claim-by-key.ts'
import { claimInOrder, findInOrder } from './claim-in-order.ts'
import { claimRows } from './claim-rows.ts'
import type { TableShape } from './inspect.ts'
import { findExpired, reap } from './reap.ts'
import { renew } from './renew.ts'
import { release, settle } from './settle.ts'
import type { LeaseStatement } from './statement.ts'
import type { LeaseTable, OutcomeSql } from './table.ts'
import { tableSql } from './table-sql.ts'

/** How a claim finds rows: along the claim index, by ordering key, or by group. */
export type Way = 'order' | 'key' | 'group'

export interface ClaimStatements {
  readonly claim: LeaseStatement
  /** The same together with the settlement of finished rows; absent for groups, whose room changes with it. */
  readonly settleAndClaim: LeaseStatement | undefined
  /** The rows it would take, without taking them. */
  readonly find: LeaseStatement
}

export interface LeaseStatements {
  readonly ways: ReadonlyMap<Way, ClaimStatements>
  readonly claimRows: LeaseStatement
  readonly renew: LeaseStatement
  readonly release: LeaseStatement
  readonly reap: { readonly expired: LeaseStatement; readonly 'owned by': LeaseStatement }
  readonly findExpired: { readonly expired: LeaseStatement; readonly 'owned by': LeaseStatement }
  /** Of a table with buckets, for a worker that serves all of them. */
  readonly buckets: { readonly waiting: LeaseStatement; readonly leased: LeaseStatement } | undefined
  /** By outcome. */
  readonly settle: ReadonlyMap<string, LeaseStatement>
}

/** The outcome of success: the only one that is settled together with the next claim. */
export const SUCCESS = 'done'

export function leaseStatements(table: LeaseTable, shape: TableShape): LeaseStatements {
  const t = tableSql(table, shape)
  const outcomes: Readonly<Record<string, OutcomeSql>> = table.outcomes
  const done = outcomes[SUCCESS]
  const success = done?.when === undefined ? done : undefined
  const ways = new Map<Way, ClaimStatements>()
  if (t.group !== undefined) {
    ways.set('group', { claim: claimByGroup(t), settleAndClaim: undefined, find: findByGroup(t) })
  } else {
    if (t.orderingKey !== undefined)
      ways.set('key', {
        claim: claimByKey(t),
        settleAndClaim: success && claimByKey(t, success),
        find: findByKey(t),
      })
    ways.set('order', {
      claim: claimInOrder(t),
      settleAndClaim: success && claimInOrder(t, success),
      find: findInOrder(t),
    })
  }
  return {
    ways,
    claimRows: claimRows(t),
    renew: renew(t),
    release: release(t),
    reap: { expired: reap(t, 'expired'), 'owned by': reap(t, 'owned by') },
    findExpired: { expired: findExpired(t, 'expired'), 'owned by': findExpired(t, 'owned by') },
    buckets: t.bucket && { waiting: waitingBuckets(t), leased: leasedBuckets(t) },
    settle: new Map(Object.entries(outcomes).map(([name, outcome]) => [name, settle(t, name, outcome)])),
  }
}

/** Every statement, for those who check all of them. */
export function allStatements(statements: LeaseStatements): LeaseStatement[] {
  const {
    ways,
    claimRows: rows,
    renew: renewal,
    release: released,
    reap: reaps,
    findExpired: finds,
  } = statements
  const claims = [...ways.values()].flatMap(({ claim, settleAndClaim, find }) =>
    settleAndClaim === undefined ? [claim, find] : [claim, settleAndClaim, find],
  )
  return [
    ...claims,
    rows,
    renewal,
    released,
    ...statements.settle.values(),
    ...Object.values(reaps),
    ...Object.values(finds),
    ...Object.values(statements.buckets ?? {}),
  ]
}
