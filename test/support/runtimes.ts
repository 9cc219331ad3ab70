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

/** Tests poll often, and a failed test must not wait long for a running handler. */
const SETTINGS = { pollMs: 50, shutdownTimeoutMs: 500 }

/** Starts workers of any kind in this process. They are stopped after each test. */
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
