import { setTimeout as pause } from 'node:timers/promises'
import type { Clock } from '../clock.ts'
import { LeaseholdError } from '../errors.ts'
import type { LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import type { Queryable } from '../postgres/queryable.ts'
import {
  retryRulesFor,
  done,
  type Outcome,
  problemWith,
  retryOrDead,
  withAllArgs,
} from './completion/outcome.ts'
import { type RowInFlight, type RowsInFlight, signalOf } from './rows-in-flight.ts'

/** What a handler writes log entries to; a `pino` logger fits. */
export interface HandlerLog {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}

export interface LogSource extends HandlerLog {
  child(fields: object): HandlerLog
}

/** Writes nothing. */
export const SILENT_LOG: LogSource = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => SILENT_LOG,
}

/** What a handler gets. Renewal is automatic: there is nothing to extend. */
export interface HandlerContext<Row = Record<string, unknown>> {
  readonly row: Row
  readonly id: string
  /** The id of the worker that holds the lease. */
  readonly worker: string
  /** The fencing token: hand it on to whatever the handler writes to, so that it can refuse an older one. */
  readonly token: bigint
  /** 1 for the first attempt. A worker that died on the row counts. */
  readonly attempt: number
  /** Fires when the lease is lost or the worker has to stop; its reason says which. Stop working then. */
  readonly signal: AbortSignal
  /** The current time by the database's clock: as read when the row was claimed, plus the time since then. */
  databaseTime(): Date
  /** Carries the ids of worker, table, row and token. */
  readonly log: HandlerLog
  /**
   * Settles the row inside the handler's own transaction, so that its effects in this database happen exactly once.
   * Throws `FENCED_OFF` when the lease is no longer current: let it roll the transaction back.
   */
  settleIn(tx: Queryable, outcome?: Outcome): Promise<void>
}

/**
 * How long `settleIn` waits before it retries a locked row. Shorter than for a settlement of the worker's own: the
 * handler's transaction is open meanwhile, and what has locked the row is mostly a renewal, over in milliseconds.
 */
const SETTLE_IN_RETRY_MS = 20

/** What the contexts of one worker share. */
export interface ContextOptions<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly inFlight: RowsInFlight<Row>
  readonly log: LogSource
  readonly clock: Clock
  readonly random: () => number
}

/** The signal and the log are created on first use: most handlers use neither. */
export class RowContext<Row extends object> implements HandlerContext<Row> {
  readonly #row: RowInFlight<Row>
  readonly #options: ContextOptions<Row>
  #log: HandlerLog | undefined

  constructor(row: RowInFlight<Row>, options: ContextOptions<Row>) {
    this.#row = row
    this.#options = options
  }

  get row(): Row {
    return this.#row.row
  }
  get id(): string {
    return this.#row.lease.id
  }
  get worker(): string {
    return this.#options.store.owner
  }
  get token(): bigint {
    return this.#row.lease.token
  }
  get attempt(): number {
    return this.#row.attempt
  }
  databaseTime(): Date {
    const { databaseClaimedAt, claimedAt } = this.#row
    return new Date(databaseClaimedAt + this.#options.clock.monotonicNow() - claimedAt)
  }
  get signal(): AbortSignal {
    return signalOf(this.#row)
  }
  get log(): HandlerLog {
    const { store, log } = this.#options
    const { id, token } = this
    this.#log ??= log.child({ worker: store.owner, table: tableName(store.table), id, token: String(token) })
    return this.#log
  }

  async settleIn(tx: Queryable, outcome: Outcome = done()): Promise<void> {
    const { store, inFlight, clock, random } = this.#options
    const { lease } = this.#row
    const problem = problemWith(outcome, store.table)
    if (problem !== undefined) throw new TypeError(problem)
    const decided = retryOrDead(outcome, retryRulesFor(this.#row, store.table, random))
    const settledAs = withAllArgs(decided, store.table)
    for (;;) {
      if (!inFlight.isTrusted(this.#row, clock.monotonicNow())) throw this.#fencedOff()
      const { ended, busy } = await store.settle(settledAs.name, [lease], { args: [settledAs.args], tx })
      if (ended.length > 0) break
      if (busy.length === 0) throw this.#fencedOff()
      // A renewal, or another session, has locked the row at this moment.
      await pause(SETTLE_IN_RETRY_MS)
    }
    this.#row.settledAs = settledAs
  }

  #fencedOff(): LeaseholdError {
    const message = `Row ${this.id} of ${tableName(this.#options.store.table)} is no longer leased with token ${this.token}.`
    return new LeaseholdError('FENCED_OFF', message, {
      remedy: 'Roll back; another worker has the row or will get it.',
    })
  }
}
