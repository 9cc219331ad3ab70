import { LeaseholdError } from '../errors.ts'

/**
 * What a log says of an error. Not its other fields: those of a database error quote values of the row (WH-NFR-003).
 * One that we threw on purpose says all in its message; of any other the stack is wanted.
 */
export function errorEntry(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { message: String(error) }
  const code = 'code' in error ? { code: error.code } : {}
  const cause = error.cause instanceof Error ? { cause: error.cause.message } : {}
  const stack = error instanceof LeaseholdError ? {} : { stack: error.stack }
  return { type: error.name, ...code, message: error.message, ...cause, ...stack }
}
