/** A test event: a delivery to one endpoint, whatever it subscribes to, so that its owner sees whether deliveries arrive. */
import { audit } from '../../operations/audit.ts'
import { isUuid, invalid } from '../../operations/request-checks.ts'
import { LeaseholdError } from '../../errors.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { checkBy, refuse } from '../endpoints/check.ts'
import { type By, endpointNotFound } from '../endpoints/endpoint.ts'
import { webhookBody } from './fan-out.ts'

/** The event type of test events. */
export const TEST_EVENT_TYPE = 'webhook.test'

export interface TestSent {
  /** The number of the delivery. */
  readonly id: string
  /** The `webhook-id`. */
  readonly eventId: string
}

/**
 * Writes a delivery of the type `webhook.test` to this endpoint. A dispatcher signs and sends it like any other; it is
 * retried and listed like any other, too.
 */
export async function sendTest(
  db: Database,
  endpointId: string,
  by: By,
  { schema = 'leasehold' }: { readonly schema?: string | undefined } = {},
): Promise<TestSent> {
  if (!isUuid(endpointId)) throw invalid('id', endpointId, 'Give the id of an endpoint, a uuid.')
  refuse(checkBy(by))
  const eventId = newEventIds()()
  const name = (object: string): string => quoteQualified(schema, object)
  return db.transaction(async (tx) => {
    const { rows } = await tx.query<{ id: string; enabled: boolean; bucket: number }>({
      // Citus decides by the bucket where a row goes, so that the INSERT has to name it.
      text: `select e.id::text as id, enabled, ${name('bucket')}($2::text || e.id::text) as bucket
from ${name('webhook_endpoints')} as e where e.id = $1::uuid`,
      values: [endpointId, eventId],
    })
    const [endpoint] = rows
    if (endpoint === undefined) throw endpointNotFound(endpointId)
    if (!endpoint.enabled)
      throw new LeaseholdError('STATE_CONFLICT', `The endpoint ${endpoint.id} is disabled.`, {
        remedy: 'Enable it first: nothing is delivered to a disabled endpoint.',
      })
    const body = webhookBody(TEST_EVENT_TYPE, new Date(), JSON.stringify({ endpointId: endpoint.id }))
    const written = await tx.query<{ id: string }>({
      text: `insert into ${name('webhook_outbox')} (bucket, event_id, endpoint_id, event_type, body)
values ($1::smallint, $2::uuid, $3::uuid, $4::text, $5::text) returning id::text as id`,
      values: [endpoint.bucket, eventId, endpoint.id, TEST_EVENT_TYPE, body],
    })
    const id = written.rows[0]?.id ?? ''
    const { principal, reason } = by
    await audit(tx, schema, {
      principal,
      action: 'webhooks.endpoint.test',
      target: endpoint.id,
      details: { ...(reason === undefined ? {} : { reason }), eventId, delivery: id },
    })
    // Where Citus distributes the deliveries, no trigger wakes the dispatchers.
    await tx.query({ text: `select ${name('wake')}('webhooks')` })
    return { id, eventId }
  })
}
