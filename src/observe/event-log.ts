import type { EventOf, Events, EventType } from '../worker/events.ts'
import type { Logger } from './log.ts'

type Level = 'trace' | 'debug' | 'info' | 'warn' | 'error'

interface Entry<Type extends EventType> {
  readonly level: Level | ((event: EventOf<Type>) => Level)
  readonly message: string
}

/**
 * How each event reads in the log; one that is forgotten does not compile. What happens to single rows in the normal
 * course of work is for a person who traces; what an operator may have to act upon is a warning or an error.
 */
const ENTRIES: { readonly [Type in EventType]: Entry<Type> } = {
  claimed: { level: ({ count }) => (count === 0 ? 'trace' : 'debug'), message: 'claimed' },
  started: { level: 'trace', message: 'started' },
  failed: {
    level: ({ outcome }) => (outcome === 'dead' ? 'error' : 'warn'),
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
  resumed: { level: 'info', message: 'claiming goes on' },
  reaped: { level: 'warn', message: 'took back an expired lease' },
  dataError: { level: 'error', message: 'a data error: the row was left out of the statement' },
  reaperRan: { level: ({ recovered }) => (recovered === 0 ? 'debug' : 'info'), message: 'the reaper ran' },
  reaperFailed: { level: 'error', message: 'the reaper failed' },
  workerStarted: { level: 'info', message: 'the worker has started' },
  workerStopped: {
    level: ({ clean }) => (clean ? 'info' : 'warn'),
    message: 'the worker has stopped',
  },
  workerDied: { level: 'error', message: 'a worker has died' },
  workerReturned: { level: 'warn', message: 'this worker had been declared dead, and is not' },
  settingsChanged: { level: 'info', message: 'the settings have changed' },
  settingsRefused: { level: 'error', message: 'new settings were refused: the old ones stay' },
  databaseLost: { level: 'warn', message: 'the database is away' },
  databaseBack: { level: 'info', message: 'the database is back' },
  listening: { level: 'debug', message: 'listening for wake-ups' },
  notListening: { level: 'warn', message: 'not listening for wake-ups: work goes on by polling' },
  upkeepRan: { level: 'debug', message: 'looked after a table' },
  trouble: { level: 'error', message: 'trouble' },
}

// Object.keys forgets which keys it was given.
const TYPES = Object.keys(ENTRIES) as readonly EventType[]

/**
 * Writes every event into the log, with the ids it carries. What the log would not show anyway is not listened to, so
 * that a busy worker builds no event for it. Returns what ends the listening.
 */
export function logEvents(events: Events, log: Logger): () => void {
  const listening = TYPES.map((type) => listenTo(events, log, type, ENTRIES))
  return () => {
    for (const off of listening) off()
  }
}

function listenTo<Type extends EventType>(
  events: Events,
  log: Logger,
  type: Type,
  entries: { readonly [Each in Type]: Entry<Each> },
): () => void {
  const { level, message }: Entry<Type> = entries[type]
  if (typeof level === 'string' && !log.isLevelEnabled(level)) return () => {}
  return events.on(type, (event) => {
    const at = typeof level === 'string' ? level : level(event)
    if (log.isLevelEnabled(at)) log[at](fields(event), message)
  })
}

/** An event has ids and numbers and nothing of the row itself (WH-NFR-003); an error goes where errors are trimmed. */
function fields({ type, ...event }: EventOf<EventType>): Record<string, unknown> {
  const { error, ...rest }: Record<string, unknown> = event
  const entries = Object.entries(rest).map(([name, value]) => [
    name,
    // JSON has no numbers of this size.
    typeof value === 'bigint' ? value.toString() : value,
  ])
  return { event: type, ...Object.fromEntries(entries), ...(error === undefined ? {} : { err: error }) }
}
