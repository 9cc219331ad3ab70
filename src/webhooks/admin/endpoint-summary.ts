/** Which endpoints have something waiting or failed, or get nothing at all, and why. */
import { ALONG_INDEX, type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { checkPageSize } from '../../operations/request-checks.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { COUNTING, PENDING, pendingEndpointsSql } from './counts.ts'
import { deliveriesOf, endpointsOf } from './filter.ts'

/** Worst first. `open`: nothing is attempted; `probing`: the next delivery shows whether it is back. */
const STATES = ['deleted', 'disabled', 'open', 'probing', 'ok'] as const

export interface EndpointSummary {
  readonly id: string
  /** Null: it has been deleted. */
  readonly url: string | null
  readonly tenant: string | null
  readonly state: (typeof STATES)[number]
  /** Why it is disabled. */
  readonly reason: string | null
  /** Since when it is disabled, or its circuit open. */
  readonly since: Date | null
  /** Nothing is attempted before. */
  readonly openUntil: Date | null
  /** Counted up to `MAX_PENDING_COUNTED`. */
  readonly pending: number
  /** Among the newest 100,000 that have failed. */
  readonly failed: number
}

export interface EndpointSummaries {
  /** Those that get nothing first, then those with the most that has failed. */
  readonly endpoints: readonly EndpointSummary[]
  /** There are more than were asked for. */
  readonly more: boolean
}

export interface EndpointSummaryOptions extends BrowseOptions {
  /** Default 20. */
  readonly limit?: number | undefined
  /** Only the endpoints of this tenant. What has failed is then counted among its own. */
  readonly tenant?: string | undefined
}

/** How many pending deliveries of an endpoint are counted at most. */
export const MAX_PENDING_COUNTED = 1_000

/** How many endpoints are read at most, of those that get nothing and of those with pending deliveries. */
const MAX_ENDPOINTS = 1_000

/** How many failed deliveries are counted at most. */
const MAX_FAILED_COUNTED = 100_000

/** The endpoints that get nothing, and why, and those with deliveries that wait or have failed. */
export async function summariseEndpoints(
  db: Database,
  options: EndpointSummaryOptions = {},
): Promise<EndpointSummaries> {
  const { schema, limit = 20, tenant } = options
  checkPageSize(limit)
  return readOnly(db, options, { ...COUNTING, what: 'Counting by endpoint' }, async (tx) => {
    const pending = new Map<string, number>()
    const failed = new Map<string, number>()
    // To walk over the endpoints of all would read what waits for others: policies hide it only row by row.
    const own = tenant === undefined ? undefined : await endpointsOfTenant(tx, schema, tenant)
    if (own !== undefined) await tx.query({ text: ALONG_INDEX })
    for (const bucket of await ownBuckets(tx, schema)) {
      add(pending, await pendingIn(tx, schema, bucket, own))
      add(
        failed,
        await (own === undefined ? failedIn(tx, schema, bucket) : failedOf(tx, schema, bucket, own)),
      )
    }
    const known = await endpoints(tx, schema, [...new Set([...pending.keys(), ...failed.keys()])])
    const summaries = [...known.values()].map((endpoint) => ({
      ...endpoint,
      pending: Math.min(MAX_PENDING_COUNTED, pending.get(endpoint.id) ?? 0),
      failed: failed.get(endpoint.id) ?? 0,
    }))
    const deleted = [...pending].flatMap(([id, count]) =>
      known.has(id)
        ? []
        : [{ ...DELETED, id, pending: Math.min(MAX_PENDING_COUNTED, count), failed: failed.get(id) ?? 0 }],
    )
    const all = [...summaries, ...deleted].sort(worstFirst)
    return { endpoints: all.slice(0, limit), more: all.length > limit }
  })
}

const DELETED = {
  url: null,
  tenant: null,
  state: 'deleted',
  reason: null,
  since: null,
  openUntil: null,
} as const

function worstFirst(a: EndpointSummary, b: EndpointSummary): number {
  const byState = STATES.indexOf(a.state) - STATES.indexOf(b.state)
  return byState || b.failed - a.failed || b.pending - a.pending || a.id.localeCompare(b.id)
}

interface Counted {
  readonly endpointId: string
  readonly count: number
}

function add(sums: Map<string, number>, counted: readonly Counted[]): void {
  for (const { endpointId, count } of counted) sums.set(endpointId, (sums.get(endpointId) ?? 0) + count)
}

async function endpointsOfTenant(
  tx: Queryable,
  schema: string | undefined,
  tenant: string,
): Promise<string[]> {
  const { rows } = await tx.query<{ id: string }>({
    text: `select id from ${endpointsOf(schema)} where tenant = $1::text order by id limit ${MAX_ENDPOINTS}`,
    values: [tenant],
  })
  return rows.map(({ id }) => id)
}

/** What can be attempted, or waits for its next attempt; in flight included. Of these endpoints, or of all. */
async function pendingIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  own: readonly string[] | undefined,
): Promise<Counted[]> {
  const table = deliveriesOf(schema)
  const counts = Object.values(PENDING).map(
    (part) => `(
  select count(*)::int from (
    select from ${table} as d
    where d.bucket = $1::smallint and d.endpoint_id = waiting.endpoint_id and ${part}
    limit ${MAX_PENDING_COUNTED}
  ) as found
)`,
  )
  const { rows } = await tx.query<Counted>({
    text: `with recursive ${own === undefined ? pendingEndpointsSql(table, ['unkeyed', 'suspects', 'keyed']) : 'waiting (endpoint_id) as (select unnest($2::uuid[]))'}
select waiting.endpoint_id as "endpointId", ${counts.join(' + ')} as count
from waiting where endpoint_id is not null limit ${MAX_ENDPOINTS}`,
    values: own === undefined ? [bucket] : [bucket, own],
  })
  return rows.filter(({ count }) => count > 0)
}

async function failedOf(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  own: readonly string[],
): Promise<Counted[]> {
  const { rows } = await tx.query<Counted>({
    text: `select endpoint_id as "endpointId", count(*)::int as count
from unnest($2::uuid[]) as among (value) cross join lateral (
  select endpoint_id from ${deliveriesOf(schema)}
  where endpoint_id = any (array[among.value]) and bucket = $1::smallint and delivery_status = 'failed'
  order by endpoint_id desc, id desc limit $3::int
) as found group by endpoint_id`,
    values: [bucket, own, Math.ceil(MAX_FAILED_COUNTED / Math.max(1, own.length))],
  })
  return rows
}

async function failedIn(tx: Queryable, schema: string | undefined, bucket: number): Promise<Counted[]> {
  const { rows } = await tx.query<Counted>({
    text: `select endpoint_id as "endpointId", count(*)::int as count from (
  select endpoint_id from ${deliveriesOf(schema)} where bucket = $1::smallint and delivery_status = 'failed'
  order by failed_at desc limit ${MAX_FAILED_COUNTED}
) as found group by endpoint_id`,
    values: [bucket],
  })
  return rows
}

type Endpoint = Omit<EndpointSummary, 'pending' | 'failed'>

/** These, and those that get nothing. */
async function endpoints(
  tx: Queryable,
  schema: string | undefined,
  ids: readonly string[],
): Promise<Map<string, Endpoint>> {
  const { rows } = await tx.query<Endpoint>({
    text: `select id, url, tenant, disabled_reason as reason, coalesce(disabled_at, failing_since) as since,
  open_until as "openUntil", case
    when not enabled then 'disabled'
    when failing_since is null then 'ok'
    when open_until > now() then 'open'
    else 'probing'
  end as state
from ${endpointsOf(schema)}
where id = any ($1::uuid[])
  or id in (select id from ${endpointsOf(schema)} where not enabled or failing_since is not null limit ${MAX_ENDPOINTS})`,
    values: [ids],
  })
  return new Map(rows.map((row) => [row.id, row]))
}
