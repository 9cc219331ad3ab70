/** The log: how entries are written, what must never be in one, and how events become entries. */
import { type Logger, pino } from 'pino'
import { LeaseholdError, withoutUrlPasswords } from '../errors.ts'
import { SaturatedError } from '../worker/completion/outcome.ts'
import type { HandlerLog } from '../worker/context.ts'
import { EVENT_TYPES, EventLog, fixedLevelOf, levelOf } from '../worker/event-messages.ts'
import type { Events, EventType } from '../worker/events.ts'
import { stackFrames, textLine } from '../worker/unheard-log.ts'

export type { Logger } from 'pino'

/** What events are written to; a `pino` logger fits. */
export interface EventLogger extends HandlerLog {
  trace(fields: object, message: string): void
  isLevelEnabled(level: string): boolean
}

export interface LogOptions {
  readonly level: string
  /** `json`: a line of JSON for each entry. `pretty`: a short line for a person. */
  readonly format: 'json' | 'pretty'
  readonly write: (text: string) => void
}

/** Fields that are never written, in whichever entry they are (WH-NFR-003). */
const SECRET_FIELDS = ['password', 'secret', 'signature', 'authorization', 'databaseUrl', 'listenUrl']

export function createLog({ level, format, write }: LogOptions): Logger {
  const formatLine = format === 'pretty' ? prettyLine : (json: string): string => json
  return pino(
    {
      level,
      // Whoever collects the log knows the process and its host.
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: errorEntry },
      redact: { paths: SECRET_FIELDS.flatMap((name) => [name, `*.${name}`]), censor: '***' },
    },
    { write: (json) => write(withoutUrlPasswords(formatLine(json))) },
  )
}

/**
 * The fields of an error that are logged. The others are left out, because those of a database error quote values of the
 * row (WH-NFR-003). The message of a `LeaseholdError` or a `SaturatedError` says everything; of any other error the stack is wanted as well.
 */
function errorEntry(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { message: String(error) }
  const code = 'code' in error ? { code: error.code } : {}
  const cause = error.cause instanceof Error ? { cause: error.cause.message } : {}
  const isExpected = error instanceof LeaseholdError || error instanceof SaturatedError
  const stack = isExpected ? {} : { stack: error.stack }
  return { type: error.name, ...code, message: error.message, ...cause, ...stack }
}

/** Turns a line of JSON from pino into a line for a person: `08:15:02 warn  lost a connection: reset (attempt=2)`. */
function prettyLine(json: string): string {
  // It was written by pino just now, and `err` by `errorEntry`.
  const { level, time, msg = '', err, ...fields } = JSON.parse(json) as Record<string, unknown>
  const { message, stack, code } = (err ?? {}) as Readonly<
    Record<'message' | 'stack' | 'code', string | undefined>
  >
  const clockTime = new Date(String(time)).toTimeString().slice(0, 8)
  const head = `${clockTime} ${String(level).padEnd(5)} `
  return `${head}${textLine(String(msg), message, { ...fields, code })}${stackFrames(stack)}\n`
}

/**
 * Writes every event into the log, except those of the types in `except`. An event whose level is off is not listened to, so that a busy worker does not build
 * events that nobody reads. Returns what ends it.
 */
export function logEvents(events: Events, log: EventLogger, except: readonly EventType[] = []): () => void {
  const lines = new EventLog((level, fields, message) => log[level](fields, message))
  const logged = EVENT_TYPES.filter((type) => !except.includes(type))
  const ends = logged.map((type) => {
    const fixedLevel = fixedLevelOf(type)
    if (fixedLevel !== undefined && !log.isLevelEnabled(fixedLevel)) return () => {}
    return events.on(type, (event) => {
      if (log.isLevelEnabled(levelOf(event))) lines.add(event)
    })
  })
  return () => {
    for (const end of ends) end()
    lines.close()
  }
}
