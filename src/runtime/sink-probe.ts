import { createLoop, type Loop } from './loop.ts'
import { type Worker } from './worker.ts'

/** Asks what the handler sends to whether it is well (RULE-020-042). */
export interface SinkProbe {
  readonly everyMs: number
  /** Resolves when it is; rejects when it is not. */
  check(signal: AbortSignal): Promise<void>
}

/** Pauses claiming as long as the sink is not well. Probing goes on, so that it resumes by itself. */
export function createSinkProbe(probe: SinkProbe, worker: Pick<Worker, 'name' | 'pause' | 'resume'>): Loop {
  return createLoop({
    name: `probe of ${worker.name}`,
    work: async (stop) => {
      await probe.check(stop)
      worker.resume('unhealthy')
    },
    pauseMs: () => probe.everyMs,
    onError: () => worker.pause('unhealthy'),
  })
}
