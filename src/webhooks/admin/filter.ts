/** What an operator chooses deliveries by. One place turns it into SQL, for listing, requeueing and cancelling alike. */
import {
  checkMoments,
  checkPeriod,
  checkTexts,
  invalid,
  isRowId,
  isUuid,
} from '../../admin/request-checks.ts'
import type { Values } from '../../admin/statement-values.ts'
import { DELIVERY_STATUSES, type DeliveryStatus } from '../transitions.ts'
import { endpointsOf } from './tables.ts'

export interface DeliveryFilter {
  /** The id of an endpoint. */
  readonly endpoint?: string | undefined
  /** Of the endpoints of this tenant; '' means those of nobody in particular. */
  readonly tenant?: string | undefined
  readonly type?: string | undefined
  readonly status?: DeliveryStatus | readonly DeliveryStatus[] | undefined
  /** Sent at this moment or later. */
  readonly from?: Date | undefined
  /** Sent before this moment. */
  readonly to?: Date | undefined
  /** Failed at this moment or later: means the failed ones only. */
  readonly failedSince?: Date | undefined
  /** The last error contains this text, in whatever case, or has this code. */
  readonly error?: string | undefined
  /** Numbers of deliveries and event ids, mixed as they come. An event id means all deliveries of the event. */
  readonly ids?: readonly string[] | undefined
}

/** What an index answers, for finding out cheaply how far a statement may look. */
export function narrowSql(
  filter: DeliveryFilter,
  statuses: readonly DeliveryStatus[],
  value: Values,
): string {
  const { ids, failedSince } = filter
  return [
    statusSql(statuses),
    ...(ids === undefined ? [] : [idsSql(ids, value)]),
    ...(failedSince === undefined ? [] : [`failed_at >= ${value(failedSince, 'timestamptz')}`]),
  ].join(' and ')
}

/** The whole condition, the narrow part included; every value of the filter is a parameter. */
export function filterSql(
  filter: DeliveryFilter,
  statuses: readonly DeliveryStatus[],
  value: Values,
  schema: string | undefined,
): string {
  const { endpoint, tenant, type, from, to, error } = filter
  return [
    narrowSql(filter, statuses, value),
    ...(endpoint === undefined ? [] : [`endpoint_id = ${value(endpoint, 'uuid')}`]),
    ...(tenant === undefined
      ? []
      : [
          `endpoint_id = any (array(select e.id from ${endpointsOf(schema)} as e where e.tenant = ${value(tenant, 'text')}))`,
        ]),
    ...(type === undefined ? [] : [`event_type = ${value(type, 'text')}`]),
    ...(from === undefined ? [] : [`created_at >= ${value(from, 'timestamptz')}`]),
    ...(to === undefined ? [] : [`created_at < ${value(to, 'timestamptz')}`]),
    // Not LIKE: the text is a text, whatever signs are in it.
    ...(error === undefined
      ? []
      : [`strpos(lower(concat_ws(' ', last_error_code, last_error)), lower(${value(error, 'text')})) > 0`]),
  ].join(' and ')
}

/** The states a filter names; all of them when it names none. */
export function statusesOf({ status, failedSince }: DeliveryFilter): readonly DeliveryStatus[] {
  if (status === undefined) return failedSince === undefined ? DELIVERY_STATUSES : ['failed']
  return typeof status === 'string' ? [status] : status
}

/** Refuses what can only be a mistake, before the database is asked. */
export function checkFilter(filter: DeliveryFilter): void {
  const { endpoint, tenant, type, from, to, failedSince, error, ids } = filter
  const statuses = statusesOf(filter)
  const unknown = statuses.find((status) => !DELIVERY_STATUSES.includes(status))
  if (unknown !== undefined || statuses.length === 0) {
    throw invalid('status', unknown ?? [], `Give one or more of ${DELIVERY_STATUSES.join(', ')}.`)
  }
  const other = statuses.find((status) => status !== 'failed')
  if (failedSince !== undefined && other !== undefined) {
    throw invalid(
      'failedSince',
      failedSince,
      `Leave it out, or the status ${other}: only failed ones have failed.`,
    )
  }
  for (const id of ids ?? []) checkId(id)
  if (endpoint !== undefined && !isUuid(endpoint)) {
    throw invalid(
      'endpoint',
      endpoint,
      'Give the id of an endpoint, a uuid: `leasehold webhooks endpoints list` shows them.',
    )
  }
  checkPeriod(from, to)
  checkMoments({ failedSince })
  checkTexts({ type, error, ...(tenant === '' ? {} : { tenant }) })
}

/** Whether the filter chooses at all: an empty one means every delivery there is. */
export function isEmptyFilter(filter: DeliveryFilter): boolean {
  const { endpoint, tenant, type, status, from, to, failedSince, error, ids } = filter
  return [endpoint, tenant, type, status, from, to, failedSince, error, ids].every(
    (part) => part === undefined,
  )
}

export function checkId(id: string): void {
  if (isUuid(id) || isRowId(id)) return
  throw invalid('id', id, 'Give the number of a delivery, or an event id, which is a uuid.')
}

/** As literals, because only then does PostgreSQL see that a partial index will do; they are words of our own. */
function statusSql(statuses: readonly DeliveryStatus[]): string {
  if (DELIVERY_STATUSES.every((status) => statuses.includes(status))) return 'true'
  const words = statuses.map((status) => `'${status}'`)
  return words.length === 1 ? `delivery_status = ${words[0]}` : `delivery_status in (${words.join(', ')})`
}

function idsSql(ids: readonly string[], value: Values): string {
  const numbers = ids.filter((id) => !isUuid(id))
  const uuids = ids.filter(isUuid)
  const either = [
    ...(numbers.length > 0 || uuids.length === 0 ? [`d.id = any (${value(numbers, 'bigint[]')})`] : []),
    ...(uuids.length > 0 ? [`event_id = any (${value(uuids, 'uuid[]')})`] : []),
  ]
  return `(${either.join(' or ')})`
}
