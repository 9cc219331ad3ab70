/** Every statement of the directory of endpoints. */
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Statement } from '../../postgres/queryable.ts'
import type { BreakerChange } from './breaker.ts'

/** What is read often: little of each endpoint. */
export interface SurveyRow {
  readonly id: string
  /** Changes with every update of the row. */
  readonly version: string
  readonly failing: boolean
  readonly open_for_ms: number
  readonly failures: number
}

export interface EndpointRow {
  readonly id: string
  readonly version: string
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly rate_per_second: number | null
  readonly concurrency: number
  readonly timeout_ms: number
  readonly secret: string
  readonly previous_secret: string | null
  readonly previous_for_ms: number | null
}

/** The transaction that wrote the row: updated_at would miss an UPDATE by hand. */
const VERSION = 'xmin::text as version'

/** Milliseconds until then; infinity cannot be subtracted from, and ten years are as good. */
const msUntil = (moment: string): string =>
  `extract(epoch from least(${moment}, now() + interval '10 years') - now())::float8 * 1000`

export function survey(schema: string): Statement {
  return {
    name: 'leasehold_webhooks_survey',
    text: `select id, ${VERSION}, failing_since is not null as failing, failures,
  case when open_until > now() then ${msUntil('open_until')} else 0 end as open_for_ms
from ${quoteQualified(schema, 'webhook_endpoints')}
where enabled
order by id`,
  }
}

export function dispatchers(schema: string, role: string): Statement {
  return {
    name: 'leasehold_webhooks_dispatchers',
    text: `select id from ${quoteQualified(schema, 'workers')}
where stopped_at is null and died_at is null and $1 = any (roles)
order by id`,
    values: [role],
  }
}

export function details(schema: string, ids: readonly string[]): Statement {
  return {
    name: 'leasehold_webhooks_details',
    text: `select id, ${VERSION}, url, headers, rate_per_second, concurrency, timeout_ms, secret, previous_secret,
  case when previous_secret_until > now() then ${msUntil('previous_secret_until')} end as previous_for_ms
from ${quoteQualified(schema, 'webhook_endpoints')}
where id = any ($1::uuid[])`,
    values: [ids],
  }
}

export function circuit(schema: string, id: string, change: BreakerChange): Statement {
  const target = quoteQualified(schema, 'webhook_endpoints')
  if (change.circuit === 'closed') {
    return {
      text: `update ${target} set failing_since = null, open_until = null, failures = 0 where id = $1 and failing_since is not null`,
      values: [id],
    }
  }
  return {
    text: `update ${target}
set failing_since = coalesce(failing_since, now()), failures = $2,
  open_until = greatest(open_until, now() + $3 * interval '1 millisecond')
where id = $1 and enabled`,
    values: [id, change.failures, change.forMs],
  }
}

export function disableGone(schema: string, id: string, reason: string): Statement {
  return {
    text: `update ${quoteQualified(schema, 'webhook_endpoints')}
set enabled = false, disabled_at = now(), disabled_reason = $2, updated_at = now()
where id = $1 and enabled
returning id`,
    values: [id, reason],
  }
}
