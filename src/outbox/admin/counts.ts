/** How many events are in each state, and how long the oldest has waited. Asked often, so never by reading the table. */
import { type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { type Count, countRemaining, countUpTo, sumCounts } from '../../operations/count.ts'
import { oldestPending as oldestRow } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import { TOO_MANY } from './browse.ts'
import { outboxOf, QUEUED } from './filter.ts'
import { outboxTable } from '../table.ts'
import type { Status } from '../transitions.ts'

export type StatusCounts = Readonly<Record<Status, Count>>

export interface OldestPending {
  readonly id: string
  readonly type: string
  readonly orderingKey: string | null
  readonly availableAt: Date
  /** For how long it could have been claimed, by the clock of the database. */
  readonly waitingMs: number
}

/** Each condition is written in the words of a partial index, with its order, so that PostgreSQL uses that index. */
const BY_INDEX = {
  pending: ["status = 'PENDING' and ordering_key is null and expiries < 2", 'bucket, available_at, id'],
  suspects: ["status = 'PENDING' and ordering_key is null and expiries >= 2", 'bucket, available_at, id'],
  keyed: [`status = 'PENDING' and ${QUEUED}`, 'bucket, ordering_key, id'],
  claimed: ["status = 'CLAIMED'", 'bucket, ordering_key'],
  dead: ["status = 'DEAD'", 'bucket, id'],
} as const

/**
 * Counted along partial indexes, up to a hundred thousand of each. Published events have no index, because nothing but
 * this would use it: in a large table they are what remains of the estimated number of rows.
 */
export async function countByStatus(db: Database, options: BrowseOptions = {}): Promise<StatusCounts> {
  const outbox = outboxOf(options.schema)
  return readOnly(db, options, { what: 'Counting the events', remedy: TOO_MANY }, async (tx) => {
    const count = async ([where, order]: readonly [string, string]): Promise<Count> =>
      countUpTo(tx, outbox, where, order)
    const pending = sumCounts([
      await count(BY_INDEX.pending),
      await count(BY_INDEX.suspects),
      await count(BY_INDEX.keyed),
    ])
    const claimed = await count(BY_INDEX.claimed)
    const dead = await count(BY_INDEX.dead)
    const published = await countRemaining(tx, outbox, "status = 'PUBLISHED'", [pending, claimed, dead])
    return { PENDING: pending, CLAIMED: claimed, PUBLISHED: published, DEAD: dead }
  })
}

/** The event that could have been claimed for the longest time; undefined when none can. */
export async function oldestPending(
  db: Database,
  options: BrowseOptions = {},
): Promise<OldestPending | undefined> {
  const { schema } = options
  return readOnly(db, options, { what: 'Finding the oldest pending event', remedy: TOO_MANY }, async (tx) => {
    const oldest = await oldestRow(tx, outboxTable({ schema }))
    if (oldest === undefined) return undefined
    const { rows } = await tx.query<Omit<OldestPending, 'waitingMs'>>({
      text: `select id::text as id, event_type as type, ordering_key as "orderingKey", available_at as "availableAt"
from ${outboxOf(schema)} where bucket = $1::smallint and id = $2::bigint`,
      values: [oldest.bucket, oldest.id],
    })
    // Retention may have deleted it in between.
    return rows[0] && { ...rows[0], waitingMs: oldest.ageSeconds * 1_000 }
  })
}
