/** What an operator chooses deliveries by. This file alone turns it into SQL, for listing, replaying and cancelling alike. */
import {
  checkCommonFilter,
  type CommonFilter,
  commonSql,
  idsSql,
  statusSql,
} from '../../operations/filter-sql.ts'
import {
  checkMoments,
  checkNames,
  checkTexts,
  invalid,
  isRowId,
  isUuid,
} from '../../operations/request-checks.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { PositionalParameters } from '../../postgres/parameters.ts'
import { DELIVERY_STATUSES, type DeliveryStatus } from '../transitions.ts'

export interface DeliveryFilter extends CommonFilter {
  /** The id of an endpoint. */
  readonly endpoint?: string | undefined
  /** Of the endpoints of this tenant; '' means those of nobody in particular. */
  readonly tenant?: string | undefined
  readonly type?: string | undefined
  readonly status?: DeliveryStatus | readonly DeliveryStatus[] | undefined
  /** Failed at this time or later: means failed deliveries only. */
  readonly failedSince?: Date | undefined
  /** The last error contains this text, in upper or lower case, or has this code. */
  readonly error?: string | undefined
  /** Numbers of deliveries and event ids, in any order. An event id means all deliveries of the event. */
  readonly ids?: readonly string[] | undefined
}

/** The fields that are dates. */
export const FILTER_DATES = ['from', 'to', 'failedSince'] as const

/** The tables of a schema, as statements name them. */
export function deliveriesOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'webhook_outbox')
}

export function endpointsOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'webhook_endpoints')
}

export function attemptsOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'webhook_attempts')
}

/** No dispatcher delivers it now: one whose lease has expired has stopped, and is fenced off. */
export const NOT_IN_FLIGHT = '(lease_owner is null or lease_until <= now())'

/** The conditions that an index answers. */
export function narrowSql(
  filter: DeliveryFilter,
  statuses: readonly DeliveryStatus[],
  parameter: PositionalParameters,
): string {
  const { ids, failedSince } = filter
  return [
    statusSql('delivery_status', statuses, DELIVERY_STATUSES),
    ...(ids === undefined ? [] : [idsSql(ids, parameter)]),
    ...(failedSince === undefined ? [] : [`failed_at >= ${parameter(failedSince, 'timestamptz')}`]),
  ].join(' and ')
}

/** All conditions; every value of the filter is a parameter. */
export function filterSql(
  filter: DeliveryFilter,
  statuses: readonly DeliveryStatus[],
  parameter: PositionalParameters,
  schema: string | undefined,
): string {
  const { endpoint, tenant, type } = filter
  return [
    narrowSql(filter, statuses, parameter),
    ...(endpoint === undefined ? [] : [`endpoint_id = ${parameter(endpoint, 'uuid')}`]),
    ...(tenant === undefined
      ? []
      : [
          `endpoint_id = any (array(select e.id from ${endpointsOf(schema)} as e where e.tenant = ${parameter(tenant, 'text')}))`,
        ]),
    ...(type === undefined ? [] : [`event_type = ${parameter(type, 'text')}`]),
    ...commonSql(filter, "concat_ws(' ', last_error_code, last_error)", parameter),
  ].join(' and ')
}

/** The states a filter names; all of them when it names none. */
export function statusesOf({ status, failedSince }: DeliveryFilter): readonly DeliveryStatus[] {
  if (status === undefined) return failedSince === undefined ? DELIVERY_STATUSES : ['failed']
  return typeof status === 'string' ? [status] : status
}

/** Refuses what can only be a mistake, before the database is asked. */
export function checkFilter(filter: DeliveryFilter): void {
  checkCommonFilter(filter, FIELDS, checkId)
  const { endpoint, tenant, type, failedSince } = filter
  const statuses = statusesOf(filter)
  checkNames('status', statuses, DELIVERY_STATUSES)
  const other = statuses.find((status) => status !== 'failed')
  if (failedSince !== undefined && other !== undefined) {
    throw invalid(
      'failedSince',
      failedSince,
      `Leave out failedSince, or the status ${other}: only failed deliveries have a time of failure.`,
    )
  }
  if (endpoint !== undefined && !isUuid(endpoint)) {
    throw invalid(
      'endpoint',
      endpoint,
      'Give the id of an endpoint, a uuid: `leasehold webhooks endpoints list` shows them.',
    )
  }
  checkMoments({ failedSince })
  checkTexts({ type, ...(tenant === '' ? {} : { tenant }) })
}

/** Refuses a filter that names finished deliveries, for a change of pending ones. */
export function requirePending(filter: DeliveryFilter, remedy: string): void {
  checkFilter(filter)
  if (filter.status === undefined && filter.failedSince === undefined) return
  const finished = statusesOf(filter).find((status) => status !== 'pending')
  if (finished !== undefined) throw invalid('status', finished, remedy)
}

const FIELDS = [
  'endpoint',
  'tenant',
  'type',
  'status',
  'from',
  'to',
  'failedSince',
  'error',
  'ids',
] as const satisfies readonly (keyof DeliveryFilter)[]

export function checkId(id: string): void {
  if (isUuid(id) || isRowId(id)) return
  throw invalid('id', id, 'Give the number of a delivery, or an event id, which is a uuid.')
}
