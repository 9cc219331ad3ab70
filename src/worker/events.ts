/**
 * Everything that happens, as typed events: the only source of logs, metrics and tests. What concerns many rows at once
 * is one event with a count or a list of ids, so that a busy worker does not emit one for each row.
 */
import { hasCode } from '../errors.ts'
import { isReadOnly, isUnavailable } from '../postgres/failures.ts'
import { stringifiable } from '../stringifiable.ts'

/** Why a worker stopped trusting the lease of a row it was processing. */
export type LossReason =
  /** A renewal found that the row is no longer ours: reaped, evicted or settled elsewhere. */
  | 'taken'
  /** The lease could not be confirmed in time (D8): the worker was stopped, or the database did not answer. */
  | 'untrusted'
  /** The database could not be reached for a heartbeat (RULE-020-012). */
  | 'heartbeatFailed'
  /** Three lease durations have passed (RULE-020-051). */
  | 'tooLong'

/** Why claiming is paused. */
export type PauseReason = 'operator' | 'saturated' | 'unhealthy' | 'stopping'

interface OfWorker {
  /** The id of the worker process that emits the event. */
  readonly worker: string
}

interface OfTable extends OfWorker {
  /** The table's qualified name. */
  readonly table: string
}

interface OfRow extends OfTable {
  readonly id: string
  /** The fencing token of the lease. */
  readonly token: bigint
}

export interface EventMap {
  /** A claim found rows. */
  claimed: OfTable & {
    readonly count: number
    /** It found as many as it asked for: there may be more. */
    readonly full: boolean
    readonly durationMs: number
  }
  /** The handler was called. */
  started: OfRow & { readonly attempt: number }
  /** The handler threw, or its outcome is dead, or a retry with an error. */
  failed: OfRow & {
    readonly attempt: number
    readonly outcome: string
    readonly error: unknown
    /** What the worker says of its rows: the type and the ordering key of an event, say. */
    readonly details?: Readonly<Record<string, string>>
  }
  /** The outcomes of rows were written, by one statement. */
  settled: OfTable & {
    readonly outcome: string
    readonly ids: readonly string[]
    readonly durationMs: number
    /** Of rows that are done, in a table that declares `createdAt`: the time since they were written (`latencyOf`). */
    readonly latenciesMs?: readonly number[]
  }
  /** Leases were given back without an outcome: at shutdown, or because downstream was saturated. */
  released: OfTable & { readonly ids: readonly string[] }
  /** A heartbeat renewed the leases of rows in flight. */
  renewed: OfTable & {
    readonly count: number
    /** Rows that another session had locked. They are tried again shortly. */
    readonly busy: number
    readonly durationMs: number
  }
  /** A heartbeat failed. The rows keep their leases until these expire. */
  renewalFailed: OfTable & { readonly ids: readonly string[]; readonly error: unknown }
  /** The lease of a row that waits for a slot or is running is no longer ours, or no longer known to be. */
  lost: OfRow & { readonly reason: LossReason }
  /** The handler's signal was fired. */
  aborted: OfRow & { readonly reason: LossReason | 'stopping' }
  /**
   * An outcome that was not written: the lease was no longer current, or could no longer be trusted. `isUncertain`: an
   * earlier statement with the same outcome got no answer, and may have written it.
   */
  fencedOff: OfRow & { readonly outcome: string; readonly isUncertain: boolean }
  /** The worker stopped claiming, with the error that caused it, where there is one. */
  paused: OfTable & {
    readonly reason: PauseReason
    /** For how long, where that is known. */
    readonly forMs: number | undefined
    readonly error?: unknown
  }
  /** One reason for a pause has ended. `stillPausedFor`: those that have not, where there are any. */
  resumed: OfTable & { readonly reason: PauseReason; readonly stillPausedFor?: readonly PauseReason[] }
  /** A row was taken back whose lease had expired, or whose worker process was dead: by a reaper, or by any worker process. */
  reaped: OfTable & {
    readonly id: string
    readonly token: bigint
    /** The worker id that had the lease. */
    readonly owner: string
    /** The time since the end of the lease; 0 if it had not ended. */
    readonly staleMs: number
    /** The owner was declared dead before its lease had ended. */
    readonly evicted: boolean
    /** `dead`: its attempts are used up. `retry`: it can be claimed once more. */
    readonly outcome: 'retry' | 'dead'
  }
  /** A row stops a statement with a data error. Emitted each time it is tried. */
  dataError: OfTable & {
    readonly verb: 'claim' | 'renew' | 'settle' | 'release' | 'reap'
    readonly id: string
    readonly error: unknown
    /** How long the row is left alone; absent where its lease expires instead. */
    readonly retryInMs?: number
  }
  /** The reaper has looked at all tables that were due. */
  reaperRan: OfWorker & { readonly reaped: number; readonly durationMs: number }
  /** The reaper failed: on one table, or without one as a whole. */
  reaperFailed: OfWorker & { readonly table: string | undefined; readonly error: unknown }
  /** The table lacks an index, at the start. The worker runs, and reads more rows than it must. */
  tableSlow: OfTable & {
    readonly what: string
    /** The statement that creates the index. */
    readonly remedy: string
  }
  /** No process reaps these tables: nobody takes back the leases of workers that die. Repeated for as long as it lasts. */
  reaperMissing: OfWorker & { readonly tables: readonly string[] }
  /** The process does not start before it is clear whether another one with its worker id is alive. */
  waitingForWorkerId: OfWorker & { readonly host: string; readonly pid: number; readonly lastSeenAt: Date }
  /** The workers of this process run. `roles`: their names. */
  workerStarted: OfWorker & { readonly roles: readonly string[] }
  /** The workers of this process have stopped. `clean`: every row was settled or released. */
  workerStopped: OfWorker & { readonly clean: boolean }
  /** Another worker was found dead (RULE-020-052). Emitted once, by the one that declared it. */
  workerDied: OfWorker & {
    readonly died: string
    readonly host: string
    readonly pid: number
    readonly lastSeenAt: Date
  }
  /** This worker had been declared dead, and is not. */
  workerReturned: OfWorker
  /** The worker follows other settings from now on. */
  settingsChanged: OfTable & { readonly settings: Readonly<Record<string, unknown>> }
  /** Settings of the `settings` table cannot work, and do not apply. */
  settingsRefused: OfTable & { readonly error: unknown }
  /** The database could not be reached, did not answer, or takes no writes. Emitted for each attempt. */
  databaseLost: OfWorker & { readonly what: string; readonly error: unknown }
  /** It answers, after `databaseLost`. */
  databaseBack: OfWorker
  /** The connection that listens for wake-ups works. */
  listening: OfWorker
  /** It does not: the worker polls until it does. */
  notListening: OfWorker & { readonly error: unknown }
  /** The periodic work on a table was done: old rows removed, say. */
  maintenanceRan: OfTable & {
    readonly done: Readonly<Record<string, number>>
    /** How many rows it made dead: deliveries that could not be attempted for too long, say. */
    readonly dead: number
    readonly durationMs: number
  }
  /** Something that should not happen and is not allowed to end the process. */
  trouble: OfWorker & { readonly what: string; readonly error: unknown }
}

/** Whether the error says that the database cannot be used at the moment, and is worth another attempt later. */
export function isDatabaseAway(error: unknown): boolean {
  // From the thread of the heartbeat an error arrives without its class, but with its code.
  const hasOwnCode = hasCode(error, 'DATABASE_UNAVAILABLE', 'QUERY_TIMEOUT', '25006')
  return hasOwnCode || isUnavailable(error) || isReadOnly(error)
}

/** Whether a statement that failed with this error may have been executed: its answer never came. */
export function mayHaveBeenWritten(error: unknown): boolean {
  return isDatabaseAway(error) && !isReadOnly(error)
}

/** Reports an error that did not end the process. That the database is away is nothing unexpected. */
export function reportError(events: Events, worker: string, what: string, error: unknown): void {
  events.emit(isDatabaseAway(error) ? 'databaseLost' : 'trouble', { worker, what, error })
}

/** Whether a row that was settled so is dead. A chunk of sync is `exhausted` when it is given up without another attempt. */
export function isDeadOutcome(outcome: string): boolean {
  return outcome === 'dead' || outcome === 'exhausted'
}

export type EventType = keyof EventMap
export type AnyEvent = { [Type in EventType]: { readonly type: Type } & EventMap[Type] }[EventType]
export type EventOf<Type extends EventType> = { readonly type: Type } & EventMap[Type]

type Listener = (event: AnyEvent) => void

/** Listeners for events, by type. */
export class Events {
  readonly #byType = new Map<EventType, Set<Listener>>()
  readonly #internal = new Map<EventType, Set<Listener>>()
  readonly #all = new Set<Listener>()
  readonly #unheard = new Set<Listener>()

  /** Whether anybody listens: a busy worker builds no event for each row otherwise. */
  wanted(type: EventType): boolean {
    return this.#isHeard(type) || (this.#internal.get(type)?.size ?? 0) > 0
  }

  /** A listener that throws does not affect the work: Node warns of it, and the other listeners are called. */
  emit<Type extends EventType>(type: Type, event: EventMap[Type]): void {
    const isHeard = this.#isHeard(type)
    if (!isHeard && this.#unheard.size === 0 && !this.wanted(type)) return
    // The map says that this type goes with this event; the union cannot see it for a type that is still open.
    const typed = { type, ...event } as AnyEvent
    if ('token' in typed) stringifiable(typed)
    const listeners = [
      ...(this.#internal.get(type) ?? []),
      ...(this.#byType.get(type) ?? []),
      ...(isHeard ? this.#all : this.#unheard),
    ]
    for (const listener of listeners) {
      try {
        listener(typed)
      } catch (error) {
        process.emitWarning(error instanceof Error ? error : String(error), 'LeaseholdListenerWarning')
      }
    }
  }

  #isHeard(type: EventType): boolean {
    return this.#all.size > 0 || (this.#byType.get(type)?.size ?? 0) > 0
  }

  /** Returns a function that removes the listener. */
  on<Type extends EventType>(type: Type, listener: (event: EventOf<Type>) => void): () => void {
    return add(this.#byType, type, listener)
  }

  onAny(listener: (event: AnyEvent) => void): () => void {
    this.#all.add(listener)
    return () => this.#all.delete(listener)
  }

  /** For parts of Leasehold itself: the event still counts as unheard if nobody else listens. */
  onInternal<Type extends EventType>(type: Type, listener: (event: EventOf<Type>) => void): () => void {
    return add(this.#internal, type, listener)
  }

  /** Called with the events that no listener was given for. */
  onUnheard(listener: (event: AnyEvent) => void): () => void {
    this.#unheard.add(listener)
    return () => this.#unheard.delete(listener)
  }

  /** The next event of this type that fits. */
  async next<Type extends EventType>(
    type: Type,
    fits: (event: EventOf<Type>) => boolean = () => true,
  ): Promise<EventOf<Type>> {
    return new Promise((resolve) => {
      const off = this.on(type, (event) => {
        if (!fits(event)) return
        off()
        resolve(event)
      })
    })
  }
}

function add<Type extends EventType>(
  to: Map<EventType, Set<Listener>>,
  type: Type,
  listener: (event: EventOf<Type>) => void,
): () => void {
  const listeners = to.get(type) ?? new Set<Listener>()
  to.set(type, listeners)
  // It is only called with events of its own type.
  listeners.add(listener as Listener)
  return () => listeners.delete(listener as Listener)
}
