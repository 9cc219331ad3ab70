/** Waiting for a database that is away at the start of a process, and naming a timeout that no wait can mend. */
import { setTimeout as delay } from 'node:timers/promises'
import { LeaseholdError } from '../errors.ts'
import { untilAborted } from '../timeout.ts'
import { isServerError, isUnavailable } from './failures.ts'
import { quoteIdentifier } from './identifiers.ts'
import type { Queryable } from './queryable.ts'

export interface WaitOptions {
  /** How long to wait; 0: a single attempt, Infinity: without a limit. */
  readonly waitMs: number
  /** Ends the wait at once, whatever is running. */
  readonly signal?: AbortSignal | undefined
  /** Is told at once why the database cannot be used, and then now and then; `leftMs` may be Infinity. */
  readonly onWait: (error: unknown, leftMs: number) => void
}

const FIRST_RETRY_MS = 250
const MAX_RETRY_MS = 5_000
const TELL_MS = 30_000

/**
 * Repeats the work while the database is starting, has no connection left or cannot be reached. Any other error, and the
 * one after which the time is over, is thrown. The work may have been done although it failed.
 */
export async function whenAvailable<Result>(
  work: () => Promise<Result>,
  { waitMs, signal, onWait }: WaitOptions,
): Promise<Result> {
  const deadline = performance.now() + waitMs
  let toldAt = Number.NEGATIVE_INFINITY
  for (let retryInMs = FIRST_RETRY_MS; ; retryInMs = Math.min(retryInMs * 2, MAX_RETRY_MS)) {
    try {
      return await (signal === undefined ? work() : untilAborted(signal, work))
    } catch (error) {
      const now = performance.now()
      if (!isUnavailable(error) || timeoutOf(error) !== undefined || now + retryInMs > deadline) throw error
      if (now - toldAt >= TELL_MS) {
        toldAt = now
        onWait(error, Math.round(deadline - now))
      }
    }
    await (signal === undefined
      ? delay(retryInMs)
      : untilAborted(signal, async () => delay(retryInMs, undefined, { signal })))
  }
}

const TIMEOUT_OF_STATE: Readonly<Record<string, string>> = {
  57014: 'statement_timeout',
  '25P03': 'idle_in_transaction_session_timeout',
  '25P04': 'transaction_timeout',
}

/** The setting with which PostgreSQL has stopped a statement or a session, if that is what happened. */
export function timeoutOf(error: unknown): string | undefined {
  for (let each = error; each instanceof Error; each = each.cause) {
    const setting = isServerError(each) ? TIMEOUT_OF_STATE[each.code ?? ''] : undefined
    if (setting !== undefined) return setting
  }
  return undefined
}

const READ_ATTEMPTS = 3

/** The error of a start that a timeout of the server ended, as one that names the setting; any other is returned as it is. */
export async function explainTimeout(db: Queryable, error: unknown): Promise<unknown> {
  const setting = timeoutOf(error)
  if (setting === undefined) return error
  const { value, role } = (await readTimeout(db, setting)) ?? {
    value: 'too short to be read',
    role: undefined,
  }
  // An administrator has cancelled the statement.
  if (value === '0') return error
  return new LeaseholdError(
    'SETTING_INVALID',
    `${setting} is ${value} for the role ${role ?? 'of the database URL'}, and the start took longer.`,
    {
      remedy: `Run: ALTER ROLE ${role ?? '…'} SET ${setting} = '30s'; Leasehold gives up its statements itself after 10 s.`,
      cause: error,
    },
  )
}

/** The same timeout may stop the statement that reads it. */
async function readTimeout(
  db: Queryable,
  setting: string,
): Promise<{ readonly value: string; readonly role: string } | undefined> {
  for (let attempt = 0; attempt < READ_ATTEMPTS; attempt += 1) {
    try {
      const { rows } = await db.query<{ value: string; role: string }>({
        text: 'select current_setting($1) as value, session_user::text as role',
        values: [setting],
      })
      return rows[0] === undefined ? undefined : { ...rows[0], role: quoteIdentifier(rows[0].role) }
    } catch {
      // The start has failed for a reason that is reported in any case.
    }
  }
  return undefined
}
