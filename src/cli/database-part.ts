import type { Logger } from '../observe/index.ts'
import { openDatabase, type Database, type DatabaseEvent } from '../postgres/index.ts'
import type { Part } from './parts.ts'

const STOP_WITHIN_MS = 10_000

/** For the start, the checks and the metrics (RULE-020-041): the workers have connections of their own. */
const MAX_CONNECTIONS = 4

/** The pool. A database that goes away later is an event in the log, never the end of the process. */
export function openDatabasePart(url: string, log: Logger): { readonly db: Database; readonly part: Part } {
  const db = openDatabase({ url, maxConnections: MAX_CONNECTIONS, onEvent: (event) => logEvent(log, event) })
  return { db, part: { name: 'database pool', stopWithinMs: STOP_WITHIN_MS, stop: async () => db.close() } }
}

function logEvent(log: Logger, event: DatabaseEvent): void {
  switch (event.type) {
    case 'connectionLost':
      log.warn({ err: event.error }, 'lost a database connection')
      break
    case 'queryTimedOut':
      log.warn({ statement: event.text, timeoutMs: event.timeoutMs }, 'a statement took too long')
      break
    case 'preparedStatementsOff':
      log.info('behind the database URL is a pooler without prepared statements: names are no longer sent')
      break
  }
}
