/** Checks of what an operator asks for, before the database is asked. An error names the field, the value and the remedy. */
import { LeaseholdError } from '../errors.ts'

export function invalid(field: string, value: unknown, remedy: string): LeaseholdError {
  return new LeaseholdError('REQUEST_INVALID', `${field} is ${JSON.stringify(value) ?? 'missing'}.`, {
    remedy,
  })
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const MAX_ROW_ID = 9_223_372_036_854_775_807n

export function isUuid(id: string): boolean {
  return UUID.test(id)
}

/** Whether a row can have this id: a number that fits into a bigint. */
export function isRowId(id: string): boolean {
  return /^\d{1,19}$/.test(id) && BigInt(id) <= MAX_ROW_ID
}

export function checkMoments(moments: Readonly<Record<string, Date | undefined>>): void {
  for (const [name, moment] of Object.entries(moments)) {
    if (moment !== undefined && Number.isNaN(moment.getTime()))
      throw invalid(name, moment, 'Give a valid Date.')
  }
}

export function checkPeriod(from: Date | undefined, to: Date | undefined): void {
  checkMoments({ from, to })
  if (from === undefined || to === undefined || from < to) return
  throw invalid('to', to.toISOString(), `It must be later than from, which is ${from.toISOString()}.`)
}

/** PostgreSQL cannot store a text with a zero character and would refuse it with an error of its own. */
export function checkTexts(texts: Readonly<Record<string, string | undefined>>): void {
  for (const [name, text] of Object.entries(texts)) {
    if (text === '' || text?.includes('\0') === true)
      throw invalid(name, text, 'Give a text without zero characters, or leave it out.')
  }
}

/** A timestamp has a resolution of one microsecond, so rows cannot be due more often than this. */
const MAX_RATE_PER_SECOND = 1_000_000

export function checkRate(rate: number | undefined, rows: string): void {
  if (rate === undefined || (rate > 0 && rate <= MAX_RATE_PER_SECOND)) return
  throw invalid('rate', rate, `Give the ${rows} per second, above 0 and up to ${MAX_RATE_PER_SECOND}.`)
}

export function checkLimit(limit: number | undefined): void {
  if (limit === undefined || (Number.isInteger(limit) && limit > 0)) return
  throw invalid('limit', limit, 'Give a whole number above 0, or leave it out.')
}

export const MAX_PAGE_SIZE = 1_000

export function checkPageSize(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= MAX_PAGE_SIZE) return
  throw invalid('limit', limit, `Give a whole number from 1 to ${MAX_PAGE_SIZE}.`)
}

export function checkReason(given: string | undefined): string {
  const reason = given?.trim() ?? ''
  if (reason === '') throw invalid('reason', given, 'Say why: it is recorded in the audit.')
  return reason
}

export function checkPrincipal(given: string | undefined, what: string): string {
  const name = given?.trim() ?? ''
  if (name === '')
    throw invalid('principal', given, `Say who asks for the ${what}: it is recorded in the audit.`)
  return name
}
