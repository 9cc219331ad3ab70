/**
 * The history of an event: what became of its earlier attempts, and what operators did with it. It is a JSON array in the row
 * itself, and null as long as nothing failed. The attempt that published an event is not in it, but in the columns
 * `published_by`, `claimed_at`, `lock_token` and `published_at`; a replay, which resets them, moves it here
 * (docs/decisions/017-attempt-history.md).
 */
import type { PositionalParameters } from '../postgres/parameters.ts'
import { stringifiable } from '../stringifiable.ts'

/** The history has at most this many entries: the oldest are removed. */
export const MAX_HISTORY = 20

/** How many characters of an error are stored in an entry. */
const MAX_ERROR_CHARS = 500

/**
 * - `retry`, `dead`: the publisher reported a failure, and the event waits for another attempt, or is dead.
 * - `expired`: the lease was taken back, because its process died or lost it.
 * - `published`: it succeeded.
 * - `replayed`, `givenUp`: an operator did so.
 */
export const HISTORY_OUTCOMES = ['retry', 'dead', 'expired', 'published', 'replayed', 'givenUp'] as const

/** An attempt that has ended, or what an operator did. */
export interface HistoryEntry {
  readonly outcome: (typeof HISTORY_OUTCOMES)[number]
  readonly endedAt: Date
  /** Of an attempt: 1 for the first since the event was written, or replayed. */
  readonly attempt: number | null
  readonly token: bigint | null
  /** The worker process that made it. */
  readonly owner: string | null
  readonly claimedAt: Date | null
  /** When its lease was to expire, after the last renewal. Null also of an attempt that succeeded. */
  readonly until: Date | null
  /** The first 500 characters; of an operator, the reason. */
  readonly error: string | null
  /** The operator. */
  readonly by: string | null
}

function appended(history: string, entry: Readonly<Record<string, string>>): string {
  const fields = Object.entries(entry).map(([name, value]) => `'${name}', ${value}`)
  const lines = [fields.slice(0, 3), fields.slice(3, 7), fields.slice(7)].flatMap(
    (line) => line.join(', ') || [],
  )
  return `(case when jsonb_array_length(${history}) >= ${MAX_HISTORY} then ${history} - 0 else coalesce(${history}, '[]') end
      || jsonb_build_array(jsonb_build_object(${lines.join(',\n        ')})))`
}

const ATTEMPT = { attempt: 'attempts + 1', token: 'lock_token::text', claimed_at: 'claimed_at' } as const

/** The history with an attempt that fails in this statement; `$error` stands for its error. */
export function withFailedAttempt(outcome: 'retry' | 'dead' | 'expired'): string {
  return appended('history', {
    outcome: `'${outcome}'`,
    ...ATTEMPT,
    owner: 'claimed_by',
    until: 'locked_until',
    ended_at: 'now()',
    error: `left($error, ${MAX_ERROR_CHARS})`,
  })
}

/** What an operator did, and why. */
export interface OperatorEntry {
  readonly outcome: 'replayed' | 'givenUp'
  readonly principal: string
  readonly reason: string
}

/** The history with what an operator does in this statement. The attempt that published the event comes first. */
export function withOperator(
  { outcome, principal, reason }: OperatorEntry,
  parameter: PositionalParameters,
): string {
  const entry = {
    outcome: `'${outcome}'`,
    by: parameter(principal, 'text'),
    ended_at: 'now()',
    error: `left(${parameter(reason, 'text')}, ${MAX_ERROR_CHARS})`,
  }
  const before =
    outcome === 'givenUp' ? 'history' : `(case when published_by is null then history else ${PUBLISHED} end)`
  // In a subquery, because Citus refuses a value that is computed from the time and a column (src/lease/table-sql.ts).
  return `(select ${appended('earlier', entry)} from (select ${before}) as before (earlier))`
}

const PUBLISHED = appended('history', {
  outcome: "'published'",
  ...ATTEMPT,
  owner: 'published_by',
  ended_at: 'published_at',
})

/** The whole history of a row r, with the attempt that published it as the last. */
export const HISTORY_SQL = `case when published_by is null then history else ${PUBLISHED} end`

/** What `HISTORY_SQL` returns: fields that do not concern the entry are missing. */
export type StoredHistory = readonly StoredEntry[] | null

type StoredEntry = Readonly<
  Pick<HistoryEntry, 'outcome'> &
    Partial<Pick<HistoryEntry, 'attempt' | 'owner' | 'error' | 'by'>> & {
      token?: string
      claimed_at?: string | null
      until?: string | null
      ended_at: string
    }
>

/** The entries of a history, the oldest first. */
export function readHistory(stored: StoredHistory): HistoryEntry[] {
  const moment = (text: string | null | undefined): Date | null => (text ? new Date(text) : null)
  return (stored ?? []).map((entry) =>
    stringifiable({
      outcome: entry.outcome,
      endedAt: new Date(entry.ended_at),
      attempt: entry.attempt ?? null,
      token: entry.token === undefined ? null : BigInt(entry.token),
      owner: entry.owner ?? null,
      claimedAt: moment(entry.claimed_at),
      until: moment(entry.until),
      error: entry.error ?? null,
      by: entry.by ?? null,
    }),
  )
}
