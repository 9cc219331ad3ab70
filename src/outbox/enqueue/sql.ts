import { quoteLiteral, quoteQualified } from '../../postgres/identifiers.ts'

/**
 * Writes one event. The function keeps the plan of its INSERT in every session of the server, so that a driver or a pooler
 * without prepared statements pays for it as well (docs/decisions/009-cost-of-an-event.md).
 */
export function enqueueOneSql(schema: string): string {
  return `/* leasehold:enqueue outbox */
select ${quoteQualified(schema, 'enqueue_event')}($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text) as event`
}

/**
 * Writes events in the order given. `$1` is a JSON text, because that is one parameter for every driver, whatever the
 * number of events. It answers with the events that were written, and with those that exist already.
 */
export function enqueueManySql(schema: string): string {
  return `/* leasehold:enqueue outbox */
select event, id, written from ${quoteQualified(schema, 'enqueue_events')}($1::text)`
}

/**
 * The first number of the advisory locks of ordering keys, `LHLD` in ASCII; the second is the hash of a key. An application
 * that locks numbers of its own does not meet them by chance, and doctor recognises them. The triggers that place rows in
 * buckets take the same locks (`migrations/002_outbox.sql`, `003_webhooks.sql`).
 */
export const ORDERING_KEY_LOCKS = 1_279_806_532

/**
 * Locks ordering keys until the end of the transaction; `$1` is a JSON text of keys. Another transaction that locks one of
 * them waits. All callers lock in the same order, so that two calls do not deadlock.
 */
export function serializeSql(schema: string): string {
  return `/* leasehold:serialize outbox */
select pg_advisory_xact_lock(${ORDERING_KEY_LOCKS}, lock)::text as locked      -- some drivers cannot read void
from (
  select distinct hashtext(${quoteLiteral(`${schema}.outbox:`)} || key) as lock
  from json_array_elements_text($1::text::json) as key
  order by lock
) as locks`
}
