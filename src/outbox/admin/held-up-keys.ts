/** Which ordering keys are held up by an event that failed, and why. */
import { type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { checkPageSize } from '../../operations/request-checks.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { TOO_MANY } from './browse.ts'
import { outboxOf, QUEUED } from './filter.ts'

export interface HeldUpKey {
  readonly orderingKey: string
  /** `parked`: until an operator unblocks it. `blocked`: its head has failed and waits for its retry. */
  readonly state: 'parked' | 'blocked'
  /** The head: everything else of the key waits for it. */
  readonly id: string
  readonly type: string
  readonly attempts: number
  readonly lastError: string | null
  /** The time of its next attempt; null while it is in flight, and for a parked one. */
  readonly availableAt: Date | null
  /** How many events wait for it, counted up to `MAX_WAITING`. */
  readonly waiting: number
}

export interface KeysHeldUp {
  /** Parked ones first, then by how often their head failed. */
  readonly keys: readonly HeldUpKey[]
  /** There are more than were asked for. */
  readonly more: boolean
  /** There are more than `MAX_KEYS` keys with unfinished events; the others were not examined. */
  readonly partial: boolean
}

export interface KeysOptions extends BrowseOptions {
  /** Default 20. */
  readonly limit?: number | undefined
}

/** How many waiting events of a key are counted at most. */
export const MAX_WAITING = 1_000

/** How many keys of a bucket are examined at most, at about 10 µs each. */
export const MAX_KEYS = 100_000

/** The ordering keys whose head has failed and holds up later events: blocked until its retry, or parked until an operator unblocks the key. */
export async function keysHeldUp(db: Database, options: KeysOptions = {}): Promise<KeysHeldUp> {
  const { schema, limit = 20 } = options
  checkPageSize(limit)
  return readOnly(db, options, { what: 'Finding keys that are held up', remedy: TOO_MANY }, async (tx) => {
    const keys: HeldUpKey[] = []
    let partial = false
    for (const bucket of await ownBuckets(tx, schema)) {
      const { found, walked } = await keysIn(tx, schema, bucket, limit)
      keys.push(...found)
      partial ||= walked >= MAX_KEYS
    }
    const parkedFirst = (key: HeldUpKey): number => (key.state === 'parked' ? 0 : 1)
    keys.sort((a, b) => parkedFirst(a) - parkedFirst(b) || b.attempts - a.attempts)
    return { keys: keys.slice(0, limit), more: keys.length > limit, partial }
  })
}

/** Walks from key to key in the index: one probe finds the next key and its head. */
async function keysIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  limit: number,
): Promise<{ readonly found: readonly HeldUpKey[]; readonly walked: number }> {
  const outbox = outboxOf(schema)
  const head = (
    step: string,
    after: string,
  ): string => `select ${step} as step, ordering_key, id, parked, attempts
    from ${outbox}
    where bucket = $1::smallint and ${QUEUED} ${after}
    order by ordering_key, id limit 1`
  const { rows } = await tx.query<
    Omit<HeldUpKey, 'id'> & { readonly id: string | null; readonly walked: number }
  >({
    text: `with recursive walk as (
  (${head('1', '')})
  union all
  select head.*
  from walk
  cross join lateral (
    ${head('walk.step + 1', 'and ordering_key > walk.ordering_key')}
  ) as head
  where walk.step < ${MAX_KEYS}
),
failing as (
  select step, ordering_key, id, parked, attempts from walk where parked or attempts > 0
  union all                                 -- an event that is being tried again
  select 0, ordering_key, id, parked, attempts from ${outbox}
  where bucket = $1::smallint and status = 'CLAIMED' and ordering_key is not null and attempts > 0
),
held_up as (
  select held.*, queue.waiting
  from (select * from failing order by parked desc, attempts desc) as held
  cross join lateral (
    select count(*)::int as waiting
    from (
      select from ${outbox} as o
      where o.bucket = $1::smallint and o.ordering_key = held.ordering_key and ${QUEUED}
        and o.id <> held.id and o.status <> 'DEAD'
      limit ${MAX_WAITING}
    ) as waits
  ) as queue
  where held.parked or queue.waiting > 0    -- a key with a single event, which fails, holds up nothing
  limit $2::int + 1
)
select walked.steps as walked, o.ordering_key as "orderingKey", o.id::text as id, o.event_type as type, o.attempts,
  case when o.parked then 'parked' else 'blocked' end as state, o.last_error as "lastError",
  case when o.status = 'PENDING' then o.available_at end as "availableAt", held_up.waiting
from (select count(*)::int as steps from walk) as walked
left join held_up on true
left join ${outbox} as o on o.bucket = $1::smallint and o.id = held_up.id`,
    values: [bucket, limit],
  })
  const [{ walked } = { walked: 0 }] = rows
  return {
    walked,
    found: rows.flatMap((row) => {
      const { orderingKey, id, type, attempts, state, lastError, availableAt, waiting } = row
      // A bucket without such keys has one row, which only says how far the walk went.
      return id === null ? [] : [{ orderingKey, state, id, type, attempts, lastError, availableAt, waiting }]
    }),
  }
}
