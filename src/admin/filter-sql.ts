/** Conditions that the filters of several applications have in common. */
import type { PositionalParameters } from '../postgres/parameters.ts'
import { isUuid } from './request-checks.ts'

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

/** Rows by their ids, which are numbers, or by their event ids, which are uuids. */
export function idsSql(ids: readonly string[], parameter: PositionalParameters): string {
  const numbers = ids.filter((id) => !isUuid(id))
  const uuids = ids.filter(isUuid)
  const either = [
    ...(numbers.length > 0 || uuids.length === 0 ? [`id = any (${parameter(numbers, 'bigint[]')})`] : []),
    ...(uuids.length > 0 ? [`event_id = any (${parameter(uuids, 'uuid[]')})`] : []),
  ]
  return `(${either.join(' or ')})`
}
