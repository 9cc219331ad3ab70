/** How much is in each state, and how long the oldest event has waited: asked often, so never by reading the table. */
import { type Count, COUNTED, countRest, countUpTo, estimate, sum } from '../../operator/counting.ts'
import type { BrowseOptions } from '../../operator/looking.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { looking } from './browse.ts'
import { bucketsOf, bundlesOf, notedIds, outboxOf } from './browse-buckets.ts'
import type { Status } from '../transitions.ts'

export type StatusCounts = Readonly<Record<Status, Count>>

export interface OldestPending {
  readonly id: string
  readonly type: string
  readonly orderingKey: string | null
  readonly availableAt: Date
  /** How long it could have been claimed already, by the clock of the database. */
  readonly waitingMs: number
}

/** Each in the words of a partial index. Behind another event stands only what has a key. */
const PARTS = {
  pendingBehind:
    "behind and ordering_key is not null and (indexed_status in ('PENDING', 'CLAIMED') or parked)",
  dead: "indexed_status = 'DEAD'",
} as const

/** No index knows these; the bundles name them. */
const CLAIMABLE = 'available_at is not null and not behind'

/**
 * What waits behind others and what is dead is counted along its partial index, up to a hundred thousand of each; what
 * can be claimed by the bundles that name it, and what is claimed by the notes of claims. What is published has no index, because nothing but this would use it: in a large table it is what remains of the estimated
 * number of rows.
 */
export async function countByStatus(db: Database, options: BrowseOptions = {}): Promise<StatusCounts> {
  const outbox = outboxOf(options.schema)
  return looking(db, options, 'counting the events', async (tx) => {
    const first = await countClaimable(tx, options.schema)
    const behind = await countUpTo(tx, outbox, PARTS.pendingBehind)
    const claimed = await countClaimed(tx, options.schema)
    const dead = await countUpTo(tx, outbox, PARTS.dead)
    const pending = sum([first, behind])
    const published = await countRest(tx, outbox, "status = 'PUBLISHED'", [pending, claimed, dead])
    return { PENDING: pending, CLAIMED: claimed, PUBLISHED: published, DEAD: dead }
  })
}

/** The event that could have been claimed for the longest time; undefined when none can. */
export async function oldestPending(
  db: Database,
  options: BrowseOptions = {},
): Promise<OldestPending | undefined> {
  const { schema } = options
  return looking(db, options, 'looking for the oldest pending event', async (tx) => {
    let oldest: OldestPending | undefined
    for (const bucket of await bucketsOf(tx, schema)) {
      const { rows } = await tx.query<OldestPending>({
        text: `select o.id::text as id, event_type as type, ordering_key as "orderingKey",
  available_at as "availableAt", (extract(epoch from now() - available_at) * 1000)::float8 as "waitingMs"
from (
  select rows from ${bundlesOf(schema)} where bucket = $1::smallint and at <= now() order by at, id
) as bundle
cross join lateral (
  select * from ${outboxOf(schema)}
  where bucket = $1::smallint and id = any (bundle.rows) and ${CLAIMABLE} and available_at <= now()
  order by available_at, id limit 1
) as o
limit 1`,
        values: [bucket],
      })
      const [first] = rows
      if (first !== undefined && (oldest === undefined || first.waitingMs > oldest.waitingMs)) oldest = first
    }
    return oldest
  })
}

/** No more than all relays together have slots and prefetch for. */
async function countClaimed(tx: Queryable, schema: string | undefined): Promise<Count> {
  let count = 0
  for (const bucket of await bucketsOf(tx, schema)) {
    const { rows } = await tx.query<{ count: number }>({
      text: `select count(*)::int as count from ${outboxOf(schema)}
where bucket = $1::smallint and id = any (${notedIds(schema, '$1::smallint')}) and status = 'CLAIMED'`,
      values: [bucket],
    })
    count += rows[0]?.count ?? 0
  }
  return { count, exact: true }
}

/** Looked up one by one, up to a hundred thousand; beyond that, what the bundles say. */
async function countClaimable(tx: Queryable, schema: string | undefined): Promise<Count> {
  const [outbox, bundles] = [outboxOf(schema), bundlesOf(schema)]
  const { rows } = await tx.query<{ seen: number; named: number }>({
    text: `select count(*)::int as seen, coalesce(sum(cardinality(rows)), 0)::int as named
from (select rows from ${bundles} limit $1::int) as seen`,
    values: [COUNTED],
  })
  const { seen = 0, named = 0 } = rows[0] ?? {}
  if (named >= COUNTED) {
    const all = seen < COUNTED ? seen : Math.max(COUNTED, await estimate(tx, bundles, 'true'))
    return { count: Math.round((named / seen) * all), exact: false }
  }
  let count = 0
  for (const bucket of await bucketsOf(tx, schema)) {
    const { rows: found } = await tx.query<{ count: number }>({
      text: `select count(*)::int as count from ${outbox}
where bucket = $1::smallint and id = any (array(select unnest(rows) from ${bundles} where bucket = $1::smallint)) and ${CLAIMABLE}`,
      values: [bucket],
    })
    count += found[0]?.count ?? 0
  }
  return { count, exact: true }
}
