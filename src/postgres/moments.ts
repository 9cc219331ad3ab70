/**
 * `timestamptz` → Date, for the texts that PostgreSQL writes by default: `2026-11-15 13:39:05.123456+00`. The parser of
 * `pg` reads any, with regular expressions, and takes longer than all else that is done with a small row.
 */
import { types } from 'pg'

const TIMESTAMPTZ: number = types.builtins.TIMESTAMPTZ

type Parse = (text: string) => unknown

/** Everything else, dates before 1000 and after 9999 and infinity among it, is left to the general parser. */
const USUAL = /^[1-9]\d{3}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d$/

export function momentParser(general: Parse): Parse {
  // Somebody may want texts, or dates of another kind.
  if (!(general('2000-01-01 00:00:00+00') instanceof Date)) return general
  return (text) => (USUAL.test(text) ? usualMoment(text) : general(text))
}

function usualMoment(text: string): Date {
  const fraction = text.charCodeAt(19) === POINT ? text.slice(20, Math.min(23, text.length - 3)) : ''
  const offset = two(text, text.length - 2) * (text.charCodeAt(text.length - 3) === MINUS ? -1 : 1)
  return new Date(
    Date.UTC(
      two(text, 0) * 100 + two(text, 2),
      two(text, 5) - 1,
      two(text, 8),
      two(text, 11) - offset,
      two(text, 14),
      two(text, 17),
      fraction === '' ? 0 : Number(fraction.padEnd(3, '0')),
    ),
  )
}

const [ZERO, POINT, MINUS] = [48, 46, 45]

function two(text: string, at: number): number {
  return (text.charCodeAt(at) - ZERO) * 10 + text.charCodeAt(at + 1) - ZERO
}

/** How values are read: as `pg` does, or was told to, but for moments. */
export const valueTypes = {
  getTypeParser(oid: number, format: 'text' | 'binary' = 'text'): Parse {
    const general: Parse = types.getTypeParser(oid, format)
    return oid === TIMESTAMPTZ && format === 'text' ? momentParser(general) : general
  },
}
