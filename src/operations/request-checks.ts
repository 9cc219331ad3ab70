/** Checks of what an operator asks for, before the database is asked. An error names the field, the value and the remedy. */
import { LeaseholdError } from '../errors.ts'
import { nearest } from '../nearest.ts'
import { MAX_TIMER_MS } from '../timeout.ts'
import { unstorableText } from '../unstorable-text.ts'

export function invalid(field: string, value: unknown, remedy: string): LeaseholdError {
  return new LeaseholdError('REQUEST_INVALID', `${field} is ${shown(value)}.`, { remedy, field })
}

const MAX_SHOWN_CHARACTERS = 200

/** A value as a message shows it: as JSON where JSON has it, and not longer than a person reads. */
function shown(value: unknown): string {
  if (value === undefined) return 'missing'
  if (typeof value === 'number' || typeof value === 'bigint') return String(value)
  if (value instanceof Date && Number.isNaN(value.getTime())) return String(value)
  const text = JSON.stringify(value) ?? typeof value
  return text.length <= MAX_SHOWN_CHARACTERS ? text : `${text.slice(0, MAX_SHOWN_CHARACTERS)}…`
}

/** Refuses a field that is not known: it would be ignored, and without it far more rows may match. */
export function checkFields(given: object, known: readonly string[], prefix = ''): void {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || known.includes(name)) continue
    const meant = nearest(name, known)
    const suggestion = meant === undefined ? '' : ` Did you mean ${meant}?`
    throw invalid(`${prefix}${name}`, value, `There is no such field: give ${known.join(', ')}.${suggestion}`)
  }
}

/** Refuses an empty choice, and a name that is none of these. */
export function checkNames(field: string, given: readonly string[], all: readonly string[]): void {
  const unknown = given.find((name) => !all.includes(name))
  if (unknown === undefined && given.length > 0) return
  throw invalid(field, unknown ?? [], `Give one or more of ${all.join(', ')}.`)
}

/** The most ids in one request. They are stored in the audit. */
const MAX_IDS = 100_000

export function checkIds(ids: readonly string[] | undefined, checkId: (id: string) => void): void {
  if (ids === undefined) return
  // A caller in JavaScript may give one id. Its digits would be taken for ids.
  if (!Array.isArray(ids)) throw invalid('ids', ids, 'Give a list of ids.')
  if (ids.length > MAX_IDS) {
    throw new LeaseholdError('REQUEST_INVALID', `ids has ${ids.length.toLocaleString('en-US')} ids.`, {
      remedy: `Give at most ${MAX_IDS.toLocaleString('en-US')}, or choose by a filter.`,
    })
  }
  for (const id of ids) checkId(id)
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

const FIRST_MOMENT = new Date('0001-01-01T00:00:00Z')
const LAST_MOMENT = new Date('9999-12-31T23:59:59Z')

/** PostgreSQL has no times before 4713 BC, which JavaScript has. */
export function checkMoments(moments: Readonly<Record<string, Date | undefined>>): void {
  for (const [name, moment] of Object.entries(moments)) {
    const isValid = moment instanceof Date && moment >= FIRST_MOMENT && moment <= LAST_MOMENT
    if (moment === undefined || isValid) continue
    throw invalid(name, moment, 'Give a Date from the year 1 to the year 9999.')
  }
}

export function checkPeriod(from: Date | undefined, to: Date | undefined): void {
  checkMoments({ from, to })
  if (from === undefined || to === undefined || from < to) return
  throw invalid('to', to.toISOString(), `It must be later than from, which is ${from.toISOString()}.`)
}

export function checkTexts(texts: Readonly<Record<string, string | undefined>>): void {
  for (const [name, text] of Object.entries(texts)) {
    if (text === undefined) continue
    if (typeof text !== 'string' || text === '') throw invalid(name, text, 'Give a text, or leave it out.')
    checkStorable(name, text)
  }
}

/** PostgreSQL would refuse such a text with an error of its own, or the driver would replace a character. */
function checkStorable(field: string, text: string): void {
  const what = unstorableText(text)
  if (what !== undefined)
    throw invalid(field, text, `Give a text without ${what}, which PostgreSQL cannot store.`)
}

/** A timestamp has a resolution of one microsecond, so rows cannot be due more often than this. */
const MAX_RATE_PER_SECOND = 1_000_000
/** About one a day. At far lower rates rows would be due at times that PostgreSQL does not have. */
const MIN_RATE_PER_SECOND = 0.000_01

export function checkRate(rate: number | undefined, rows: string): void {
  if (rate === undefined || (rate >= MIN_RATE_PER_SECOND && rate <= MAX_RATE_PER_SECOND)) return
  const range = `at least ${MIN_RATE_PER_SECOND.toFixed(5)} and at most ${MAX_RATE_PER_SECOND}`
  throw invalid('rate', rate, `Give the ${rows} per second, above 0: ${range}.`)
}

/** A thousand years: PostgreSQL cannot subtract much more from the present. */
const MAX_DURATION_MS = 1_000 * 365 * 86_400_000

export function checkDuration(field: string, ms: number, orElse = ''): void {
  if (ms >= 0 && ms <= MAX_DURATION_MS) return
  throw invalid(
    field,
    ms,
    `Give a number of milliseconds, 0 or more, and at most ${MAX_DURATION_MS}${orElse}.`,
  )
}

export function checkTimeout(timeoutMs: number): void {
  if (Number.isInteger(timeoutMs) && timeoutMs >= 1 && timeoutMs <= MAX_TIMER_MS) return
  throw invalid('timeoutMs', timeoutMs, `Give a whole number of milliseconds from 1 to ${MAX_TIMER_MS}.`)
}

export function checkLimit(limit: number | undefined): void {
  if (limit === undefined || (Number.isSafeInteger(limit) && limit > 0)) return
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
  checkStorable('reason', reason)
  return reason
}

export function checkPrincipal(given: string | undefined, what: string): string {
  const name = given?.trim() ?? ''
  if (name === '')
    throw invalid('principal', given, `Say who asks for the ${what}: it is recorded in the audit.`)
  checkStorable('principal', name)
  return name
}
