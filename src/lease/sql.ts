/**
 * Every statement of the kernel, generated once for a table and prepared under its name.
 *
 * Names that begin with `@` are ours, so that no column a user names in a fragment can be ambiguous: `@k1…` the
 * key, `@o1…` the order, `@token`, `@owner`.
 *
 * Three habits keep the plans where they are, whatever the statistics say (docs/decisions/002-plans.md):
 * - Rows are reached by `key = any (array(select …))`. The planner takes such an array for ten elements, always,
 *   and stays on the key's index; a known array of 500, or a join, becomes a sequential scan on a small table.
 * - What must match row by row is compared by `((…) in (select …)) is true`. With `is true` it stays a hashed subplan,
 *   one probe a row; as a join it can become a nested loop, 100 million comparisons for a batch of 10,000.
 * - The limit of a claim is `(select $n)` over a constant cap. A bare `limit $n` is a known number in a custom plan
 *   and a tenth of the table in a generic one; this is a tenth of at most ten thousand in both.
 *
 * `now()` is the start of the transaction. In a transaction of the caller's it is early, so that a lease is at worst
 * too short and an expired lease at worst not seen yet.
 */
import { claim, exchange } from './claim-sql.ts'
import { reap, release, renew, settle } from './held-sql.ts'
import type { TableShape } from './inspect.ts'
import { linesOf, sweep } from './line-sql.ts'
import { partsOf } from './parts.ts'
import type { LeaseStatement } from './statement.ts'
import type { LeaseTable, Outcome } from './table.ts'

export { MAX_BATCH } from './look-sql.ts'

/** A statement that looks for rows: from the start, or from a place where the order has one direction. */
export interface LookStatements {
  readonly start: LeaseStatement
  readonly place: LeaseStatement | undefined
}

export interface LeaseStatements {
  readonly claim: LookStatements
  readonly renew: LeaseStatement
  readonly release: LeaseStatement
  readonly reap: LeaseStatement
  readonly reapOwnedBy: LeaseStatement
  /** By outcome. */
  readonly settle: ReadonlyMap<string, LeaseStatement>
  readonly exchange: ReadonlyMap<string, LookStatements>
  /** Where rows stand in lines: for some keys, or from key to key. */
  readonly advance:
    | { readonly keys: LeaseStatement; readonly start: LeaseStatement; readonly place: LeaseStatement }
    | undefined
}

export function leaseStatements(table: LeaseTable, shape: TableShape): LeaseStatements {
  const parts = partsOf(table, shape)
  // A place is one in the whole table; where there are lanes, each would have its own.
  const ascending = table.lanes === undefined && table.order.every(({ direction }) => direction === 'asc')
  const outcomes = Object.entries(table.outcomes)
  const lines = linesOf(parts)
  return {
    claim: { start: claim(parts, 'start'), place: ascending ? claim(parts, 'place') : undefined },
    renew: renew(parts),
    release: release(parts),
    reap: reap(parts, 'expired'),
    reapOwnedBy: reap(parts, 'ownedBy'),
    settle: new Map(outcomes.map(([outcome, declared]) => [outcome, settle(parts, outcome, declared)])),
    exchange: new Map(outcomes.map(([outcome, declared]) => [outcome, exchanges(outcome, declared)])),
    advance:
      lines === undefined
        ? undefined
        : {
            keys: sweep(parts, lines, 'keys'),
            start: sweep(parts, lines, 'start'),
            place: sweep(parts, lines, 'place'),
          },
  }

  function exchanges(outcome: string, declared: Outcome): LookStatements {
    return {
      start: exchange(parts, outcome, declared, 'start'),
      place: ascending ? exchange(parts, outcome, declared, 'place') : undefined,
    }
  }
}

/** Every statement, for those who look at all of them. */
export function allStatements(statements: LeaseStatements): LeaseStatement[] {
  const { claim, renew, release, reap, reapOwnedBy, settle, exchange, advance } = statements
  const looks = [claim, ...exchange.values()].flatMap(({ start, place }) =>
    place === undefined ? [start] : [start, place],
  )
  const sweeps = advance === undefined ? [] : Object.values(advance)
  return [...looks, renew, release, reap, reapOwnedBy, ...settle.values(), ...sweeps]
}
