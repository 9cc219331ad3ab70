import { LeaseholdError } from '../../errors.ts'
import { openLeaseStore } from '../../lease/store.ts'
import { type Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { bucketsOf, outboxOf } from './browse-buckets.ts'
import { RESET } from './replay-sql.ts'
import { outboxTable } from '../table.ts'

export interface UnblockRequest {
  readonly schema?: string | undefined
  readonly orderingKey: string
  /** Publish the parked event again, before those behind it. Default: it stays dead, and they go on without it. */
  readonly replay?: boolean | undefined
  /** Who decided so, and why: both are kept in the audit. */
  readonly principal: string
  readonly reason: string
}

export const UNBLOCK_ACTION = 'outbox.unblock'

/** Lets an ordering key go on that a dead event holds up. Says how many such events there were; 0 changes nothing. */
export async function unblock(db: Database, request: UnblockRequest): Promise<{ readonly parked: number }> {
  const { schema = 'leasehold', orderingKey, replay = false, principal, reason } = request
  refuseMissing({ orderingKey, principal, reason })
  const change = replay ? `${RESET}, available_at = now()` : 'parked = false'
  let parked = 0
  for (const bucket of await bucketsOf(db, schema)) {
    const store = await openLeaseStore(db, outboxTable({ schema }), { owner: 'operator', bucket })
    parked += await db.transaction(async (tx) => {
      const { rows } = await tx.query<{ event_id: string }>({
        text: `update ${outboxOf(schema)} set ${change}
where bucket = $1 and ordering_key = $2 and parked returning event_id`,
        values: [bucket, orderingKey],
      })
      if (rows.length === 0) return 0
      await store.advance({ keys: [orderingKey], tx })
      const details = { reason, replay, events: rows.map((row) => row.event_id) }
      await tx.query({
        text: `insert into ${quoteQualified(schema, 'audit')} (principal, action, target, details) values ($1, $2, $3, $4)`,
        values: [principal, UNBLOCK_ACTION, orderingKey, JSON.stringify(details)],
      })
      await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('outbox')` })
      return rows.length
    })
  }
  return { parked }
}

function refuseMissing(given: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(given)) {
    if (typeof value === 'string' && value.trim() !== '') continue
    throw new LeaseholdError('REQUEST_INVALID', `${name} is ${JSON.stringify(value)}.`, {
      remedy: 'Give the ordering key, who unblocks it, and why.',
    })
  }
}
