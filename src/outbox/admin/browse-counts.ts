/** How much is in each state, and how long the oldest event has waited: asked often, so never by reading the table. */
import { oldestPending as oldestRow } from '../../lease/backlog.ts'
import { type Count, countRest, countUpTo, sum } from '../../admin/counting.ts'
import type { BrowseOptions } from '../../admin/looking.ts'
import type { Database } from '../../postgres/database.ts'
import { looking } from './browse.ts'
import { outboxOf, UNFINISHED } from './browse-buckets.ts'
import { outboxTable } from '../table.ts'
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

/** Each in the words of a partial index, and in its order: then no estimate leads away from it. */
const BY_INDEX = {
  pending: ["status = 'PENDING' and ordering_key is null and expiries < 2", 'bucket, available_at, id'],
  suspects: ["status = 'PENDING' and ordering_key is null and expiries >= 2", 'bucket, available_at, id'],
  keyed: [`status = 'PENDING' and ${UNFINISHED}`, 'bucket, ordering_key, id'],
  claimed: ["status = 'CLAIMED'", 'bucket, ordering_key'],
  dead: ["status = 'DEAD'", 'bucket, id'],
} as const

/**
 * Counted along partial indexes, up to a hundred thousand of each. Published events have no index, because nothing but
 * this would use it: in a large table they are what remains of the estimated number of rows.
 */
export async function countByStatus(db: Database, options: BrowseOptions = {}): Promise<StatusCounts> {
  const outbox = outboxOf(options.schema)
  return looking(db, options, 'counting the events', async (tx) => {
    const count = async ([where, order]: readonly [string, string]): Promise<Count> =>
      countUpTo(tx, outbox, where, order)
    const pending = sum([
      await count(BY_INDEX.pending),
      await count(BY_INDEX.suspects),
      await count(BY_INDEX.keyed),
    ])
    const claimed = await count(BY_INDEX.claimed)
    const dead = await count(BY_INDEX.dead)
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
    const oldest = await oldestRow(tx, outboxTable({ schema }))
    if (oldest === undefined) return undefined
    const { rows } = await tx.query<Omit<OldestPending, 'waitingMs'>>({
      text: `select id::text as id, event_type as type, ordering_key as "orderingKey", available_at as "availableAt"
from ${outboxOf(schema)} where bucket = $1::smallint and id = $2::bigint`,
      values: [oldest.bucket, oldest.id],
    })
    // It may have been removed meanwhile.
    return rows[0] && { ...rows[0], waitingMs: oldest.ageSeconds * 1_000 }
  })
}
