import { quoteQualified } from '../../postgres/identifiers.ts'

/**
 * Writes a delivery for each event and each endpoint that wants it; `$1` is a JSON text, one parameter for every driver.
 *
 * Which endpoints want an event is asked once for each tenant and type, not for each event: of 5,000 events of one type
 * `webhook_wanted` sees as many rows as there are endpoints. The column `body` is of type `json`, which keeps the text as
 * it was given, to the byte.
 *
 * Ids are given in the order of the events, so that an ordering key of an ordered endpoint is in the order in which it was
 * sent. Other endpoints get no ordering key: their deliveries are in no order. There is a row for each event, also where
 * no endpoint wants it: a driver that returns no rows is noticed.
 */
export function fanOutSql(schema: string): string {
  const deliveries = quoteQualified(schema, 'webhook_outbox')
  const endpoints = quoteQualified(schema, 'webhook_endpoints')
  return `with given as materialized (
  select place, event_id, event_type, tenant, ordering_key, body::text as body, headers,
    coalesce(available_at, now()) as next_attempt_at
  from json_to_recordset($1::text::json) as event (
    place int, event_id uuid, event_type text, tenant text, ordering_key text, body json, headers jsonb,
    available_at timestamptz
  )
),
wanted as materialized (
  select kind.tenant, kind.event_type, endpoint.id as endpoint_id, endpoint.ordered
  from (select distinct tenant, event_type from given) as kind
  join ${endpoints} as endpoint on endpoint.tenant = kind.tenant and endpoint.enabled
    and ${quoteQualified(schema, 'webhook_wanted')}(endpoint.event_types, kind.event_type)
),
written as (
  insert into ${deliveries} (event_id, endpoint_id, event_type, ordering_key, body, headers, next_attempt_at)
  select given.event_id, wanted.endpoint_id, given.event_type, case when wanted.ordered then given.ordering_key end, given.body,
    given.headers, given.next_attempt_at
  from given join wanted on wanted.tenant = given.tenant and wanted.event_type = given.event_type
  order by given.place, wanted.endpoint_id
  on conflict (event_id, endpoint_id, bucket) do nothing
  returning event_id
)
select given.event_id::text as event, count(written.event_id)::text as deliveries
from given left join written on written.event_id = given.event_id
group by given.event_id`
}
