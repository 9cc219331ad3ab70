/**
 * Every statement of a lease table, generated once. Three habits keep their plans where they are, whatever the
 * statistics say (docs/decisions/002-plans.md):
 * - Rows are reached by `id = any (array(select …))`. The planner takes such an array for ten elements, always, and
 *   stays on the index of the id; a known array of 500, or a join, becomes a sequential scan on a small table.
 * - What must match row by row is compared by `((…) in (select …)) is true`. With `is true` it stays a hashed subplan,
 *   one probe a row; as a join it can become a nested loop, 100 million comparisons for a batch of 10,000.
 * - The limit of a scan is `(select $n)`: a bare `limit $n` is a known number in a custom plan and a tenth of the table in
 *   a generic one. So is an array that is unnested: one of one element would make a custom plan look cheaper, and every
 *   call be planned.
 *
 * `now()` is the start of the transaction. In a transaction of the caller's it is early, so that a lease is at worst too
 * short and an expired lease at worst not seen yet.
 */
import { leasedBuckets, waitingBuckets } from './buckets.ts'
import { claimByGroup, claimKeysByGroup } from './claim-by-group.ts'
import { claimArrivedKeys, claimNextOfKeys } from './claim-by-key.ts'
import { claimInOrder, type ClaimStatements } from './claim-in-order.ts'
import { claimRows, claimSuspects } from './claim-rows.ts'
import type { TableShape } from './inspect.ts'
import { nextDue } from './next-due.ts'
import { findExpired, reap } from './reap.ts'
import { renew } from './renew.ts'
import { type BatchStatements, release, settle } from './settle.ts'
import type { LeaseStatement } from './statement.ts'
import type { LeaseTable, OutcomeSql } from './table.ts'
import { tableSql } from './table-sql.ts'

/** How a scan finds rows: those without an ordering key along the claim index, or the keys of those that have one. */
export type Way = 'order' | 'key'

export interface LeaseStatements {
  /** Of the ways that the table needs. */
  readonly scans: ReadonlyMap<Way, ClaimStatements>
  /** Of a table with ordering keys and without groups. */
  readonly nextOfKeys: ClaimStatements | undefined
  readonly claimRows: LeaseStatement
  /** Of a table that counts expiries. */
  readonly claimSuspects: ClaimStatements | undefined
  readonly nextDue: LeaseStatement | undefined
  readonly renew: BatchStatements
  readonly release: BatchStatements
  readonly reap: { readonly expired: LeaseStatement; readonly 'owned by': LeaseStatement }
  readonly findExpired: { readonly expired: LeaseStatement; readonly 'owned by': LeaseStatement }
  /** Of a table with buckets, for a worker that serves all of them. */
  readonly buckets: { readonly waiting: LeaseStatement; readonly leased: LeaseStatement } | undefined
  /** By outcome. */
  readonly settle: ReadonlyMap<string, BatchStatements>
}

export function leaseStatements(table: LeaseTable, shape: TableShape): LeaseStatements {
  const t = tableSql(table, shape)
  const outcomes: Readonly<Record<string, OutcomeSql>> = t.table.outcomes
  const scans = new Map<Way, ClaimStatements>()
  if (t.orderingKey !== undefined)
    scans.set('key', t.group === undefined ? claimArrivedKeys(t) : claimKeysByGroup(t))
  scans.set('order', t.group === undefined ? claimInOrder(t) : claimByGroup(t))
  return {
    scans,
    nextOfKeys: t.orderingKey === undefined || t.group !== undefined ? undefined : claimNextOfKeys(t),
    claimRows: claimRows(t),
    claimSuspects: claimSuspects(t),
    nextDue: nextDue(t),
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
  const { scans, nextOfKeys, reap: reaps, findExpired: finds, settle: outcomes } = statements
  const claims = [nextOfKeys, ...scans.values(), statements.claimSuspects].filter(
    (each) => each !== undefined,
  )
  const batches = [...outcomes.values(), statements.release, statements.renew]
  const all = [
    ...claims.flatMap(({ claim, find }) => [claim, find]),
    statements.claimRows,
    statements.nextDue,
    ...batches.flatMap(({ change, held }) => [change, held]),
    ...Object.values(reaps),
    ...Object.values(finds),
    ...Object.values(statements.buckets ?? {}),
  ]
  return [
    ...new Map(all.flatMap((each) => (each === undefined ? [] : [[each.name, each] as const]))).values(),
  ]
}
