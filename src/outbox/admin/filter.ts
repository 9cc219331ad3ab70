/** What an operator chooses events by. This file alone turns it into SQL, for listing, counting and replaying alike. */
import {
  checkCommonFilter,
  type CommonFilter,
  commonSql,
  idsSql,
  statusSql,
} from '../../operations/filter-sql.ts'
import { checkNames, checkTexts, invalid, isRowId, isUuid } from '../../operations/request-checks.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { PositionalParameters } from '../../postgres/parameters.ts'
import { STATUSES, type Status } from '../transitions.ts'

export interface EventFilter extends CommonFilter {
  readonly type?: string | undefined
  readonly orderingKey?: string | undefined
  readonly status?: Status | readonly Status[] | undefined
  /** Row ids and event ids, in any order. */
  readonly ids?: readonly string[] | undefined
}

/** The fields that are dates. */
export const FILTER_DATES = ['from', 'to'] as const

/** The outbox of a schema, as statements name it. */
export function outboxOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox')
}

/** The events of ordering keys that wait, or are parked, in the words of the index `outbox_keys`. */
export const QUEUED = "ordering_key is not null and (status = 'PENDING' or parked)"

/** The conditions that an index answers. */
export function narrowSql(
  { ids }: EventFilter,
  statuses: readonly Status[],
  parameter: PositionalParameters,
): string {
  return [
    statusSql('status', statuses, STATUSES),
    ...(ids === undefined ? [] : [idsSql(ids, parameter, eventIdsSql)]),
  ].join(' and ')
}

/** An event id that was generated ends with the number of its event, of which it has 48 bits. */
function eventIdsSql(eventIds: readonly string[], parameter: PositionalParameters): string {
  const numbers = eventIds.map((eventId) => String(BigInt(`0x${eventId.slice(-12)}`)))
  const wanted = `event_id = any (${parameter(eventIds, 'uuid[]')})`
  const places = [`id = any (${parameter(numbers, 'bigint[]')})`, `id >= ${2 ** 48}`, 'event_id_given']
  return `(${places.map((place) => `${place} and ${wanted}`).join(' or ')})`
}

/** All conditions; every value of the filter is a parameter. */
export function filterSql(
  filter: EventFilter,
  statuses: readonly Status[],
  parameter: PositionalParameters,
): string {
  const { type, orderingKey } = filter
  return [
    narrowSql(filter, statuses, parameter),
    ...(type === undefined ? [] : [`event_type = ${parameter(type, 'text')}`]),
    ...(orderingKey === undefined ? [] : [`ordering_key = ${parameter(orderingKey, 'text')}`]),
    ...commonSql(filter, 'last_error', parameter),
  ].join(' and ')
}

/** The states a filter names; all of them when it names none. */
export function statusesOf({ status }: EventFilter): readonly Status[] {
  if (status === undefined) return STATUSES
  return typeof status === 'string' ? [status] : status
}

/** Refuses what can only be a mistake, before the database is asked. */
export function checkFilter(filter: EventFilter): void {
  checkCommonFilter(filter, FIELDS, checkId)
  checkNames('status', statusesOf(filter), STATUSES)
  const { type, orderingKey } = filter
  checkTexts({ type, orderingKey })
}

const FIELDS = [
  'type',
  'orderingKey',
  'status',
  'from',
  'to',
  'error',
  'ids',
] as const satisfies readonly (keyof EventFilter)[]

export function checkId(id: string): void {
  if (isUuid(id) || isRowId(id)) return
  throw invalid('id', id, 'Give the number of an event, or its event id, which is a uuid.')
}
