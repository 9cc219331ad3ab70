import type { Database } from '../postgres/database.ts'
import { MIGRATIONS_DIRECTORY, readMigrations } from '../postgres/migration-files.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { readLedger, type LedgerRow } from '../postgres/migration-ledger.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { Check } from './health.ts'

/** A connection that swallows bytes is given up after this, so that the next check gets a fresh one. */
const QUERY_TIMEOUT_MS = 2_000

export function databaseAnswers(db: Database): Check {
  return {
    name: 'database',
    async run() {
      await db.transaction(async (tx) => tx.query({ text: 'select 1' }), { queryTimeoutMs: QUERY_TIMEOUT_MS })
      return 'answers'
    },
  }
}

/** A database that is ahead is no fault: during a rolling deployment the older release goes on working. */
export function migrationsCurrent(db: Database, schema: string): Check {
  return {
    name: 'migrations',
    async run() {
      const files = await readMigrations(MIGRATIONS_DIRECTORY)
      const ledger = await db.transaction(async (tx) => readLedgerIfAny(tx, schema), {
        queryTimeoutMs: QUERY_TIMEOUT_MS,
      })
      const applied = new Set(ledger.map(({ version }) => version))
      const missing = files.filter(({ version }) => !applied.has(version)).map(({ file }) => file)
      if (missing.length > 0) {
        throw new Error(
          `${missing.join(', ')} not applied to the schema ${schema}: run \`leasehold migrate\``,
        )
      }
      const ahead = ledger.length - files.length
      return ahead > 0 ? `${ahead} ahead of this release` : `at version ${files.length}`
    },
  }
}

/** Looked for first: a table that does not exist would make the transaction fail. */
async function readLedgerIfAny(tx: Queryable, schema: string): Promise<readonly LedgerRow[]> {
  const { rows } = await tx.query<{ present: boolean }>({
    text: 'select to_regclass($1) is not null as present',
    values: [quoteQualified(schema, 'migrations')],
  })
  return rows[0]?.present === true ? readLedger(tx, schema) : []
}
