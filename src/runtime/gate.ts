import { type Clock, systemClock } from '../clock.ts'
import { type PauseReason } from './events.ts'
import { usableMs } from './outcome.ts'

interface Shut {
  readonly until: number
  readonly timer: NodeJS.Timeout | undefined
}

/** Whether rows may be claimed and started. It is shut as long as there is any reason to. */
export class Gate {
  readonly #reasons = new Map<PauseReason, Shut>()
  readonly #onChange: (change: { reason: PauseReason; paused: boolean; forMs: number | undefined }) => void
  readonly #clock: Clock

  constructor(
    onChange: (change: { reason: PauseReason; paused: boolean; forMs: number | undefined }) => void,
    clock: Clock = systemClock,
  ) {
    this.#onChange = onChange
    this.#clock = clock
  }

  get open(): boolean {
    return this.#reasons.size === 0
  }

  /** For so long, or until it is opened for the same reason. Said again, the later end counts. */
  shut(reason: PauseReason, forMs?: number): void {
    const known = this.#reasons.get(reason)
    const shutMs = forMs === undefined ? undefined : usableMs(forMs)
    const until = this.#clock.monotonicNow() + (shutMs ?? Number.POSITIVE_INFINITY)
    if (known !== undefined && known.until >= until) return
    clearTimeout(known?.timer)
    const timer = shutMs === undefined ? undefined : setTimeout(() => this.openFor(reason), shutMs)
    this.#reasons.set(reason, { until, timer })
    if (known === undefined) this.#onChange({ reason, paused: true, forMs })
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
