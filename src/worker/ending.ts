import type { LeaseStore } from '../lease/store.ts'
import type { Events } from './events.ts'
import type { Gate } from './gate.ts'
import { type Handling, refTo } from './handling.ts'
import type { HeldRows } from './held-rows.ts'
import type { SettleAndClaim } from './settle-and-claim.ts'
import type { Outcome } from './outcome.ts'
import {
  agrees,
  complete,
  DONE,
  type HandlerResult,
  type Circumstances,
  problemWith,
  RETURNED,
  type Settle,
  type Verdict,
  verdictOn,
} from './verdict.ts'

export interface EndingOptions<Row extends object> {
  readonly table: string
  readonly store: LeaseStore<Row>
  readonly events: Events
  readonly held: HeldRows
  readonly statements: SettleAndClaim<Row>
  readonly gate: Gate
  readonly circumstancesOf: (handling: Handling<Row>) => Omit<Circumstances, 'cutShort'>
  readonly isStopping: () => boolean
  /** The row is out of our hands. */
  readonly onGone: (handling: Handling<Row>, how: { readonly fencedOffAs: string } | undefined) => void
}

/** Carries out the verdict on a row whose handler has come back: it is settled, given back, or no longer ours. */
export class Ending<Row extends object> {
  readonly #options: EndingOptions<Row>

  constructor(options: EndingOptions<Row>) {
    this.#options = options
  }

  carryOut(handling: Handling<Row>, result: HandlerResult, now: number): void {
    const { held, statements, onGone } = this.#options
    const { settledAs, lost } = handling
    if (settledAs !== undefined && agrees(result, settledAs)) {
      this.#settledByItself(handling, settledAs)
      return
    }
    const verdict = this.#verdictOn(handling, result)
    if (lost !== undefined || !held.isTrusted(handling, now)) {
      const outcome = verdict.verdict === 'settle' ? verdict.outcome.outcome : 'release'
      onGone(handling, { fencedOffAs: outcome })
    } else if (verdict.verdict === 'settle') {
      if (verdict.failure !== undefined) this.#tellFailed(handling, verdict)
      held.finish(handling)
      statements.settle(handling, verdict.outcome, now)
    } else {
      this.#release(handling, verdict.saturatedForMs, result)
    }
  }

  #verdictOn(handling: Handling<Row>, result: HandlerResult): Verdict {
    if (result === RETURNED) return DONE
    const { store, circumstancesOf, isStopping } = this.#options
    const cutShort = isStopping() && handling.abort?.signal.aborted === true
    const circumstances = { ...circumstancesOf(handling), cutShort }
    const verdict = verdictOn(result, circumstances)
    if (verdict.verdict !== 'settle') return verdict
    const problem = problemWith(verdict.outcome, store.table)
    if (problem === undefined) return { ...verdict, outcome: complete(verdict.outcome, store.table) }
    const failed = verdictOn({ ended: 'threw', error: new TypeError(problem) }, circumstances)
    return failed.verdict === 'settle'
      ? { ...failed, outcome: complete(failed.outcome, store.table) }
      : failed
  }

  /** In a transaction of its handler's. */
  #settledByItself(handling: Handling<Row>, { outcome }: Outcome): void {
    const { table, store, events, statements, onGone } = this.#options
    onGone(handling, undefined)
    // The next row of its key can be claimed now.
    if (store.table.ordering !== undefined) statements.claimSoon()
    const ids = [handling.lease.id]
    events.emit('settled', { worker: store.owner, table, outcome, ids, durationMs: 0 })
  }

  #tellFailed(handling: Handling<Row>, { outcome: { outcome }, failure: error }: Settle): void {
    const { events, table } = this.#options
    events.emit('failed', { ...refTo(handling, table), attempt: handling.attempt, outcome, error })
  }

  /** Downstream has no room: the row goes back without counting an attempt (D9). */
  #release(handling: Handling<Row>, saturatedForMs: number, result: HandlerResult): void {
    const { gate, statements } = this.#options
    const error = result.ended === 'threw' ? result.error : undefined
    gate.shut('saturated', saturatedForMs, error)
    statements.release([handling], saturatedForMs)
  }
}
