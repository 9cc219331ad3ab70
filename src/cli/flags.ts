/** Flags and arguments as values. An error names the flag, the value it was given, and what it accepts. */
import type { Command } from 'commander'
import { messageOf } from '../errors.ts'
import { readTime } from '../operations/input.ts'
import { isRowId } from '../operations/request-checks.ts'
import { unstorableText } from '../unstorable-text.ts'
import { type Run, UsageError } from './command.ts'
import { printable } from './output.ts'

type Flags = Run['flags']

const MAX_PAGE_ROWS = 1_000

/** For commander: flags that several commands have. */
export const JSON_FLAG = ['--json', 'print one JSON document instead of text, for scripts'] as const
export const PRINCIPAL_FLAG = [
  '--principal <name>',
  'who makes the change, for the audit (default: the account that runs the command)',
] as const

/** For a flag by its name in camel case, or an argument written as `<id>`. */
export function invalidArgument(name: string, value: string, rule: string): UsageError {
  return new UsageError(
    `${name.startsWith('<') ? name : flagName(name)} is ${JSON.stringify(value)}: ${rule}`,
  )
}

/** `orderingKey` → `--ordering-key`, as commander does it. */
export function flagName(name: string): string {
  return `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`
}

export function isSet(flags: Flags, name: string): boolean {
  return flags[name] === true
}

export function textFlag(flags: Flags, name: string): string | undefined {
  const value = flags[name]
  if (typeof value !== 'string') return undefined
  if (value.trim() === '') throw invalidArgument(name, value, 'give it a value, or leave the flag out.')
  const unstorable = unstorableText(value)
  if (unstorable !== undefined)
    throw invalidArgument(name, value, `give a text without ${unstorable}, which PostgreSQL cannot store.`)
  return value
}

/** The values of a flag that can be repeated; see `collect`. */
export function textsFlag(flags: Flags, name: string): readonly string[] {
  const value: unknown = flags[name]
  return Array.isArray(value) ? value.filter((part) => typeof part === 'string') : []
}

/** For commander: collects the values of an option that can be repeated. */
export function collect(value: string, before: unknown): readonly string[] {
  return [...(Array.isArray(before) ? before.map(String) : []), value]
}

export function wholeFlag(flags: Flags, name: string, max: number): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const number = Number(value)
  if (/^\d+$/.test(value) && number >= 1 && number <= max) return number
  throw invalidArgument(name, value, `give a whole number from 1 to ${max}.`)
}

export function positiveFlag(flags: Flags, name: string, rule: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const number = Number(value)
  if (/^\d+(\.\d+)?$/.test(value) && number > 0) return number
  throw invalidArgument(name, value, rule)
}

const TIME_RULE =
  'a moment such as 2026-03-01T12:00:00Z (without an offset, in the time zone of this machine)'

export function momentFlag(flags: Flags, name: string): Date | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const time = readTime(value, new Date())
  if (time === undefined) throw invalidArgument(name, value, `give ${TIME_RULE}.`)
  return time
}

/** A time in the past, which can also be given as how long ago it was. */
export function pastFlag(flags: Flags, name: string, now: Date): Date | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const time = readTime(value, now, 'past')
  if (time !== undefined) return time
  throw invalidArgument(name, value, `give ${TIME_RULE}, or how long ago it was: 90s, 15m, 2h, 7d.`)
}

const DURATION_UNITS: ReadonlyMap<string, number> = new Map([
  ['ms', 1],
  ['s', 1_000],
  ['m', 60_000],
  ['h', 3_600_000],
  ['d', 86_400_000],
])

/** How long, in milliseconds. */
export function durationFlag(flags: Flags, name: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const [, number, unit = ''] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(value) ?? []
  const ms = DURATION_UNITS.get(unit)
  if (number === undefined || ms === undefined)
    throw invalidArgument(name, value, 'say how long: 90s, 15m, 2h or 7d.')
  return Number(number) * ms
}

/** `--limit` of a command that lists rows. */
export function limitFlag(flags: Flags): number | undefined {
  return wholeFlag(flags, 'limit', MAX_PAGE_ROWS)
}

/** `--before` of a command that lists the newest rows first; `id` says what it accepts. */
export function beforeFlag(flags: Flags, id: string): string | undefined {
  const before = textFlag(flags, 'before')
  if (before === undefined || isRowId(before)) return before
  throw invalidArgument('before', before, `give ${id}.`)
}

/** The values of `--header name=value`. */
export function headersOf(given: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    given.map((header, i) => {
      const [, name = '', value = ''] = /^([^=]+)=(.*)$/s.exec(header) ?? []
      // It is not repeated: it may be a credential, for example of `--header 'Authorization: Bearer …'`.
      if (name.trim() === '')
        throw new UsageError(`--header number ${i + 1} is not understood: give it as name=value.`)
      return [name.trim(), value]
    }),
  )
}

/** A payload from the command line or from stdin. */
export function jsonArgument(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const start = printable(text.length > 60 ? `${text.slice(0, 60)}…` : text)
    const problem = printable(messageOf(error))
    throw new UsageError(
      `the payload is not JSON: ${start}\n  ${problem}\n  Give an object as '{"id": 1}', a string as '"text"', or - to read the payload from stdin.`,
    )
  }
}

/** Who runs the command, for the audit. */
export function principalOf({ flags, terminal }: Pick<Run, 'flags' | 'terminal'>): string {
  const given = textFlag(flags, 'principal')
  if (given !== undefined) return given
  try {
    return terminal.account()
  } catch {
    throw new UsageError('--principal is missing: this account has no name, so give yours for the audit.')
  }
}

/** Why the command is run, for the audit. */
export function reasonOf(flags: Flags): string {
  const reason = textFlag(flags, 'reason')
  if (reason !== undefined) return reason
  throw new UsageError('--reason is missing: give the reason in a few words, for the audit.')
}

/** The flags `--from` and `--to`. `happened`: what the rows did at that time, such as `sent`. */
export function addPeriodFlags(command: Command, happened: string): Command {
  return command
    .option(
      '--from <time>',
      `only ${happened} at this time or later: 2026-03-01T12:00:00Z, or 2h for two hours ago`,
    )
    .option('--to <time>', `only ${happened} before this time`)
}

/** The period of `--from` and `--to`. */
export function readPeriod(flags: Flags, now: Date): { readonly from?: Date; readonly to?: Date } {
  const from = pastFlag(flags, 'from', now)
  const to = pastFlag(flags, 'to', now)
  if (from !== undefined && to !== undefined && from >= to) {
    const given = textFlag(flags, 'to') ?? ''
    throw invalidArgument('to', given, `it must be later than --from, which is ${from.toISOString()}.`)
  }
  return { ...(from === undefined ? {} : { from }), ...(to === undefined ? {} : { to }) }
}
