import type { Queryable } from '../../postgres/queryable.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { isWhole, shown } from '../../messages/validate.ts'
import { refuse } from './check.ts'
import { type Endpoint, ENDPOINT_COLUMNS } from './endpoint.ts'

export interface EndpointFilter {
  readonly tenant?: string | undefined
  readonly enabled?: boolean | undefined
  /** Only those that get events of this type. */
  readonly eventType?: string | undefined
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Only those after this one: `next` of the page before. */
  readonly after?: string | undefined
}

export interface EndpointPage {
  /** In the order in which they were created. */
  readonly endpoints: readonly Endpoint[]
  /** What `after` is for the next page; null when this was the last. */
  readonly next: string | null
}

const LARGEST_PAGE = 1_000
const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/i

export async function listEndpoints(
  db: Queryable,
  schema: string,
  filter: EndpointFilter,
): Promise<EndpointPage> {
  const { tenant, enabled, eventType, limit = 50, after } = filter
  refuse([
    ...textProblem('tenant', tenant),
    ...textProblem('eventType', eventType),
    ...(enabled === undefined || typeof enabled === 'boolean'
      ? []
      : [`enabled is ${shown(enabled)}, but must be true or false`]),
    ...(isWhole(limit, 1, LARGEST_PAGE)
      ? []
      : [`limit is ${shown(limit)}, but must be a whole number from 1 to ${LARGEST_PAGE}`]),
    ...(after === undefined ? [] : idProblem('after', after)),
  ])
  const values: unknown[] = []
  const value = (given: unknown, type: string): string => `$${values.push(given)}::${type}`
  const conditions = [
    ...(tenant === undefined ? [] : [`tenant = ${value(tenant, 'text')}`]),
    ...(enabled === undefined ? [] : [`enabled = ${value(enabled, 'boolean')}`]),
    ...(eventType === undefined
      ? []
      : [`${quoteQualified(schema, 'webhook_wanted')}(event_types, ${value(eventType, 'text')})`]),
    ...(after === undefined ? [] : [`e.id > ${value(after, 'uuid')}`]),
  ]
  // By e.id, the uuid: "id" would be the text that is selected. One more than the page has: whether there is another.
  const { rows } = await db.query<Endpoint>({
    text: `select ${ENDPOINT_COLUMNS} from ${quoteQualified(schema, 'webhook_endpoints')} as e
${conditions.length === 0 ? '' : `where ${conditions.join(' and ')}`} order by e.id limit ${value(limit + 1, 'int')}`,
    values,
  })
  const endpoints = rows.slice(0, limit)
  return { endpoints, next: rows.length > limit ? (endpoints.at(-1)?.id ?? null) : null }
}

export function idProblem(name: string, value: unknown): string[] {
  return typeof value === 'string' && UUID.test(value)
    ? []
    : [`${name} is ${shown(value)}, but must be the id of an endpoint, a uuid`]
}

/** A text with a zero character cannot be in the table, and PostgreSQL would refuse it in its own words. */
function textProblem(name: string, value: unknown): string[] {
  if (value === undefined || (typeof value === 'string' && !value.includes('\0') && value.isWellFormed()))
    return []
  return [`${name} is ${shown(value)}, but must be a text, or left out`]
}
