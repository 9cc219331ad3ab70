import type { LeaseStatement } from '../src/lease/statement.ts'

export function indexesOf(table: string, purpose: string): string[]

export function sqlFiles(
  statements: ReadonlyMap<string, readonly LeaseStatement[]>,
  onCitus: ReadonlyMap<string, readonly LeaseStatement[]>,
): Map<string, string>
