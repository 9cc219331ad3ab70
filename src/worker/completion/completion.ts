import type { Lease } from '../../lease/lease.ts'
import type { LeaseStore } from '../../lease/store.ts'
import { tableName } from '../../lease/table.ts'
import type { Clock } from '../../clock.ts'
import type { PauseGate } from '../claiming/pausing.ts'
import type { Events } from '../events.ts'
import { latenciesOf, refTo, type RowInFlight, type RowsInFlight } from '../rows-in-flight.ts'
import {
  agrees,
  failureOf,
  type HandlerResult,
  type Outcome,
  problemWith,
  retryRulesFor,
  RETURNED_NOTHING,
  type Settle,
  SETTLE_AS_DONE,
  type Verdict,
  verdictOn,
  withAllArgs,
} from './outcome.ts'

export interface CompletionOptions<Row extends object> {
  readonly store: Pick<LeaseStore<Row>, 'table' | 'owner'>
  readonly clock: Clock
  readonly random: () => number
  readonly events: Events
  readonly inFlight: RowsInFlight<Row>
  /** Settles and releases. */
  readonly cycle: {
    settle(row: RowInFlight<Row>, outcome: Outcome, now: number): void
    release(rows: readonly RowInFlight<Row>[], delayMs?: number): void
    keysFreed(leases: readonly Lease[]): void
    notify(): void
  }
  readonly gate: Pick<PauseGate, 'shut' | 'isShutFor'>
  readonly describe?: ((row: Row) => Readonly<Record<string, string>>) | undefined
}

/** What happens when a handler has returned or thrown: its row is settled, released, or no longer ours. */
export class Completion<Row extends object> {
  readonly #options: CompletionOptions<Row>
  readonly #table: string

  constructor(options: CompletionOptions<Row>) {
    this.#options = options
    this.#table = tableName(options.store.table)
  }

  handlerEnded(row: RowInFlight<Row>, result: HandlerResult): void {
    const { inFlight, cycle } = this.#options
    inFlight.leaveGroup(row)
    if (row.settledAs !== undefined && agrees(result, row.settledAs)) {
      this.#settledByHandler(row, row.settledAs)
    } else this.#carryOut(row, result, this.#verdictOn(row, result))
    cycle.notify()
  }

  /** An error in our own code at the end of a handler must not end the process; the reaper recovers the row. */
  endedUnexpectedly(row: RowInFlight<Row>, error: unknown): void {
    const { store, events, inFlight } = this.#options
    events.emit('trouble', { worker: store.owner, what: `row ${row.lease.id} of ${this.#table}`, error })
    inFlight.drop(row)
  }

  #verdictOn(row: RowInFlight<Row>, result: HandlerResult): Verdict {
    if (result === RETURNED_NOTHING) return SETTLE_AS_DONE
    const { store, random, gate } = this.#options
    const isStopping = gate.isShutFor('stopping') && row.abort?.signal.aborted === true
    const rules = retryRulesFor(row, store.table, random)
    const verdict = verdictOn(result, rules, { isStopping })
    if (verdict.verdict !== 'settle') return verdict
    const problem = problemWith(verdict.outcome, store.table)
    if (problem === undefined) return { ...verdict, outcome: withAllArgs(verdict.outcome, store.table) }
    const failed = verdictOn({ ended: 'threw', error: new TypeError(problem) }, rules, { isStopping })
    return failed.verdict === 'settle'
      ? { ...failed, outcome: withAllArgs(failed.outcome, store.table) }
      : failed
  }

  #carryOut(row: RowInFlight<Row>, result: HandlerResult, verdict: Verdict): void {
    const { clock, inFlight, cycle } = this.#options
    const now = clock.monotonicNow()
    if (row.lost !== undefined || !inFlight.isTrusted(row, now)) {
      const isSettled = verdict.verdict === 'settle'
      inFlight.giveUp(row, isSettled ? verdict.outcome.name : 'release', isSettled)
    } else if (verdict.verdict === 'settle') {
      this.#tellFailed(row, verdict)
      inFlight.finish(row)
      cycle.settle(row, verdict.outcome, now)
    } else {
      this.#release(row, verdict.saturatedForMs, result)
    }
  }

  /** In a transaction of the handler's own. */
  #settledByHandler(row: RowInFlight<Row>, outcome: Outcome): void {
    const { store, clock, events, inFlight, cycle } = this.#options
    inFlight.drop(row)
    this.#tellFailed(row, { outcome, failure: failureOf(outcome) })
    const ids = [row.lease.id]
    if (store.table.ordering !== undefined) cycle.keysFreed([row.lease])
    const of = { worker: store.owner, table: this.#table }
    const latencies = latenciesOf([row], outcome.name, store.table.createdAt, clock.monotonicNow())
    events.emit('settled', { ...of, outcome: outcome.name, ids, durationMs: 0, ...latencies })
  }

  #tellFailed(row: RowInFlight<Row>, settled: Pick<Settle, 'outcome' | 'failure'>): void {
    const { outcome, failure: error } = settled
    if (error === undefined) return
    const { events, describe } = this.#options
    const details = describe === undefined ? {} : { details: describe(row.row) }
    const { attempt } = row
    events.emit('failed', { ...refTo(row, this.#table), ...details, attempt, outcome: outcome.name, error })
  }

  /** Downstream has no room: the row goes back without counting an attempt (D9). */
  #release(row: RowInFlight<Row>, saturatedForMs: number, result: HandlerResult): void {
    const { gate, cycle } = this.#options
    gate.shut('saturated', saturatedForMs, result.ended === 'threw' ? result.error : undefined)
    cycle.release([row], saturatedForMs)
  }
}
