/** Pausing: claiming and starting stop for a reason, and what was not started is released. */
import { type Clock, systemClock } from '../../clock.ts'
import { within } from '../../timeout.ts'
import type { PauseReason } from '../events.ts'
import { createLoop, type Loop } from '../loop.ts'
import { timerMs } from '../completion/outcome.ts'

export interface PauseChange {
  readonly reason: PauseReason
  readonly paused: boolean
  readonly forMs: number | undefined
  readonly error?: unknown
}

interface Shut {
  readonly until: number
  readonly timer: NodeJS.Timeout | undefined
}

/** Whether rows may be claimed and started. It is shut as long as there is any reason. */
export class PauseGate {
  readonly #reasons = new Map<PauseReason, Shut>()
  readonly #onChange: (change: PauseChange) => void
  readonly #clock: Clock

  constructor(onChange: (change: PauseChange) => void, clock: Clock = systemClock) {
    this.#onChange = onChange
    this.#clock = clock
  }

  get open(): boolean {
    return this.#reasons.size === 0
  }

  /** For this time, or until it is opened for the same reason. Shut twice for a reason, the later end counts. */
  shut(reason: PauseReason, forMs?: number, error?: unknown): void {
    const known = this.#reasons.get(reason)
    const shutMs = forMs === undefined ? undefined : timerMs(forMs)
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

  isShutFor(reason: PauseReason): boolean {
    return this.#reasons.has(reason)
  }

  /** Clears the timers. The gate stays shut: the rows of a claim on its way must not be started. */
  close(): void {
    for (const { timer } of this.#reasons.values()) clearTimeout(timer)
  }
}

/** Asks the system that the handler sends to whether it is well (RULE-020-042). */
export interface SinkProbe {
  readonly everyMs: number
  /** Resolves when it is; rejects when it is not. */
  check(signal: AbortSignal): Promise<void>
}

/** A probe that does not answer in this time counts as failed, and must not hold up a shutdown. */
const MAX_CHECK_MS = 5_000

/** Pauses claiming as long as the sink is not well. Probing goes on, so that it resumes by itself. */
export function createSinkProbe(
  probe: SinkProbe,
  worker: {
    readonly name: string
    pause(reason: PauseReason, forMs?: number, error?: unknown): void
    resume(reason: PauseReason): void
  },
): Loop {
  return createLoop({
    name: `probe of ${worker.name}`,
    work: async (stop) => {
      const boundMs = Math.min(probe.everyMs, MAX_CHECK_MS)
      const bound = AbortSignal.any([stop, AbortSignal.timeout(boundMs)])
      if (!(await within(boundMs, probe.check(bound))))
        throw new Error(`the probe did not answer within ${boundMs} ms`)
      worker.resume('unhealthy')
    },
    pauseMs: () => probe.everyMs,
    onError: (error) => worker.pause('unhealthy', undefined, error),
  })
}
