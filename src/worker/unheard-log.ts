/** Errors and warnings that nobody listens for still reach somebody: the given log, or stderr. */
import { inspect } from 'node:util'
import type { LogSource } from './context.ts'
import { type AnyEvent, type EventOf, type Events, type EventType, isDeadOutcome } from './events.ts'

type Level = 'warn' | 'error'

interface Entry<Type extends EventType> {
  /** Undefined: this one needs no attention. */
  readonly level: Level | ((event: EventOf<Type>) => Level | undefined)
  readonly message: string
}

/** The events that an operator may have to act upon. */
const ENTRIES: { readonly [Type in EventType]?: Entry<Type> } = {
  failed: {
    level: ({ outcome }) => (isDeadOutcome(outcome) ? 'error' : 'warn'),
    message: 'the handler failed',
  },
  renewalFailed: { level: 'warn', message: 'the heartbeat failed' },
  lost: { level: 'warn', message: 'a lease was lost' },
  aborted: { level: 'warn', message: "the handler's signal was fired" },
  fencedOff: { level: 'warn', message: 'fenced off: the outcome was not written' },
  paused: {
    level: ({ reason }) => (reason === 'saturated' || reason === 'unhealthy' ? 'warn' : undefined),
    message: 'claiming is paused',
  },
  reaped: {
    level: ({ outcome }) => (outcome === 'dead' ? 'error' : 'warn'),
    message: 'an expired lease was taken back',
  },
  dataError: { level: 'error', message: 'a data error stopped a row' },
  reaperFailed: { level: 'error', message: 'the reaper failed' },
  workerStopped: {
    level: ({ clean }) => (clean ? undefined : 'warn'),
    message: 'the worker process stopped with rows still leased',
  },
  workerDied: { level: 'error', message: 'a worker process died' },
  workerReturned: { level: 'warn', message: 'this worker process had been declared dead' },
  settingsRefused: { level: 'error', message: 'stored settings were refused' },
  databaseLost: { level: 'warn', message: 'the database cannot be reached' },
  notListening: { level: 'warn', message: 'not listening for wake-ups: polling instead' },
  maintenanceRan: {
    level: ({ dead }) => (dead > 0 ? 'warn' : undefined),
    message: 'maintenance of the table gave up rows: they are dead',
  },
  trouble: { level: 'error', message: 'an unexpected error' },
}

/** Logs those of this process's warnings and errors that no listener was given for. Returns what ends it. */
export function logUnheard(events: Events, worker: string, log: LogSource): () => void {
  return events.onUnheard((event) => {
    if (event.worker === worker) logEvent(event, log)
  })
}

function logEvent(event: AnyEvent, log: LogSource): void {
  // The entry is that of the event's own type, which the compiler cannot see for a union.
  const entry = ENTRIES[event.type] as Entry<EventType> | undefined
  if (entry === undefined) return
  const level = typeof entry.level === 'string' ? entry.level : entry.level(event)
  if (level === undefined) return
  const { type, error, ...rest }: Record<string, unknown> = { ...event }
  // JSON has no numbers of the size of a token.
  const fields = Object.fromEntries(
    Object.entries(rest).map(([name, value]) => [name, typeof value === 'bigint' ? String(value) : value]),
  )
  log[level]({ event: type, ...fields, ...(error === undefined ? {} : { err: error }) }, entry.message)
}

/** The log of a process that was given none: warnings and errors, one line of plain text each, on stderr. */
export const STDERR_LOG: LogSource = stderrLog({})

function stderrLog(bound: object): LogSource {
  const write = (level: Level, fields: object, message: string): void => {
    process.stderr.write(`${lineOf(level, { ...bound, ...fields }, message)}\n`)
  }
  return {
    debug: () => undefined,
    info: () => undefined,
    warn: (fields, message) => write('warn', fields, message),
    error: (fields, message) => write('error', fields, message),
    child: (fields) => stderrLog({ ...bound, ...fields }),
  }
}

/** `2026-01-31T08:15:02.125Z warn leasehold: the heartbeat failed: connection refused (table=public.jobs)` */
function lineOf(level: Level, { err, ...fields }: { readonly err?: unknown }, message: string): string {
  const cause = err === undefined ? '' : `: ${err instanceof Error ? err.message : shown(err)}`
  const named = Object.entries(fields).flatMap(([name, value]: [string, unknown]) =>
    name === 'event' || value === undefined ? [] : [`${name}=${shown(value)}`],
  )
  const details = named.length === 0 ? '' : ` (${named.join(', ')})`
  const text = `${new Date().toISOString()} ${level} leasehold: ${message}${cause}${details}`
  return withoutUrlPasswords(text.replaceAll(/\s*[\r\n]+\s*/g, ' '))
}

const MAX_VALUE_CHARACTERS = 200

function shown(value: unknown): string {
  const text = typeof value === 'string' ? value : inspect(value, { depth: 1 })
  return text.length <= MAX_VALUE_CHARACTERS ? text : `${text.slice(0, MAX_VALUE_CHARACTERS)}…`
}

/** An error message of a library may quote a connection URL; its password must not be logged (WH-NFR-003). */
function withoutUrlPasswords(text: string): string {
  return text.replaceAll(/(\w:\/\/[^\s:@/"?#]*):[^\s"/?#]+@/g, '$1:***@')
}
