import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'

export interface BrowseOptions {
  readonly schema?: string | undefined
  /** How long the database may look. Default 10,000. */
  readonly timeoutMs?: number | undefined
}

const DEFAULT_TIMEOUT_MS = 10_000

/** Looks in one read-only transaction, for a bounded time; `remedy` is for those whose look took too long. */
export async function looking<Found>(
  db: Database,
  { timeoutMs = DEFAULT_TIMEOUT_MS }: BrowseOptions,
  { what, remedy }: { readonly what: string; readonly remedy: string },
  look: (tx: Queryable) => Promise<Found>,
): Promise<Found> {
  try {
    return await db.transaction(
      async (tx) => {
        await tx.query({ text: 'set transaction read only' })
        return look(tx)
      },
      { queryTimeoutMs: timeoutMs },
    )
  } catch (error) {
    if (!isLeaseholdError(error, 'QUERY_TIMEOUT')) throw error
    throw new LeaseholdError(
      'QUERY_TIMEOUT',
      `After ${timeoutMs} ms ${what} was given up: too many to look through.`,
      { remedy, cause: error },
    )
  }
}
