import { within } from '../postgres/deadline.ts'
import { createLoop, type Loop } from './loop.ts'
import type { Worker } from './worker.ts'

/** Asks what the handler sends to whether it is well (RULE-020-042). */
export interface SinkProbe {
  readonly everyMs: number
  /** Resolves when it is; rejects when it is not. */
  check(signal: AbortSignal): Promise<void>
}

/** A probe that does not answer says as much as one that says no, and must not hold up a shutdown. */
const LONGEST_CHECK_MS = 5_000

/** Pauses claiming as long as the sink is not well. Probing goes on, so that it resumes by itself. */
export function createSinkProbe(probe: SinkProbe, worker: Pick<Worker, 'name' | 'pause' | 'resume'>): Loop {
  return createLoop({
    name: `probe of ${worker.name}`,
    work: async (stop) => {
      const boundMs = Math.min(probe.everyMs, LONGEST_CHECK_MS)
      const bound = AbortSignal.any([stop, AbortSignal.timeout(boundMs)])
      if (!(await within(boundMs, probe.check(bound))))
        throw new Error(`the probe did not answer within ${boundMs} ms`)
      worker.resume('unhealthy')
    },
    pauseMs: () => probe.everyMs,
    onError: (error) => worker.pause('unhealthy', undefined, error),
  })
}
