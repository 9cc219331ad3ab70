/** What an operator chooses events by. This file alone turns it into SQL, for listing, counting and replaying alike. */
import { idsSql, statusSql } from '../../admin/filter-sql.ts'
import { checkPeriod, checkTexts, invalid, isRowId, isUuid } from '../../admin/request-checks.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { PositionalParameters } from '../../postgres/parameters.ts'
import { STATUSES, type Status } from '../transitions.ts'

export interface EventFilter {
  readonly type?: string | undefined
  readonly orderingKey?: string | undefined
  readonly status?: Status | readonly Status[] | undefined
  /** Written at this time or later. */
  readonly from?: Date | undefined
  /** Written before this time. */
  readonly to?: Date | undefined
  /** The last error contains this text, in upper or lower case. */
  readonly error?: string | undefined
  /** Row ids and event ids, in any order. */
  readonly ids?: readonly string[] | undefined
}

/** The fields that are dates. */
export const FILTER_DATES = ['from', 'to'] as const

/** The outbox of a schema, as statements name it. */
export function outboxOf(schema = 'leasehold'): string {
  return quoteQualified(schema, 'outbox')
}

/** The events of an ordering key that later ones wait for, in the words of the index `outbox_keys`. */
export const UNFINISHED = "ordering_key is not null and (status in ('PENDING', 'CLAIMED') or parked)"

/** The conditions that an index answers. */
export function narrowSql(
  { ids }: EventFilter,
  statuses: readonly Status[],
  parameter: PositionalParameters,
): string {
  return [
    statusSql('status', statuses, STATUSES),
    ...(ids === undefined ? [] : [idsSql(ids, parameter)]),
  ].join(' and ')
}

/** All conditions; every value of the filter is a parameter. */
export function filterSql(
  filter: EventFilter,
  statuses: readonly Status[],
  parameter: PositionalParameters,
): string {
  const { type, orderingKey, from, to, error } = filter
  return [
    narrowSql(filter, statuses, parameter),
    ...(type === undefined ? [] : [`event_type = ${parameter(type, 'text')}`]),
    ...(orderingKey === undefined ? [] : [`ordering_key = ${parameter(orderingKey, 'text')}`]),
    ...(from === undefined ? [] : [`created_at >= ${parameter(from, 'timestamptz')}`]),
    ...(to === undefined ? [] : [`created_at < ${parameter(to, 'timestamptz')}`]),
    // Not LIKE: the text may contain any character.
    ...(error === undefined ? [] : [`strpos(lower(last_error), lower(${parameter(error, 'text')})) > 0`]),
  ].join(' and ')
}

/** The states a filter names; all of them when it names none. */
export function statusesOf({ status }: EventFilter): readonly Status[] {
  if (status === undefined) return STATUSES
  return typeof status === 'string' ? [status] : status
}

/** Refuses what can only be a mistake, before the database is asked. */
export function checkFilter(filter: EventFilter): void {
  const statuses = statusesOf(filter)
  const unknown = statuses.find((status) => !STATUSES.includes(status))
  if (unknown !== undefined || statuses.length === 0) {
    throw invalid('status', unknown ?? [], `Give one or more of ${STATUSES.join(', ')}.`)
  }
  for (const id of filter.ids ?? []) checkId(id)
  checkPeriod(filter.from, filter.to)
  const { type, orderingKey, error } = filter
  checkTexts({ type, orderingKey, error })
}

export function checkId(id: string): void {
  if (isUuid(id) || isRowId(id)) return
  throw invalid('id', id, 'Give the number of an event, or its event id, which is a uuid.')
}
