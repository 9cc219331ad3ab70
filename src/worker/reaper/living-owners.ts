/** Which owners of expired leases live, and are to give their rows back themselves (D10). */
import { type Clock, systemClock } from '../../clock.ts'
import type { LivingOwners } from '../../lease/store.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { isDatabaseAway } from '../events.ts'
import { RECONNECT_MS } from './dead-workers.ts'

export interface OwnersWatch {
  find(): Promise<LivingOwners>
  /** The database did not answer. */
  lost(): void
}

interface Found {
  readonly owners: readonly string[]
  readonly is_back: boolean
}

/**
 * `RECONNECT_MS` is also how long an owner has to give its rows back once their leases have expired. A process
 * that was heard of within that time lives. For as long after an outage so does every process that was not declared dead:
 * it could not have been heard of. An outage shows in statements that fail here, and in the start of the server. No session
 * is needed for that, so it works through every pooler.
 */
export function createOwnersWatch(db: Queryable, schema: string, clock: Clock = systemClock): OwnersWatch {
  let lostAt = Number.NEGATIVE_INFINITY
  async function read(isBack: boolean): Promise<Found | undefined> {
    const { rows } = await db.query<Found>({
      text: `
with server as (
  select $2::bool or pg_postmaster_start_time() > now() - $1::float8 * interval '1 millisecond' as is_back
)
select is_back, array(
  select id from ${quoteQualified(schema, 'workers')}
  where stopped_at is null and died_at is null
    and (is_back or last_seen_at > now() - $1::float8 * interval '1 millisecond')
) as owners
from server`,
      values: [RECONNECT_MS, isBack],
    })
    return rows[0]
  }
  return {
    async find() {
      try {
        const found = await read(clock.monotonicNow() - lostAt < RECONNECT_MS)
        const graceMs = found?.is_back === true ? Number.POSITIVE_INFINITY : RECONNECT_MS
        return { owners: found?.owners ?? [], graceMs }
      } catch (error) {
        if (isDatabaseAway(error)) this.lost()
        throw error
      }
    },
    lost() {
      lostAt = clock.monotonicNow()
    },
  }
}
