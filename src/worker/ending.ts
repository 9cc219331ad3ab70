import type { LeaseStore } from '../lease/store.ts'
import type { RetryPolicy } from './back-off.ts'
import type { Events } from './events.ts'
import type { Exchange } from './exchange.ts'
import type { Gate } from './gate.ts'
import { type Handling, refTo } from './handling.ts'
import type { HeldRows } from './held-rows.ts'
import type { Outcome } from './outcome.ts'
import {
  agrees,
  DONE,
  type HandlerResult,
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
  readonly exchange: Exchange<Row>
  readonly gate: Gate
  readonly retry: RetryPolicy
  readonly random: () => number
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
    const { held, exchange, onGone } = this.#options
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
      exchange.settle(handling, verdict.outcome, now)
    } else {
      this.#giveBack(handling, verdict.saturatedForMs, result)
    }
  }

  #verdictOn(handling: Handling<Row>, result: HandlerResult): Verdict {
    if (result === RETURNED) return DONE
    const { retry: policy, random, isStopping } = this.#options
    const cutShort = isStopping() && handling.abort?.signal.aborted === true
    return verdictOn(result, { attempt: handling.attempt, policy, random, cutShort })
  }

  /** In a transaction of its handler's. */
  #settledByItself(handling: Handling<Row>, { outcome }: Outcome): void {
    const { table, store, events, exchange, onGone } = this.#options
    onGone(handling, undefined)
    // The transaction has ended: whoever waited behind the row can be seen now.
    if (handling.left !== undefined) {
      store.lookAgain(handling.left)
      exchange.advanced()
    }
    const ids = [handling.lease.id]
    events.emit('settled', { worker: store.owner, table, outcome, ids, durationMs: 0 })
  }

  #tellFailed(handling: Handling<Row>, { outcome: { outcome }, failure: error }: Settle): void {
    const { events, table } = this.#options
    events.emit('failed', { ...refTo(handling, table), attempt: handling.attempt, outcome, error })
  }

  /** Downstream has no room, or the handler was cut short. */
  #giveBack(handling: Handling<Row>, saturatedForMs: number | undefined, result: HandlerResult): void {
    const { gate, exchange } = this.#options
    const error = result.ended === 'threw' ? result.error : undefined
    if (saturatedForMs !== undefined) gate.shut('saturated', saturatedForMs, error)
    exchange.giveBack([handling], saturatedForMs)
  }
}
