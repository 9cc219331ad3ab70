/**
 * `timestamptz` → Date, for the texts that PostgreSQL writes by default: `2026-11-15 13:39:05.123456+00`. The parser of
 * `pg` reads any, with regular expressions, and takes longer than all else that is done with a small row.
 */
type Parse = (text: string) => unknown

/** Everything else, dates before 1000 and after 9999 and infinity among it, is left to the general parser. */
const USUAL = /^[1-9]\d{3}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d$/

export function momentParser(general: Parse): Parse {
  // Somebody may want texts, or dates of another kind.
  if (!(general('2000-01-01 00:00:00+00') instanceof Date)) return general
  // Most moments that are read one after the other are of one minute, and of one time zone anyway.
  let minute = '\0'
  let zone = ''
  let minuteAt = 0
  return (text) => {
    const isKnown =
      text.startsWith(minute) && text.endsWith(zone) && text.length >= SHORTEST && text.length <= LONGEST
    if (!isKnown) {
      if (!USUAL.test(text)) return general(text)
      minute = text.slice(0, SECONDS)
      zone = text.slice(-ZONE)
      minuteAt = startOfMinute(text)
    }
    return new Date(minuteAt + two(text, SECONDS) * 1_000 + milliseconds(text))
  }
}

/** Where seconds and their fraction begin; how long the zone is, and a usual text as a whole. */
const SECONDS = 17
const FRACTION = 20
const ZONE = 3
const SHORTEST = 22
const LONGEST = 29

function startOfMinute(text: string): number {
  const offset = two(text, text.length - 2) * (text.charCodeAt(text.length - ZONE) === MINUS ? -1 : 1)
  return Date.UTC(
    two(text, 0) * 100 + two(text, 2),
    two(text, 5) - 1,
    two(text, 8),
    two(text, 11) - offset,
    two(text, 14),
  )
}

/** What is finer than that is cut off. */
function milliseconds(text: string): number {
  const digits = text.length - ZONE - FRACTION
  if (digits <= 0) return 0
  return (
    digit(text, FRACTION) * 100 +
    (digits > 1 ? digit(text, FRACTION + 1) * 10 : 0) +
    (digits > 2 ? digit(text, FRACTION + 2) : 0)
  )
}

const [ZERO, MINUS] = [48, 45]

function digit(text: string, at: number): number {
  return text.charCodeAt(at) - ZERO
}

function two(text: string, at: number): number {
  return digit(text, at) * 10 + digit(text, at + 1)
}
