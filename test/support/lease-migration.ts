import { runInNewContext } from 'node:vm'
import { type LeaseTable, leaseTable } from '../../src/lease/index.ts'
import type { Database } from '../../src/postgres/database.ts'

/** Splits a migration into statements, because CREATE INDEX CONCURRENTLY must be sent alone. */
export function statementsOf(sql: string): string[] {
  return sql
    .replaceAll(/^--.*\n/gm, '')
    .split(/;\n/)
    .map((statement) => statement.trim())
    .filter((statement) => statement !== '')
}

export async function apply(db: Database, sql: string): Promise<void> {
  for (const text of statementsOf(sql)) await db.query({ text })
}

/** Evaluates the declaration in the comment of the migration. */
export function declaredIn(sql: string): LeaseTable {
  const [, pasted = ''] = sql.replaceAll(/^-- ?/gm, '').split('const table = ')
  // The text after `const table =` is an expression of this type.
  return runInNewContext(pasted, { leaseTable }) as LeaseTable
}
