/**
 * How each event is logged: its level, its message, its fields, and how often. Used by the log and by `unheard-log.ts`.
 */
import { hasCode, messageOf } from '../errors.ts'
import {
  type AnyEvent,
  type EventOf,
  type EventType,
  isDatabaseAway,
  isDeadOutcome,
  type PauseReason,
} from './events.ts'

export type Level = 'trace' | 'debug' | 'info' | 'warn' | 'error'

interface EventMessage<Type extends EventType> {
  readonly level: Level | ((event: EventOf<Type>) => Level)
  readonly message: string | ((event: EventOf<Type>) => string)
  /**
   * For what repeats as long as its cause lasts, or concerns one row of many: events with the same text are one kind, and
   * of a kind one line a minute is written. Undefined: this event is always written.
   */
  readonly kind?: (event: EventOf<Type>) => string | undefined
  /** The line that counts events of one row each names all of these rows. Not where the row has its own error. */
  readonly namesRows?: true
}

/**
 * An event without an entry does not compile. What happens to single rows in the normal course of work is `debug` or
 * `trace`; what an operator may have to act upon is a warning or an error.
 */
const EVENT_MESSAGES: { readonly [Type in EventType]: EventMessage<Type> } = {
  claimed: { level: 'debug', message: 'claimed' },
  started: { level: 'trace', message: 'started' },
  failed: {
    level: ({ outcome }) => (isDeadOutcome(outcome) ? 'error' : 'warn'),
    message: 'the handler failed',
    // Of a target that is down, one line. The row has its own error.
    kind: ({ table, outcome, error }) =>
      isDeadOutcome(outcome) ? undefined : `${table} ${messageOf(error)}`,
  },
  settled: { level: 'debug', message: 'settled' },
  released: { level: 'debug', message: 'released' },
  renewed: { level: 'trace', message: 'renewed' },
  // Each has rows of its own, and they are lost with it: an outage does not repeat it.
  renewalFailed: { level: 'warn', message: 'a renewal failed' },
  lost: {
    level: 'warn',
    message: 'lost a lease',
    kind: ({ table, reason }) => `${table} ${reason}`,
    namesRows: true,
  },
  aborted: {
    level: 'warn',
    message: "the handler's signal was fired",
    kind: ({ table, reason }) => `${table} ${reason}`,
    namesRows: true,
  },
  fencedOff: {
    level: 'warn',
    kind: ({ table, isUncertain }) => `${table} ${isUncertain}`,
    namesRows: true,
    message: ({ isUncertain }) =>
      isUncertain
        ? 'fenced off: the outcome was written by an earlier statement that got no answer, or not at all'
        : 'fenced off: the outcome was not written',
  },
  paused: {
    level: ({ reason }) => (isByItself(reason) ? 'warn' : 'info'),
    message: 'claiming is paused',
    kind: ({ table, reason }) => (isByItself(reason) ? `${table} ${reason}` : undefined),
  },
  resumed: {
    level: ({ stillPausedFor }) => (stillPausedFor === undefined ? 'info' : 'debug'),
    message: ({ stillPausedFor }) =>
      stillPausedFor === undefined
        ? 'claiming has resumed'
        : 'a reason to pause claiming has ended: claiming is still paused',
    kind: ({ table, reason, stillPausedFor }) =>
      isByItself(reason) ? `${table} ${reason} ${stillPausedFor === undefined}` : undefined,
  },
  reaped: {
    level: ({ outcome }) => (outcome === 'dead' ? 'error' : 'warn'),
    message: ({ outcome }) => `took back a lease${outcome === 'dead' ? ': the row is dead' : ''}`,
    kind: ({ table, outcome, owner }) => (outcome === 'dead' ? undefined : `${table} ${owner}`),
  },
  dataError: { level: 'error', message: 'a data error: the row was left out of the statement' },
  reaperRan: { level: ({ reaped }) => (reaped === 0 ? 'debug' : 'info'), message: 'the reaper ran' },
  reaperFailed: {
    level: 'error',
    message: 'the reaper failed',
    kind: ({ table = '', error }) => (isDatabaseAway(error) ? '' : table),
  },
  tableSlow: { level: 'warn', message: 'the table lacks an index: every claim reads more rows than it must' },
  reaperMissing: {
    level: 'error',
    message:
      'no reaper is alive in any process for these tables, so nobody takes back the leases of workers that die: run `leasehold work --only reaper`, or start a process with `reaper: true`',
    kind: ({ tables }) => tables.join(' '),
  },
  waitingForWorkerId: {
    level: 'warn',
    message:
      'another process has registered with this worker id: waiting until it is clear whether it is alive',
  },
  workerStarted: { level: 'info', message: 'the worker process has started' },
  workerStopped: {
    level: ({ clean }) => (clean ? 'info' : 'warn'),
    message: ({ clean }) => `the worker process has stopped${clean ? '' : ' with rows still leased'}`,
  },
  workerDied: { level: 'error', message: 'a worker process has died' },
  workerReturned: { level: 'warn', message: 'this worker process had been declared dead, but is alive' },
  settingsChanged: { level: 'info', message: 'the settings have changed' },
  settingsRefused: {
    level: 'error',
    message: 'stored settings are invalid: those do not apply, the others do',
    kind: ({ table, error }) => `${table} ${messageOf(error)}`,
  },
  databaseLost: { level: 'warn', message: 'the database is unavailable', kind: () => '' },
  // Not information only: whoever reads of the outage has to read of its end.
  databaseBack: { level: 'warn', message: 'the database is available again', kind: () => '' },
  listening: { level: 'debug', message: 'listening for wake-ups' },
  notListening: {
    level: 'warn',
    message: ({ error }) =>
      hasCode(error, 'LISTEN_UNAVAILABLE')
        ? 'wake-ups do not arrive: work continues by polling'
        : 'the session that listens for wake-ups was lost: work continues by polling',
    kind: () => '',
  },
  maintenanceRan: {
    level: ({ dead }) => (dead > 0 ? 'warn' : 'debug'),
    message: ({ dead }) => (dead > 0 ? 'maintenance gave up rows: they are dead' : 'maintained a table'),
  },
  trouble: {
    level: 'error',
    message: 'an unexpected error',
    kind: ({ what, error }) => `${what} ${messageOf(error)}`,
  },
}

/** Without an operator, and perhaps once more in a second. */
function isByItself(reason: PauseReason): boolean {
  return reason !== 'operator' && reason !== 'stopping'
}

// Object.keys forgets which keys it was given.
export const EVENT_TYPES = Object.keys(EVENT_MESSAGES) as readonly EventType[]

/** The level that all events of this type have; undefined where it depends on the event. */
export function fixedLevelOf(type: EventType): Level | undefined {
  const { level } = EVENT_MESSAGES[type]
  return typeof level === 'string' ? level : undefined
}

export function levelOf(event: EventOf<EventType>): Level {
  const { level } = entryOf(event)
  return typeof level === 'string' ? level : level(event)
}

export function eventMessage(event: EventOf<EventType>): string {
  const { message } = entryOf(event)
  return typeof message === 'string' ? message : message(event)
}

function entryOf({ type }: EventOf<EventType>): EventMessage<EventType> {
  // The entry is that of the event's own type, which the compiler cannot see for a union.
  return EVENT_MESSAGES[type] as EventMessage<EventType>
}

/** Events hold ids, numbers and names, and no secrets (WH-NFR-003). An error is reduced by whoever writes `err`. */
export function logFields({ type, ...event }: EventOf<EventType>): Record<string, unknown> {
  const { error, details, ...rest }: Record<string, unknown> = event
  // A number for each of a thousand rows helps nobody in a log; the metric has them.
  delete rest['latenciesMs']
  const fields = Object.entries({ ...(details as object | undefined), ...rest }).map(([name, value]) => [
    name,
    loggedValue(name, value),
  ])
  const err = type === 'paused' ? withoutStack(error) : error
  return { event: type, ...Object.fromEntries(fields), ...(err === undefined ? {} : { err }) }
}

function loggedValue(name: string, value: unknown): unknown {
  // JSON has no numbers of the size of a token.
  if (typeof value === 'bigint') return value.toString()
  return typeof value === 'number' && name.endsWith('Ms') ? Math.round(value * 10) / 10 : value
}

/** The handler's target is away or has no room: where that was noticed tells an operator nothing. */
function withoutStack(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  // Inherits everything else, so that it is logged with its name, its code and its cause.
  return Object.create(error, { stack: { value: undefined } }) as unknown
}

/** The states that begin with an event, by their subjects. Another event ends them. */
function statesAfter(given: EventOf<EventType>): readonly (readonly [subject: string, state: string])[] {
  // Whoever emits one gives it the fields of its own type.
  const event = given as AnyEvent
  if (event.type === 'databaseLost' || event.type === 'databaseBack') return [[event.worker, event.type]]
  if (event.type !== 'paused' && event.type !== 'resumed') return []
  const claiming = `${event.worker} ${event.table}`
  const isPaused = event.type === 'paused' || event.stillPausedFor !== undefined
  return [
    [claiming, isPaused ? 'paused' : 'resumed'],
    [`${claiming} ${event.reason}`, event.type],
  ]
}

/** Of each kind of repeated event one line is written in this time. */
const REPEAT_MS = 60_000

/** A line names at most so many rows; then it is written before its time. */
const MAX_NAMED_ROWS = 1_000

type Write = (level: Level, fields: Record<string, unknown>, message: string) => void

interface Repeats {
  readonly timer: NodeJS.Timeout
  last: EventOf<EventType>
  more: object
  count: number
  /** The rows of those that were counted, where the line names them. */
  rows: string[]
}

/**
 * Writes events as log entries. What repeats is written once and then counted: after a minute the last one is written,
 * with the number of those that were not (`repeated`) and their rows (`ids`). So an outage of the database is a few lines,
 * and so is its end, and no row that lost its lease is missing (WH-NFR-005).
 */
export class EventLog {
  readonly #write: Write
  readonly #repeats = new Map<string, Repeats>()
  /** The current state of each subject, see `statesAfter`. */
  readonly #states = new Map<string, string>()
  /** Since when the database has been away, by worker process. */
  readonly #awaySince = new Map<string, Date>()

  constructor(write: Write) {
    this.#write = write
  }

  add(event: EventOf<EventType>): void {
    const kind = entryOf(event).kind?.(event)
    const key = `${event.worker} ${event.type} ${kind}`
    const repeats = kind === undefined ? undefined : this.#repeats.get(key)
    for (const [subject, state] of statesAfter(event)) this.#states.set(subject, state)
    const outage = this.#followOutage(event)
    // Each worker of the process says that the database is back.
    if (outage === undefined) return
    if (repeats !== undefined) this.#count(key, repeats, event, outage)
    else {
      this.#writeLine(event, outage)
      if (kind !== undefined) this.#countFrom(key, event)
    }
  }

  #count(key: string, repeats: Repeats, event: EventOf<EventType>, more: object): void {
    Object.assign(repeats, { last: event, more, count: repeats.count + 1 })
    if (entryOf(event).namesRows !== true || !('id' in event)) return
    repeats.rows.push(event.id)
    if (repeats.rows.length < MAX_NAMED_ROWS) return
    this.#writeRepeated(key)
    Object.assign(repeats, { count: 0, rows: [] })
  }

  /** Writes what was counted and not written yet. */
  close(): void {
    for (const [key, { timer }] of this.#repeats) {
      clearTimeout(timer)
      this.#writeRepeated(key)
    }
    this.#repeats.clear()
  }

  #countFrom(key: string, event: EventOf<EventType>): void {
    const timer = setTimeout(() => {
      if (this.#writeRepeated(key)) this.#countFrom(key, event)
      else this.#repeats.delete(key)
    }, REPEAT_MS).unref()
    this.#repeats.set(key, { timer, last: event, more: {}, count: 0, rows: [] })
  }

  #writeRepeated(key: string): boolean {
    const { last, more, count = 0, rows = [] } = this.#repeats.get(key) ?? {}
    if (last === undefined || count === 0) return false
    // A repeated `databaseLost` that is reported after `databaseBack`, or the reverse, would mislead.
    const isOver = statesAfter(last).some(([subject, state]) => this.#states.get(subject) !== state)
    const ids = rows.length === 0 ? {} : { ids: rows }
    if (!isOver) this.#writeLine(last, { ...more, repeated: count, ...ids })
    return true
  }

  #writeLine(event: EventOf<EventType>, more: object): void {
    this.#write(levelOf(event), { ...logFields(event), ...more }, eventMessage(event))
  }

  /** Since when the database is away, or how long it was, for the entry. Undefined: it was known to be back. */
  #followOutage({ type, worker }: EventOf<EventType>): object | undefined {
    const since = this.#awaySince.get(worker)
    if (type === 'databaseLost') {
      if (since === undefined) this.#awaySince.set(worker, new Date())
      return since === undefined ? {} : { since }
    }
    if (type !== 'databaseBack') return {}
    this.#awaySince.delete(worker)
    return since === undefined ? undefined : { afterMs: Date.now() - since.getTime() }
  }
}
