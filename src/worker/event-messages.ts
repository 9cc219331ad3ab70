/** How each event is logged: its level, its message and its fields. Used by the log and by `unheard-log.ts`. */
import { type EventOf, type EventType, isDeadOutcome } from './events.ts'

export type Level = 'trace' | 'debug' | 'info' | 'warn' | 'error'

interface EventMessage<Type extends EventType> {
  readonly level: Level | ((event: EventOf<Type>) => Level)
  readonly message: string | ((event: EventOf<Type>) => string)
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
  },
  settled: { level: 'debug', message: 'settled' },
  released: { level: 'debug', message: 'released' },
  renewed: { level: 'trace', message: 'renewed' },
  renewalFailed: { level: 'warn', message: 'a renewal failed' },
  lost: { level: 'warn', message: 'lost a lease' },
  aborted: { level: 'warn', message: "the handler's signal was fired" },
  fencedOff: {
    level: 'warn',
    message: ({ isUncertain }) =>
      isUncertain
        ? 'fenced off: the outcome was written by an earlier statement that got no answer, or not at all'
        : 'fenced off: the outcome was not written',
  },
  paused: {
    level: ({ reason }) => (reason === 'operator' || reason === 'stopping' ? 'info' : 'warn'),
    message: 'claiming is paused',
  },
  resumed: { level: 'info', message: 'claiming has resumed' },
  reaped: {
    level: ({ outcome }) => (outcome === 'dead' ? 'error' : 'warn'),
    message: ({ outcome }) => `took back a lease${outcome === 'dead' ? ': the row is dead' : ''}`,
  },
  dataError: { level: 'error', message: 'a data error: the row was left out of the statement' },
  reaperRan: { level: ({ recovered }) => (recovered === 0 ? 'debug' : 'info'), message: 'the reaper ran' },
  reaperFailed: { level: 'error', message: 'the reaper failed' },
  workerStarted: { level: 'info', message: 'the worker process has started' },
  workerStopped: {
    level: ({ clean }) => (clean ? 'info' : 'warn'),
    message: ({ clean }) => `the worker process has stopped${clean ? '' : ' with rows still leased'}`,
  },
  workerDied: { level: 'error', message: 'a worker process has died' },
  workerReturned: { level: 'warn', message: 'this worker process had been declared dead, but is alive' },
  settingsChanged: { level: 'info', message: 'the settings have changed' },
  settingsRefused: { level: 'error', message: 'the new settings are invalid: the old ones stay in force' },
  databaseLost: { level: 'warn', message: 'the database is unavailable' },
  databaseBack: { level: 'info', message: 'the database is available' },
  listening: { level: 'debug', message: 'listening for wake-ups' },
  notListening: { level: 'warn', message: 'not listening for wake-ups: work continues by polling' },
  maintenanceRan: {
    level: ({ dead }) => (dead > 0 ? 'warn' : 'debug'),
    message: ({ dead }) => (dead > 0 ? 'maintenance gave up rows: they are dead' : 'maintained a table'),
  },
  trouble: { level: 'error', message: 'an unexpected error' },
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

/** Events hold ids and numbers and no values of rows (WH-NFR-003). An error is reduced by whoever writes `err`. */
export function logFields({ type, ...event }: EventOf<EventType>): Record<string, unknown> {
  const { error, ...rest }: Record<string, unknown> = event
  const fields = Object.entries(rest).map(([name, value]) => [
    name,
    // JSON has no numbers of the size of a token.
    typeof value === 'bigint' ? value.toString() : value,
  ])
  return { event: type, ...Object.fromEntries(fields), ...(error === undefined ? {} : { err: error }) }
}
