import { type Clock, systemClock } from '../clock.ts'
import type { PauseReason } from './events.ts'
import { usableMs } from './outcome.ts'

export interface GateChange {
  readonly reason: PauseReason
  readonly paused: boolean
  readonly forMs: number | undefined
  readonly error?: unknown
}

interface Shut {
  readonly until: number
  readonly timer: NodeJS.Timeout | undefined
}

/** Whether rows may be claimed and started. It is shut as long as there is any reason to. */
export class Gate {
  readonly #reasons = new Map<PauseReason, Shut>()
  readonly #onChange: (change: GateChange) => void
  readonly #clock: Clock

  constructor(onChange: (change: GateChange) => void, clock: Clock = systemClock) {
    this.#onChange = onChange
    this.#clock = clock
  }

  get open(): boolean {
    return this.#reasons.size === 0
  }

  /** For so long, or until it is opened for the same reason. Said again, the later end counts. */
  shut(reason: PauseReason, forMs?: number, error?: unknown): void {
    const known = this.#reasons.get(reason)
    const shutMs = forMs === undefined ? undefined : usableMs(forMs)
    const until = this.#clock.monotonicNow() + (shutMs ?? Number.POSITIVE_INFINITY)
    if (known !== undefined && known.until >= until) return
    clearTimeout(known?.timer)
    const timer = shutMs === undefined ? undefined : setTimeout(() => this.openFor(reason), shutMs)
    this.#reasons.set(reason, { until, timer })
    const cause = error === undefined ? {} : { error }
    if (known === undefined) this.#onChange({ reason, paused: true, forMs, ...cause })
  }

  openFor(reason: PauseReason): void {
    if (!this.#reasons.has(reason)) return
    clearTimeout(this.#reasons.get(reason)?.timer)
    this.#reasons.delete(reason)
    this.#onChange({ reason, paused: false, forMs: undefined })
  }

  /** No timer stays behind. What it was shut for still counts: a claim on its way must not find it open. */
  close(): void {
    for (const { timer } of this.#reasons.values()) clearTimeout(timer)
  }
}
