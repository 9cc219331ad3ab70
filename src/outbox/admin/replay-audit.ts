/**
 * What the audit knows of a replay.
 *
 * Rows of the audit are only ever added, and a replay may die half way. So each batch adds one entry, in its own
 * transaction, with everything there is to say up to then: who, why, which events, how many so far. The last entry of
 * a replay has `finishedAt`; where it has not, the replay was stopped or died after exactly that batch, and can be gone
 * on with. The common replay of a few events is one batch, and therefore one entry.
 */
import { audit } from '../../admin/audit.ts'
import { LeaseholdError } from '../../errors.ts'
import { isUuid } from '../../admin/request-checks.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { EventFilter } from './browse-filter.ts'
import type { Place, Replayable } from './replay-sql.ts'

export const REPLAY_ACTION = 'outbox.replay'

export interface ReplayRecord {
  /** Names the replay: the same in all of its entries. */
  readonly replay: string
  readonly reason: string
  readonly filter: EventFilter
  readonly statuses: readonly Replayable[]
  readonly rate: number | null
  readonly limit: number | null
  /** How many events were meant when it began. */
  readonly matched: number
  /** How many were replayed so far, this batch included. */
  readonly replayed: number
  readonly firstId: string | null
  readonly lastId: string | null
  /** Seconds since 1970: the state of the table that is meant. */
  readonly asOf: number
  /** Where each bucket ended when the replay began. */
  readonly upTo: readonly Place[]
  /** Up to here, in the order of buckets and ids, everything is done; null before the first batch. */
  readonly place: Place | null
  /** The next free moment under the rate, in seconds since 1970. */
  readonly nextDue: number
  readonly startedAt: string
  readonly finishedAt: string | null
}

export async function recordReplay(
  tx: Queryable,
  schema: string,
  principal: string,
  record: ReplayRecord,
): Promise<void> {
  const { ids } = record.filter
  const target = ids?.length === 1 ? (ids[0] ?? null) : null
  await audit(tx, schema, { principal, action: REPLAY_ACTION, target, details: { ...record, dryRun: false } })
}

/** Where a replay that was stopped or died has got to. */
export async function readReplay(db: Queryable, schema: string, replay: string): Promise<ReplayRecord> {
  const { rows } = isUuid(replay)
    ? await db.query<{ details: ReplayRecord & { filter: StoredFilter } }>({
        text: `select details from ${quoteQualified(schema, 'audit')}
where action = $1 and details ->> 'replay' = $2 order by id desc limit 1`,
        values: [REPLAY_ACTION, replay.toLowerCase()],
      })
    : { rows: [] }
  const record = rows[0]?.details
  if (record === undefined) {
    throw new LeaseholdError('EVENT_NOT_FOUND', `No replay has the id ${JSON.stringify(replay)}.`, {
      remedy: `The audit has it: select at, principal, details from ${schema}.audit where action = '${REPLAY_ACTION}'.`,
    })
  }
  if (record.finishedAt !== null) {
    throw new LeaseholdError(
      'REQUEST_INVALID',
      `The replay ${replay} is finished since ${record.finishedAt}.`,
      {
        remedy: 'To replay the same events once more, start a new one.',
      },
    )
  }
  return { ...record, filter: revived(record.filter) }
}

type StoredFilter = Omit<EventFilter, 'from' | 'to'> & { readonly from?: string; readonly to?: string }

function revived({ from, to, ...rest }: StoredFilter): EventFilter {
  return {
    ...rest,
    ...(from === undefined ? {} : { from: new Date(from) }),
    ...(to === undefined ? {} : { to: new Date(to) }),
  }
}
