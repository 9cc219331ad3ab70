import { setTimeout as pause } from 'node:timers/promises'
import { LeaseholdError } from '../errors.ts'
import type { LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { type Handling, signalOf } from './handling.ts'
import type { HeldRows } from './held-rows.ts'
import { done, type Outcome } from './outcome.ts'
import { complete, problemWith } from './verdict.ts'

/** What a handler writes its own log lines to; `pino` fits. */
export interface HandlerLog {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}

export interface LogSource extends HandlerLog {
  child(fields: object): HandlerLog
}

/** Where nobody wants to read any. */
export const SILENT: LogSource = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => SILENT,
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
  /** The present by the database's clock: what was read when the row was claimed, and the time since then. */
  databaseTime(): Date
  /** Carries the ids of worker, table, row and token. */
  readonly log: HandlerLog
  /**
   * Settles the row inside the handler's own transaction, so that its effects in this database happen exactly once.
   * Throws `FENCED_OFF` when the lease is no longer current: let it roll the transaction back.
   */
  settleIn(tx: Queryable, outcome?: Outcome): Promise<void>
}

/** How long `settleIn` waits before it tries a locked row again; until the lease can no longer be trusted. */
const BUSY_RETRY_MS = 20

/** What the contexts of one worker share. */
export interface ContextParts<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly held: HeldRows
  readonly log: LogSource
  readonly now: () => number
  readonly byPolicy: (outcome: Outcome, handling: Handling<Row>) => Outcome
}

/** The signal and the log are made when they are asked for: most handlers ask for neither. */
export class RowContext<Row extends object> implements HandlerContext<Row> {
  readonly #handling: Handling<Row>
  readonly #parts: ContextParts<Row>
  #log: HandlerLog | undefined

  constructor(handling: Handling<Row>, parts: ContextParts<Row>) {
    this.#handling = handling
    this.#parts = parts
  }

  get row(): Row {
    return this.#handling.row
  }
  get id(): string {
    return this.#handling.lease.id
  }
  get worker(): string {
    return this.#parts.store.owner
  }
  get token(): bigint {
    return this.#handling.lease.token
  }
  get attempt(): number {
    return this.#handling.attempt
  }
  databaseTime(): Date {
    const { databaseClaimedAt, claimedAt } = this.#handling
    return new Date(databaseClaimedAt + this.#parts.now() - claimedAt)
  }
  get signal(): AbortSignal {
    return signalOf(this.#handling)
  }
  get log(): HandlerLog {
    const { store, log } = this.#parts
    const { id, token } = this
    this.#log ??= log.child({ worker: store.owner, table: tableName(store.table), id, token: String(token) })
    return this.#log
  }

  async settleIn(tx: Queryable, outcome: Outcome = done()): Promise<void> {
    const { store, held, now, byPolicy } = this.#parts
    const { lease } = this.#handling
    const problem = problemWith(outcome, store.table)
    if (problem !== undefined) throw new TypeError(problem)
    const settledAs = complete(byPolicy(outcome, this.#handling), store.table)
    for (;;) {
      if (!held.isTrusted(this.#handling, now())) throw this.#fencedOff()
      const { ended, busy } = await store.settle(settledAs.outcome, [lease], { args: [settledAs.args], tx })
      if (ended.length > 0) break
      if (busy.length === 0) throw this.#fencedOff()
      // A renewal, or another session, has the row locked at this moment.
      await pause(BUSY_RETRY_MS)
    }
    this.#handling.settledAs = settledAs
  }

  #fencedOff(): LeaseholdError {
    const message = `Row ${this.id} of ${tableName(this.#parts.store.table)} is no longer leased with token ${this.token}.`
    return new LeaseholdError('FENCED_OFF', message, {
      remedy: 'Roll back; another worker has the row or will get it.',
    })
  }
}
