/** Errors and warnings that nobody listens for still reach somebody: the given log, or stderr. */
import { inspect } from 'node:util'
import { LeaseholdError, withoutUrlPasswords } from '../errors.ts'
import { SaturatedError } from './completion/outcome.ts'
import type { LogSource } from './context.ts'
import { EventLog } from './event-messages.ts'
import type { Events } from './events.ts'

/** Logs those of this process's warnings and errors that no listener was given for. Returns what ends it. */
export function logUnheard(events: Events, worker: string, log: LogSource): () => void {
  const lines = new EventLog((level, fields, message) => {
    if (level === 'warn' || level === 'error') log[level](fields, message)
  })
  const off = events.onUnheard((event) => {
    if (event.worker === worker) lines.add(event)
  })
  return () => {
    off()
    lines.close()
  }
}

/** The log of a process that was given none: warnings and errors, one line of plain text each, on stderr. */
export const STDERR_LOG: LogSource = stderrLog({})

/** The same for a worker that reports on its own work: what it is told to log is written, information as well. */
export const STDERR_REPORT: LogSource = stderrLog({}, { info: true })

function stderrLog(bound: object, also: { readonly info?: true } = {}): LogSource {
  const write = (level: 'info' | 'warn' | 'error', fields: object, message: string): void => {
    process.stderr.write(`${lineOf(level, { ...bound, ...fields }, message)}\n`)
  }
  return {
    debug: () => undefined,
    info: (fields, message) => (also.info === true ? write('info', fields, message) : undefined),
    warn: (fields, message) => write('warn', fields, message),
    error: (fields, message) => write('error', fields, message),
    child: (fields) => stderrLog({ ...bound, ...fields }, also),
  }
}

/** `2026-01-31T08:15:02.125Z warn leasehold: a renewal failed: connection refused (table=public.jobs)` */
function lineOf(level: 'info' | 'warn' | 'error', fields: object, message: string): string {
  const { text, frames } = textEntry(fields, message)
  return `${new Date().toISOString()} ${level} leasehold: ${text}${frames}`
}

/**
 * An entry as text: what happened, and of an error of a handler the frames of its stack, because where it was thrown is
 * what its author has to know.
 */
export function textEntry(
  { err, ...fields }: { readonly err?: unknown },
  message: string,
): { readonly text: string; readonly frames: string } {
  const cause = err instanceof Error ? err.message : err
  const isOfHandler = 'event' in fields && fields.event === 'failed'
  const isExpected = err instanceof LeaseholdError || err instanceof SaturatedError
  const frames = isOfHandler && err instanceof Error && !isExpected ? stackFrames(err.stack) : ''
  return {
    text: withoutUrlPasswords(textLine(message, cause, { ...fields, ...codeOf(err) })),
    frames: withoutUrlPasswords(frames),
  }
}

function codeOf(error: unknown): object {
  return error instanceof Error && 'code' in error ? { code: error.code } : {}
}

/** An entry for a person, on one line: what happened, why, and in parentheses the fields. */
export function textLine(message: string, cause: unknown, fields: object): string {
  const why = cause === undefined ? '' : typeof cause === 'string' ? cause : textOf(cause)
  const named = Object.entries(fields).flatMap(([name, value]: [string, unknown]) =>
    name === 'event' || value === undefined ? [] : [`${name}=${textOf(value)}`],
  )
  const sentence = [message, why].filter((text) => text !== '').join(': ')
  const details = named.length === 0 ? '' : `(${named.join(', ')})`
  const parts = [sentence, details].filter((text) => text !== '')
  return parts.join(' ').replaceAll(/\s*[\r\n]+\s*/g, ' ')
}

/** The frames of a stack, one line each. Its first lines are the message. */
export function stackFrames(stack = ''): string {
  const frames = stack.split('\n').filter((line) => /^\s+at /.test(line))
  return frames.map((line) => `\n    ${line.trim()}`).join('')
}

const MAX_VALUE_CHARACTERS = 200
const LIST = { depth: 1, breakLength: Infinity, maxArrayLength: null, compact: true } as const

function textOf(value: unknown): string {
  // Each row that an entry names is wanted (WH-NFR-005), however many they are.
  if (Array.isArray(value)) return withoutUrlPasswords(inspect(value, LIST))
  // Before it is cut: of half a URL nobody can tell what is its password.
  const text = withoutUrlPasswords(
    typeof value === 'string' ? value : inspect(value, { depth: 1, breakLength: Infinity }),
  )
  return text.length <= MAX_VALUE_CHARACTERS ? text : `${text.slice(0, MAX_VALUE_CHARACTERS)}…`
}
