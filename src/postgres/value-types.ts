import { types } from 'pg'

/**
 * How values are read from PostgreSQL. The result is the same as with `pg` alone, including any parser that the user
 * has set with `types.setTypeParser`. Three types that almost every row has are read faster: the general parsers took
 * longer than everything else that is done with a small row.
 */
type Parse = (text: string) => unknown

const BIGINT: number = types.builtins.INT8
const JSONB: number = types.builtins.JSONB
const TIMESTAMPTZ: number = types.builtins.TIMESTAMPTZ

/** Given the general parser of a type, each returns a faster one with the same results. */
const FASTER = new Map<number, (general: Parse) => Parse>([
  [BIGINT, bigintParser],
  [JSONB, jsonParser],
  [TIMESTAMPTZ, timestampParser],
])

/** `pg` calls this for every column of every statement. */
export const valueTypes = {
  getTypeParser(oid: number, format: 'text' | 'binary' = 'text'): Parse {
    const general: Parse = types.getTypeParser(oid, format)
    const faster = format === 'text' ? FASTER.get(oid) : undefined
    return faster === undefined ? general : cached(oid, general, faster)
  },
}

/** The current parser of each type. It is replaced when the user sets another general parser. */
const parsers = new Map<number, { readonly general: Parse; readonly parse: Parse }>()

function cached(oid: number, general: Parse, faster: (general: Parse) => Parse): Parse {
  const known = parsers.get(oid)
  if (known?.general === general) return known.parse
  const parse = faster(general)
  parsers.set(oid, { general, parse })
  return parse
}

/** 2^53 + 1, the smallest positive integer that a JavaScript number cannot hold. */
const BEYOND_NUMBERS = '9007199254740993'

/** The parser of `pg` examines every character of a bigint and then returns the text unchanged. */
function bigintParser(general: Parse): Parse {
  return general(BEYOND_NUMBERS) === BEYOND_NUMBERS ? (text) => text : general
}

/** Whether a `bigint` arrives as PostgreSQL writes it. A user who tells `pg` to return numbers loses large values. */
export function keepsBigints(): boolean {
  const parsed: unknown = types.getTypeParser(BIGINT)(BEYOND_NUMBERS)
  return String(parsed) === BEYOND_NUMBERS
}

/** Most headers, and many payloads, are empty objects. */
function jsonParser(general: Parse): Parse {
  return isEmptyPlainObject(general('{}')) ? (text) => (text === '{}' ? {} : general(text)) : general
}

function isEmptyPlainObject(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  return Object.getPrototypeOf(value) === Object.prototype && Object.keys(value).length === 0
}

/**
 * The default format of a timestamptz, such as `2026-11-15 13:39:05.123456+00`. Everything else, including years before
 * 1000 and after 9999 and infinity, is left to the general parser.
 */
const USUAL_TIMESTAMP = /^[1-9]\d{3}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d$/

/** Where the seconds and their fraction begin, and the lengths of the zone and of the whole text. */
const SECONDS_AT = 17
const FRACTION_AT = 20
const ZONE_LENGTH = 3
const MIN_LENGTH = 22
const MAX_LENGTH = 29

/** Reads a timestamptz as a Date. */
export function timestampParser(general: Parse): Parse {
  // The user may have set a parser that returns texts, or another class.
  if (!(general('2000-01-01 00:00:00+00') instanceof Date)) return general
  // Timestamps that are read one after the other mostly share their minute, and always their time zone.
  let minute = '\0'
  let zone = ''
  let minuteStart = 0
  return (text) => {
    const isSameMinute =
      text.startsWith(minute) && text.endsWith(zone) && text.length >= MIN_LENGTH && text.length <= MAX_LENGTH
    if (!isSameMinute) {
      if (!USUAL_TIMESTAMP.test(text)) return general(text)
      minute = text.slice(0, SECONDS_AT)
      zone = text.slice(-ZONE_LENGTH)
      minuteStart = startOfMinute(text)
    }
    return new Date(minuteStart + twoDigits(text, SECONDS_AT) * 1_000 + milliseconds(text))
  }
}

function startOfMinute(text: string): number {
  const sign = text.charCodeAt(text.length - ZONE_LENGTH) === MINUS ? -1 : 1
  const offset = twoDigits(text, text.length - 2) * sign
  return Date.UTC(
    twoDigits(text, 0) * 100 + twoDigits(text, 2),
    twoDigits(text, 5) - 1,
    twoDigits(text, 8),
    twoDigits(text, 11) - offset,
    twoDigits(text, 14),
  )
}

/** Microseconds are cut off, as the general parser does. */
function milliseconds(text: string): number {
  const digits = text.length - ZONE_LENGTH - FRACTION_AT
  if (digits <= 0) return 0
  return (
    digit(text, FRACTION_AT) * 100 +
    (digits > 1 ? digit(text, FRACTION_AT + 1) * 10 : 0) +
    (digits > 2 ? digit(text, FRACTION_AT + 2) : 0)
  )
}

const [ZERO, MINUS] = [48, 45]

function digit(text: string, at: number): number {
  return text.charCodeAt(at) - ZERO
}

function twoDigits(text: string, at: number): number {
  return digit(text, at) * 10 + digit(text, at + 1)
}
