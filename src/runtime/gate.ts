import { type PauseReason } from './events.ts'

/** Whether rows may be claimed and started. It is shut as long as there is any reason to. */
export class Gate {
  readonly #reasons = new Map<PauseReason, NodeJS.Timeout | undefined>()
  readonly #onChange: (change: { reason: PauseReason; paused: boolean; forMs: number | undefined }) => void

  constructor(
    onChange: (change: { reason: PauseReason; paused: boolean; forMs: number | undefined }) => void,
  ) {
    this.#onChange = onChange
  }

  get open(): boolean {
    return this.#reasons.size === 0
  }

  /** For so long, or until it is opened for the same reason. Said again, the later end counts. */
  shut(reason: PauseReason, forMs?: number): void {
    const known = this.#reasons.has(reason)
    clearTimeout(this.#reasons.get(reason))
    const timer = forMs === undefined ? undefined : setTimeout(() => this.openFor(reason), forMs)
    this.#reasons.set(reason, timer)
    if (!known) this.#onChange({ reason, paused: true, forMs })
  }

  openFor(reason: PauseReason): void {
    if (!this.#reasons.has(reason)) return
    clearTimeout(this.#reasons.get(reason))
    this.#reasons.delete(reason)
    this.#onChange({ reason, paused: false, forMs: undefined })
  }

  /** No timer stays behind. */
  close(): void {
    for (const timer of this.#reasons.values()) clearTimeout(timer)
    this.#reasons.clear()
  }
}
