/** Which ordering keys do not move, and why. */
import type { BrowseOptions } from '../../operator/looking.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { looking } from './browse.ts'
import { bucketsOf, bundlesOf, notedIds, outboxOf } from './browse-buckets.ts'

export interface HeldUpKey {
  readonly orderingKey: string
  /** `parked`: until somebody unblocks it. `blocked`: its first event fails, and is tried again. */
  readonly state: 'parked' | 'blocked'
  /** The event that everything else of the key waits for. */
  readonly id: string
  readonly type: string
  readonly attempts: number
  readonly lastError: string | null
  /** When it is tried again; null while it is being tried, and for a parked one. */
  readonly availableAt: Date | null
  /** How many events wait behind it, counted up to `MOST_WAITING`. */
  readonly waiting: number
}

export interface KeysHeldUp {
  /** Parked ones first, then by how often their first event failed. */
  readonly keys: readonly HeldUpKey[]
  /** There are more than were asked for. */
  readonly more: boolean
}

export interface KeysOptions extends BrowseOptions {
  /** Default 20. */
  readonly limit?: number | undefined
}

/** From this on nobody counts further: 100,000 events behind one key are no news any more. */
export const MOST_WAITING = 1_000

/**
 * So many of the events that wait longest are looked at for one that has failed: a failed one is put off, so it stands
 * at the far end of the bundles, and a long backlog of fresh ones is not read for it.
 */
const LOOKED_AT = 50_000

export async function keysHeldUp(db: Database, options: KeysOptions = {}): Promise<KeysHeldUp> {
  const { schema, limit = 20 } = options
  return looking(db, options, 'looking for keys that are held up', async (tx) => {
    const keys: HeldUpKey[] = []
    for (const bucket of await bucketsOf(tx, schema)) keys.push(...(await keysIn(tx, schema, bucket, limit)))
    const parkedFirst = (key: HeldUpKey): number => (key.state === 'parked' ? 0 : 1)
    keys.sort((a, b) => parkedFirst(a) - parkedFirst(b) || b.attempts - a.attempts)
    return { keys: keys.slice(0, limit), more: keys.length > limit }
  })
}

async function keysIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  limit: number,
): Promise<HeldUpKey[]> {
  const outbox = outboxOf(schema)
  const { rows } = await tx.query<HeldUpKey>({
    text: `with parked as materialized (
  select distinct on (ordering_key) ordering_key, 'parked' as state, id, event_type, attempts, last_error, available_at
  from ${outbox}
  where bucket = $1::smallint and indexed_status = 'DEAD' and parked and ordering_key is not null
  order by ordering_key, id
),
failing as materialized (
  select * from (
    (select ordering_key, 'blocked' as state, id, event_type, attempts, last_error, available_at
    from ${outbox}
    where bucket = $1::smallint and available_at is not null and not behind
      and id = any (array(
        select unnest(rows) from (
          select rows from ${bundlesOf(schema)} where bucket = $1::smallint order by at desc limit ${LOOKED_AT}
        ) as latest limit ${LOOKED_AT}
      )))
    union all
    (select ordering_key, 'blocked', id, event_type, attempts, last_error, available_at
    from ${outbox}
    where bucket = $1::smallint and id = any (${notedIds(schema, '$1::smallint')}) and status = 'CLAIMED'
    limit ${LOOKED_AT})
  ) as candidates
  where attempts > 0 and ordering_key is not null
    and ordering_key not in (select ordering_key from parked)
),
held as (
  (select * from parked limit $2::int + 1)
  union all
  (select * from failing order by attempts desc, id)
)
select held.ordering_key as "orderingKey", held.state, held.id::text as id, held.event_type as type, held.attempts,
  held.last_error as "lastError", held.available_at as "availableAt", behind.waiting
from held cross join lateral (
  select count(*)::int as waiting from (
    select from ${outbox} as o
    where o.bucket = $1::smallint and o.ordering_key = held.ordering_key
      and (o.indexed_status in ('PENDING', 'CLAIMED') or o.parked) and o.id <> held.id and o.status <> 'DEAD'
    limit ${MOST_WAITING}
  ) as line
) as behind
where held.state = 'parked' or behind.waiting > 0
limit $2::int + 1`,
    values: [bucket, limit],
  })
  return rows
}
