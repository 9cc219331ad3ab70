import { LeaseholdError } from '../errors.ts'
import { type LeaseTable, tableName } from './table.ts'

/** The declaration and the real table disagree: what is wrong, and the statement or edit that mends it. */
export function schemaMismatch(
  table: LeaseTable,
  what: string,
  remedy: string,
  cause?: unknown,
): LeaseholdError {
  return new LeaseholdError(
    'LEASE_TABLE_MISFIT',
    `The lease table ${tableName(table)} does not fit: ${what}.`,
    cause === undefined ? { remedy } : { remedy, cause },
  )
}
