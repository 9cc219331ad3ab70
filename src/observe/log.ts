/** The log: how entries are written, what must never be in one, and how events become entries. */
import { inspect } from 'node:util'
import { type Logger, pino } from 'pino'
import { LeaseholdError } from '../errors.ts'
import { type EventOf, type Events, type EventType, isDeadOutcome } from '../worker/events.ts'

export type { Logger } from 'pino'

export interface LogOptions {
  readonly level: string
  /** `json`: a line of JSON for each entry. `pretty`: a short line for a person. */
  readonly format: 'json' | 'pretty'
  readonly write: (text: string) => void
}

/** Fields that are never written, in whichever entry they are (WH-NFR-003). */
const SECRET_FIELDS = ['password', 'secret', 'signature', 'authorization', 'databaseUrl']

/** `postgresql://user:password@host`: an error message of a library may quote a URL. */
const URL_PASSWORD = /(\w:\/\/[^\s:@/"?#]*):[^\s"/?#]+@/g

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

export function withoutUrlPasswords(text: string): string {
  return text.replaceAll(URL_PASSWORD, '$1:***@')
}

/**
 * The fields of an error that are logged. The others are left out, because those of a database error quote values of the
 * row (WH-NFR-003). The message of a `LeaseholdError` says everything; of any other error the stack is wanted as well.
 */
function errorEntry(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { message: String(error) }
  const code = 'code' in error ? { code: error.code } : {}
  const cause = error.cause instanceof Error ? { cause: error.cause.message } : {}
  const stack = error instanceof LeaseholdError ? {} : { stack: error.stack }
  return { type: error.name, ...code, message: error.message, ...cause, ...stack }
}

/** Turns a line of JSON from pino into a line for a person: `08:15:02 warn  lost a connection  attempt=2`. */
function prettyLine(json: string): string {
  // It was written by pino just now.
  const { level, time, msg, err, ...rest } = JSON.parse(json) as Record<string, unknown>
  const clockTime = new Date(String(time)).toTimeString().slice(0, 8)
  const head = [clockTime, String(level).padEnd(5), prettyValue(msg)].join(' ').trimEnd()
  const fields = Object.entries(rest).map(([name, value]) => `${name}=${prettyValue(value)}`)
  return `${[head, ...fields].join('  ')}${prettyError(err)}\n`
}

function prettyValue(value: unknown): string {
  if (value === undefined) return ''
  return typeof value === 'string' ? value : inspect(value, { breakLength: Infinity })
}

function prettyError(error: unknown): string {
  if (typeof error !== 'object' || error === null) return ''
  // Made by `errorEntry`.
  const { message, stack } = error as Readonly<Record<string, unknown>>
  return stack === undefined ? `: ${prettyValue(message)}` : `\n${prettyValue(stack)}`
}

type Level = 'trace' | 'debug' | 'info' | 'warn' | 'error'

interface Entry<Type extends EventType> {
  readonly level: Level | ((event: EventOf<Type>) => Level)
  readonly message: string
}

/**
 * How each event is logged; an event without an entry does not compile. What happens to single rows in the normal course
 * of work is `debug` or `trace`; what an operator may have to act upon is a warning or an error.
 */
const ENTRIES: { readonly [Type in EventType]: Entry<Type> } = {
  claimed: { level: 'debug', message: 'claimed' },
  started: { level: 'trace', message: 'started' },
  failed: {
    level: ({ outcome }) => (isDeadOutcome(outcome) ? 'error' : 'warn'),
    message: 'the handler failed',
  },
  settled: { level: 'debug', message: 'settled' },
  released: { level: 'debug', message: 'released' },
  renewed: { level: 'trace', message: 'renewed' },
  renewalFailed: { level: 'warn', message: 'a renewal failed' },
  lost: { level: 'warn', message: 'lost a lease' },
  aborted: { level: 'warn', message: "the handler's signal was fired" },
  fencedOff: { level: 'warn', message: 'fenced off: the outcome was not written' },
  paused: {
    level: ({ reason }) => (reason === 'operator' || reason === 'stopping' ? 'info' : 'warn'),
    message: 'claiming is paused',
  },
  resumed: { level: 'info', message: 'claiming has resumed' },
  reaped: {
    level: ({ outcome }) => (outcome === 'dead' ? 'error' : 'warn'),
    message: 'took back a lease',
  },
  dataError: { level: 'error', message: 'a data error: the row was left out of the statement' },
  reaperRan: { level: ({ recovered }) => (recovered === 0 ? 'debug' : 'info'), message: 'the reaper ran' },
  reaperFailed: { level: 'error', message: 'the reaper failed' },
  workerStarted: { level: 'info', message: 'the worker process has started' },
  workerStopped: {
    level: ({ clean }) => (clean ? 'info' : 'warn'),
    message: 'the worker process has stopped',
  },
  workerDied: { level: 'error', message: 'a worker process has died' },
  workerReturned: { level: 'warn', message: 'this worker process had been declared dead, but is alive' },
  settingsChanged: { level: 'info', message: 'the settings have changed' },
  settingsRefused: { level: 'error', message: 'the new settings are invalid: the old ones stay in force' },
  databaseLost: { level: 'warn', message: 'the database is unavailable' },
  databaseBack: { level: 'info', message: 'the database is available' },
  listening: { level: 'debug', message: 'listening for wake-ups' },
  notListening: { level: 'warn', message: 'not listening for wake-ups: work continues by polling' },
  maintenanceRan: { level: ({ dead }) => (dead > 0 ? 'warn' : 'debug'), message: 'maintained a table' },
  trouble: { level: 'error', message: 'an unexpected error' },
}

// Object.keys forgets which keys it was given.
const EVENT_TYPES = Object.keys(ENTRIES) as readonly EventType[]

/**
 * Writes every event into the log. An event whose level is off is not listened to, so that a busy worker does not build
 * events that nobody reads. Returns what ends it.
 */
export function logEvents(events: Events, log: Logger): () => void {
  const ends = EVENT_TYPES.map((type) => logEventsOfType(events, log, type, ENTRIES))
  return () => {
    for (const end of ends) end()
  }
}

function logEventsOfType<Type extends EventType>(
  events: Events,
  log: Logger,
  type: Type,
  entries: { readonly [Each in Type]: Entry<Each> },
): () => void {
  const { level, message }: Entry<Type> = entries[type]
  if (typeof level === 'string' && !log.isLevelEnabled(level)) return () => {}
  return events.on(type, (event) => {
    const at = typeof level === 'string' ? level : level(event)
    if (log.isLevelEnabled(at)) log[at](fieldsOf(event), message)
  })
}

/** Events hold ids and numbers and no values of rows (WH-NFR-003). An error is reduced by the serializer of `err`. */
function fieldsOf({ type, ...event }: EventOf<EventType>): Record<string, unknown> {
  const { error, ...rest }: Record<string, unknown> = event
  const fields = Object.entries(rest).map(([name, value]) => [
    name,
    // JSON has no numbers of this size.
    typeof value === 'bigint' ? value.toString() : value,
  ])
  return { event: type, ...Object.fromEntries(fields), ...(error === undefined ? {} : { err: error }) }
}
