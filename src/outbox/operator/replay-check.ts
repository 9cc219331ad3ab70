/** What a replay has to be told, and what it refuses. */
import { type EventFilter, checkFilter, invalid, isEmptyFilter, statusesOf } from './browse-filter.ts'
import { type ReplayOptions } from './replay.ts'
import { REPLAYABLE, type Replayable } from './replay-sql.ts'
import { type Status } from '../transitions.ts'

export interface CheckedReplay {
  readonly filter: EventFilter
  readonly statuses: readonly Replayable[]
  readonly principal: string
  readonly reason: string
}

/** The most events per second that a rate can ask for: moments are told apart by the microsecond. */
const HIGHEST_RATE = 1_000_000

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
  if (rate !== undefined && !(rate > 0 && rate <= HIGHEST_RATE)) {
    throw invalid('rate', rate, `Give the events per second, above 0 and up to ${HIGHEST_RATE}.`)
  }
  if (limit !== undefined && !(Number.isInteger(limit) && limit > 0)) {
    throw invalid('limit', limit, 'Give a whole number above 0, or none.')
  }
  const statuses = replayable(filter)
  if (dryRun) return { filter, statuses, principal: '', reason: '' }
  const reason = options.reason?.trim() ?? ''
  if (reason === '') throw invalid('reason', options.reason, 'Say why: the audit keeps it.')
  return { filter, statuses, principal: checkPrincipal(options.principal), reason }
}

export function checkPrincipal(principal: string | undefined): string {
  const name = principal?.trim() ?? ''
  if (name === '') throw invalid('principal', principal, 'Say who asks for the replay: the audit keeps it.')
  return name
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
