import { runInNewContext } from 'node:vm'
import { type LeaseTable, leaseTable } from '../../src/lease/index.ts'
import type { Database } from '../../src/postgres/database.ts'

/** The statements of a migration, one by one: an index is not built CONCURRENTLY among others. */
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

/** What the migration says to declare, declared. */
export function declaredIn(sql: string): LeaseTable {
  const [, pasted = ''] = sql.replaceAll(/^-- ?/gm, '').split('const table = ')
  // The program text of a declaration is that of an expression.
  return runInNewContext(pasted, { leaseTable }) as LeaseTable
}
