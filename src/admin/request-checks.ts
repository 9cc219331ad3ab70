/** What operators ask for is checked before the database is asked; a mistake names the field, the value and the remedy. */
import { LeaseholdError } from '../errors.ts'

export function invalid(field: string, value: unknown, remedy: string): LeaseholdError {
  return new LeaseholdError('REQUEST_INVALID', `${field} is ${JSON.stringify(value) ?? 'missing'}.`, {
    remedy,
  })
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const GREATEST_ID = 9_223_372_036_854_775_807n

export function isUuid(id: string): boolean {
  return UUID.test(id)
}

/** A number that a row can have. */
export function isRowId(id: string): boolean {
  return /^\d{1,19}$/.test(id) && BigInt(id) <= GREATEST_ID
}

export function checkMoments(moments: Readonly<Record<string, Date | undefined>>): void {
  for (const [name, moment] of Object.entries(moments)) {
    if (moment !== undefined && Number.isNaN(moment.getTime())) throw invalid(name, moment, 'Give a moment.')
  }
}

export function checkPeriod(from: Date | undefined, to: Date | undefined): void {
  checkMoments({ from, to })
  if (from === undefined || to === undefined || from < to) return
  throw invalid('to', to.toISOString(), `It must be later than from, which is ${from.toISOString()}.`)
}

/** A text with a zero character cannot be in the table, and PostgreSQL would refuse it in its own words. */
export function checkTexts(texts: Readonly<Record<string, string | undefined>>): void {
  for (const [name, text] of Object.entries(texts)) {
    if (text === '' || text?.includes('\0') === true)
      throw invalid(name, text, 'Give a text, or leave it out.')
  }
}

/** The most per second that a rate can ask for: moments are told apart by the microsecond. */
const HIGHEST_RATE = 1_000_000

export function checkRate(rate: number | undefined, what: string): void {
  if (rate === undefined || (rate > 0 && rate <= HIGHEST_RATE)) return
  throw invalid('rate', rate, `Give the ${what} per second, above 0 and up to ${HIGHEST_RATE}.`)
}

export function checkLimit(limit: number | undefined): void {
  if (limit === undefined || (Number.isInteger(limit) && limit > 0)) return
  throw invalid('limit', limit, 'Give a whole number above 0, or none.')
}

const LARGEST_PAGE = 1_000

export function checkPage(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= LARGEST_PAGE) return
  throw invalid('limit', limit, `Give a whole number from 1 to ${LARGEST_PAGE}.`)
}

export function checkReason(given: string | undefined): string {
  const reason = given?.trim() ?? ''
  if (reason === '') throw invalid('reason', given, 'Say why: the audit keeps it.')
  return reason
}

export function checkPrincipal(given: string | undefined, what: string): string {
  const name = given?.trim() ?? ''
  if (name === '') throw invalid('principal', given, `Say who asks for the ${what}: the audit keeps it.`)
  return name
}
