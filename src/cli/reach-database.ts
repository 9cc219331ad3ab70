import { setTimeout as delay } from 'node:timers/promises'
import { LeaseholdError } from '../errors.ts'
import type { Logger } from '../observe/index.ts'
import { isUnavailable, type Queryable } from '../postgres/index.ts'

export interface Reach {
  readonly db: Queryable
  /** Without its password, and where it came from: what messages say. */
  readonly shownUrl: string
  readonly source: string
  readonly waitMs: number
  readonly log: Logger
  readonly signal?: AbortSignal
}

const FIRST_PAUSE_MS = 250
const LONGEST_PAUSE_MS = 5_000

/** Returns once the database answers. It may be starting still, so one that cannot be reached is tried again. */
export async function reachDatabase({ db, shownUrl, source, waitMs, log, signal }: Reach): Promise<void> {
  const deadline = performance.now() + waitMs
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS)) {
    try {
      await db.query({ text: 'select 1' })
      return
    } catch (error) {
      if (!isUnavailable(error)) throw refused(error, shownUrl, source)
      if (performance.now() + pauseMs > deadline) throw unreachable(error, shownUrl, source, waitMs)
      log.warn({ reason: reason(error), retryInMs: pauseMs }, 'the database does not answer yet')
    }
    await delay(pauseMs, undefined, signal === undefined ? {} : { signal })
  }
}

/** It answered, and said no: a wrong password, an unknown database, TLS. Waiting would not help. */
function refused(error: unknown, shownUrl: string, source: string): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    `databaseUrl (${source}) is ${shownUrl}, but that server refuses it: ${reason(error)}.`,
    { remedy: 'Check its user, password, database and TLS parameters.', cause: error },
  )
}

function unreachable(error: unknown, shownUrl: string, source: string, waitMs: number): LeaseholdError {
  return new LeaseholdError(
    'DATABASE_UNAVAILABLE',
    `The database ${shownUrl} (${source}) did not answer for databaseWaitMs = ${waitMs} ms: ${reason(error)}.`,
    { remedy: 'Check that PostgreSQL runs there, or wait longer with --database-wait-ms.', cause: error },
  )
}

/** What the network or the server said, without our own advice around it. */
function reason(error: unknown): string {
  if (error instanceof LeaseholdError && error.cause !== undefined) return reason(error.cause)
  if (error instanceof AggregateError) return error.errors.map(reason).join('; ')
  return error instanceof Error ? error.message : String(error)
}
