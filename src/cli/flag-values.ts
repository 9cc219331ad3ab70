/** What flags hold, as values; a mistake names the flag, what it was given, and what it takes. */
import { UsageError, type Run } from './run.ts'

type Flags = Run['flags']

/** `orderingKey` → `--ordering-key`, as commander does it. */
function flagged(name: string): string {
  return `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`
}

export function wrong(name: string, value: string, rule: string): UsageError {
  return new UsageError(`${name.startsWith('<') ? name : flagged(name)} is ${JSON.stringify(value)}: ${rule}`)
}

export function textFlag(flags: Flags, name: string): string | undefined {
  const value = flags[name]
  if (typeof value !== 'string') return undefined
  if (value.trim() === '') throw wrong(name, value, 'give a text, or leave the flag out.')
  return value
}

export function textsFlag(flags: Flags, name: string): readonly string[] {
  const value: unknown = flags[name]
  return Array.isArray(value) ? value.filter((part) => typeof part === 'string') : []
}

export function isSet(flags: Flags, name: string): boolean {
  return flags[name] === true
}

export function wholeFlag(flags: Flags, name: string, most: number): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const number = Number(value)
  if (/^\d+$/.test(value) && number >= 1 && number <= most) return number
  throw wrong(name, value, `give a whole number from 1 to ${most}.`)
}

export function positiveFlag(flags: Flags, name: string, rule: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const number = Number(value)
  if (/^\d+(\.\d+)?$/.test(value) && number > 0) return number
  throw wrong(name, value, rule)
}

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const
const ISO = /^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?$/
const MOMENT_RULE =
  'a moment such as 2026-03-01T12:00:00Z (without an offset, in the time zone of this machine)'

/** A moment, or how long ago it was. */
export function pastFlag(flags: Flags, name: string, now: Date): Date | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const ago = /^(\d+)([smhd])$/.exec(value)
  // The pattern lets no other unit through.
  if (ago !== null) return new Date(now.getTime() - Number(ago[1]) * UNITS[ago[2] as keyof typeof UNITS])
  return parsed(name, value, `give ${MOMENT_RULE}, or how long ago it was: 90s, 15m, 2h, 7d.`)
}

export function momentFlag(flags: Flags, name: string): Date | undefined {
  const value = textFlag(flags, name)
  return value === undefined ? undefined : parsed(name, value, `give ${MOMENT_RULE}.`)
}

function parsed(name: string, value: string, rule: string): Date {
  // A date alone would mean midnight UTC, and a date with a time the local one: local for both.
  const moment = new Date(value.length === 10 ? `${value}T00:00` : value)
  if (!ISO.test(value) || Number.isNaN(moment.getTime())) throw wrong(name, value, rule)
  return moment
}
