/** What the filters of all applications have in common: fields, their checks, and their conditions in SQL. */
import type { PositionalParameters } from '../postgres/parameters.ts'
import { checkFields, checkIds, checkPeriod, checkTexts, isUuid } from './request-checks.ts'

export interface CommonFilter {
  /** Written at this time or later. */
  readonly from?: Date | undefined
  /** Written before this time. */
  readonly to?: Date | undefined
  /** The last error contains this text, in upper or lower case. */
  readonly error?: string | undefined
  readonly ids?: readonly string[] | undefined
}

/** Refuses what can only be a mistake in any filter, before the database is asked. */
export function checkCommonFilter(
  filter: CommonFilter,
  fields: readonly string[],
  checkId: (id: string) => void,
): void {
  checkFields(filter, fields, 'filter.')
  const { from, to, error, ids } = filter
  checkIds(ids, checkId)
  checkPeriod(from, to)
  checkTexts({ error })
}

/** The conditions on the time of writing, and on the error: `errorSql` is the column. */
export function commonSql(
  { from, to, error }: CommonFilter,
  errorSql: string,
  parameter: PositionalParameters,
): readonly string[] {
  return [
    ...(from === undefined ? [] : [`created_at >= ${parameter(from, 'timestamptz')}`]),
    ...(to === undefined ? [] : [`created_at < ${parameter(to, 'timestamptz')}`]),
    // Not LIKE: the text may contain any character.
    ...(error === undefined ? [] : [`strpos(lower(${errorSql}), lower(${parameter(error, 'text')})) > 0`]),
  ]
}

/** As literals, because only then does PostgreSQL see that a partial index will do. */
export function statusSql<Status extends string>(
  column: string,
  statuses: readonly Status[],
  all: readonly Status[],
): string {
  if (all.every((status) => statuses.includes(status))) return 'true'
  const literals = statuses.map((status) => `'${status}'`)
  return literals.length === 1 ? `${column} = ${literals[0]}` : `${column} in (${literals.join(', ')})`
}

function anyEventId(eventIds: readonly string[], parameter: PositionalParameters): string {
  return `event_id = any (${parameter(eventIds, 'uuid[]')})`
}

/** Rows by their ids, which are numbers, or by their event ids, which are uuids. */
export function idsSql(
  ids: readonly string[],
  parameter: PositionalParameters,
  eventIdsSql = anyEventId,
): string {
  const numbers = ids.filter((id) => !isUuid(id))
  const uuids = ids.filter(isUuid)
  const either = [
    ...(numbers.length > 0 || uuids.length === 0 ? [`id = any (${parameter(numbers, 'bigint[]')})`] : []),
    ...(uuids.length > 0 ? [eventIdsSql(uuids, parameter)] : []),
  ]
  return `(${either.join(' or ')})`
}
