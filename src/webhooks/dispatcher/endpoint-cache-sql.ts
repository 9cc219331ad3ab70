/** The statements by which a dispatcher reads endpoints, and stores their circuits. */
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Statement } from '../../postgres/queryable.ts'
import type { CircuitChange } from './circuit-breaker.ts'

/** The part of an endpoint that is read every few seconds. */
export interface EndpointStateRow {
  readonly kind: 'endpoint'
  readonly id: string
  readonly tenant: string
  /** Changes with every update of the row. */
  readonly version: string
  readonly circuit_is_open: boolean
  readonly open_for_ms: number
  readonly failures: number
}

export interface DispatcherRow {
  readonly kind: 'dispatcher'
  /** The id of its process. */
  readonly id: string
}

/** The part of an endpoint that is read once for each version. */
export interface EndpointRow {
  readonly id: string
  readonly version: string
  readonly url: string
  /** Their values are encrypted. */
  readonly headers: Readonly<Record<string, string>>
  readonly rate_per_second: number | null
  readonly concurrency: number
  readonly timeout_ms: number
  readonly secret: string
  readonly previous_secret: string | null
  readonly previous_for_ms: number | null
}

/** The transaction that wrote the row. `updated_at` would miss an UPDATE that somebody wrote by hand. */
const VERSION = 'xmin::text as version'

/** Milliseconds from now; at most ten years, because infinity cannot be converted to a number. */
const msUntil = (timestamp: string): string =>
  `extract(epoch from least(${timestamp}, now() + interval '10 years') - now())::float8 * 1000`

/** The enabled endpoints, and the dispatchers: the processes with this role. */
export function readStates(schema: string, role: string): Statement {
  return {
    name: 'leasehold_webhooks_states',
    text: `/* leasehold:states webhooks */
select 'endpoint' as kind, id::text as id, tenant, ${VERSION}, failing_since is not null as circuit_is_open, failures,
  case when open_until > now() then ${msUntil('open_until')} else 0 end as open_for_ms
from ${quoteQualified(schema, 'webhook_endpoints')}
where enabled
union all
select 'dispatcher', id, null, null, null, null, null
from ${quoteQualified(schema, 'workers')}
where stopped_at is null and died_at is null and $1 = any (roles)
order by id`,
    values: [role],
  }
}

export function readVersions(schema: string, ids: readonly string[]): Statement {
  return {
    name: 'leasehold_webhooks_endpoint_versions',
    text: `/* leasehold:endpoint versions webhooks */
select id, ${VERSION}
from ${quoteQualified(schema, 'webhook_endpoints')}
where id = any ($1::uuid[]) and enabled`,
    values: [ids],
  }
}

export function readEndpoints(schema: string, ids: readonly string[]): Statement {
  return {
    name: 'leasehold_webhooks_endpoints',
    text: `/* leasehold:endpoints webhooks */
select id, ${VERSION}, url, headers, rate_per_second, concurrency, timeout_ms, secret, previous_secret,
  case when previous_secret_until > now() then ${msUntil('previous_secret_until')} end as previous_for_ms
from ${quoteQualified(schema, 'webhook_endpoints')}
where id = any ($1::uuid[])`,
    values: [ids],
  }
}

export function storeCircuit(schema: string, id: string, change: CircuitChange): Statement {
  const endpoints = quoteQualified(schema, 'webhook_endpoints')
  if (change.to === 'closed') {
    return {
      text: `/* leasehold:close circuit webhooks */
update ${endpoints} set failing_since = null, open_until = null, failures = 0
where id = $1 and failing_since is not null`,
      values: [id],
    }
  }
  return {
    text: `/* leasehold:open circuit webhooks */
update ${endpoints}
set failing_since = (select coalesce(failing_since, now())), failures = $2,    -- Citus refuses it without the subquery
  open_until = greatest(open_until, now() + $3 * interval '1 millisecond')
where id = $1 and enabled`,
    values: [id, change.failures, change.openMs],
  }
}

export function disableEndpoint(schema: string, id: string, reason: string): Statement {
  return {
    text: `/* leasehold:disable endpoint webhooks */
update ${quoteQualified(schema, 'webhook_endpoints')}
set enabled = false, disabled_at = now(), disabled_reason = $2, updated_at = now()
where id = $1 and enabled
returning id`,
    values: [id, reason],
  }
}
