import { afterEach } from 'vitest'
import {
  Events,
  startRuntime,
  type Runtime,
  type RuntimeOptions,
  type WorkDeclaration,
} from '../../src/worker/index.ts'

export interface Running {
  readonly runtime: Runtime
  readonly events: Events
}

/** A test looks often, and one that fails with a handler at work must not wait long for it. */
const SETTINGS = { pollMs: 50, shutdownTimeoutMs: 500 }

/** Workers of any kind in this process. What a test started is stopped after it. */
export function useRuntimes(databaseUrl: string) {
  const started: Runtime[] = []
  afterEach(async () => {
    await Promise.all(started.splice(0).map(async (runtime) => runtime.stop()))
  })
  return async (
    workers: readonly WorkDeclaration<never>[],
    { events = new Events(), ...more }: Partial<RuntimeOptions> = {},
  ): Promise<Running> => {
    const runtime = await startRuntime({
      databaseUrl,
      // Tests listen for the events that they are about.
      log: false,
      heartbeat: 'inline',
      ...more,
      events,
      workers: workers.map((worker) => ({ ...worker, settings: { ...SETTINGS, ...worker.settings } })),
    })
    started.push(runtime)
    return { runtime, events }
  }
}
