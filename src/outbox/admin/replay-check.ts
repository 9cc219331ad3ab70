/** What a replay has to be told, and what it refuses. */
import { checkLimit, checkPrincipal, checkRate, checkReason, invalid } from '../../admin/request-checks.ts'
import { type EventFilter, checkFilter, isEmptyFilter, statusesOf } from './browse-filter.ts'
import type { ReplayOptions } from './replay.ts'
import { REPLAYABLE, type Replayable } from './replay-sql.ts'
import type { Status } from '../transitions.ts'

export interface CheckedReplay {
  readonly filter: EventFilter
  readonly statuses: readonly Replayable[]
  readonly principal: string
  readonly reason: string
}

export function checkReplay(options: ReplayOptions): CheckedReplay {
  const { ids, rate, limit, dryRun = false } = options
  const filter: EventFilter = { ...options.filter, ...(ids === undefined ? {} : { ids }) }
  if (isEmptyFilter(filter)) {
    throw invalid(
      'filter',
      filter,
      'Give ids or at least one condition: the status, to replay all that is dead.',
    )
  }
  checkFilter(filter)
  checkRate(rate, 'events')
  checkLimit(limit)
  const statuses = replayable(filter)
  if (dryRun) return { filter, statuses, principal: '', reason: '' }
  const reason = checkReason(options.reason)
  return { filter, statuses, principal: checkPrincipal(options.principal, 'replay'), reason }
}

/** A filter that names no state means both; one that names another than these is a mistake, and is told so. */
function replayable(filter: EventFilter): readonly Replayable[] {
  if (filter.status === undefined) return REPLAYABLE
  const other = statusesOf(filter).find((status) => !isReplayable(status))
  if (other !== undefined) {
    throw invalid(
      'status',
      other,
      `Only ${REPLAYABLE.join(' and ')} events are replayed; the others are under way.`,
    )
  }
  return statusesOf(filter).filter(isReplayable)
}

function isReplayable(status: Status): status is Replayable {
  return status === 'PUBLISHED' || status === 'DEAD'
}
