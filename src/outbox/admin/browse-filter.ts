/** What an operator chooses events by. One place turns it into SQL, for listing, counting and replaying alike. */
import { checkPeriod, checkTexts, invalid, isRowId, isUuid } from '../../admin/request-checks.ts'
import type { Values } from '../../admin/statement-values.ts'
import { STATUSES, type Status } from '../transitions.ts'

export interface EventFilter {
  readonly type?: string | undefined
  readonly orderingKey?: string | undefined
  readonly status?: Status | readonly Status[] | undefined
  /** Written at this moment or later. */
  readonly from?: Date | undefined
  /** Written before this moment. */
  readonly to?: Date | undefined
  /** The last error contains this text, in whatever case. */
  readonly error?: string | undefined
  /** Row ids and event ids, mixed as they come. */
  readonly ids?: readonly string[] | undefined
}

export interface FilterSql {
  /** What an index answers, for finding out cheaply how far a statement may look. */
  readonly narrow: string
  /** The whole condition, the narrow part included. */
  readonly whole: string
}

/** The conditions for these states; every value of the filter is a parameter. */
export function filterSql(filter: EventFilter, statuses: readonly Status[], value: Values): FilterSql {
  const narrow = [statusSql(statuses), ...(filter.ids === undefined ? [] : [idsSql(filter.ids, value)])]
  const rest = [
    ...(filter.type === undefined ? [] : [`event_type = ${value(filter.type, 'text')}`]),
    ...(filter.orderingKey === undefined ? [] : [`ordering_key = ${value(filter.orderingKey, 'text')}`]),
    ...(filter.from === undefined ? [] : [`created_at >= ${value(filter.from, 'timestamptz')}`]),
    ...(filter.to === undefined ? [] : [`created_at < ${value(filter.to, 'timestamptz')}`]),
    // Not LIKE: the text is a text, whatever signs are in it.
    ...(filter.error === undefined
      ? []
      : [`strpos(lower(last_error), lower(${value(filter.error, 'text')})) > 0`]),
  ]
  return { narrow: narrow.join(' and '), whole: [...narrow, ...rest].join(' and ') }
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

/** Whether the filter chooses at all: an empty one means every event there is. */
export function isEmptyFilter({ type, orderingKey, status, from, to, error, ids }: EventFilter): boolean {
  return [type, orderingKey, status, from, to, error, ids].every((part) => part === undefined)
}

export function checkId(id: string): void {
  if (isUuid(id) || isRowId(id)) return
  throw invalid('id', id, 'Give the number of an event, or its event id, which is a uuid.')
}

/** As literals, because only then does PostgreSQL see that a partial index will do; they are words of our own. */
function statusSql(statuses: readonly Status[]): string {
  if (statuses.length === STATUSES.length) return 'true'
  const words = statuses.map((status) => `'${status}'`)
  return words.length === 1 ? `status = ${words[0]}` : `status in (${words.join(', ')})`
}

function idsSql(ids: readonly string[], value: Values): string {
  const numbers = ids.filter((id) => !isUuid(id))
  const uuids = ids.filter(isUuid)
  const either = [
    ...(numbers.length > 0 || uuids.length === 0 ? [`id = any (${value(numbers, 'bigint[]')})`] : []),
    ...(uuids.length > 0 ? [`event_id = any (${value(uuids, 'uuid[]')})`] : []),
  ]
  return `(${either.join(' or ')})`
}
