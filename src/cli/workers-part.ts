import type { Logger, RunState } from '../observe/index.ts'
import { tableName } from '../lease/index.ts'
import { startRuntime, type Events, type Runtime } from '../worker/index.ts'
import type { Settings } from '../config/index.ts'
import type { ChosenWork } from './choose-work.ts'
import type { Part } from './parts.ts'

export interface WorkersOptions {
  readonly databaseUrl: string
  readonly settings: Pick<Settings, 'schema' | 'givenTiming' | 'timing'>
  readonly work: ChosenWork
  readonly events: Events
  readonly log: Logger
}

export interface StartingWorkers {
  readonly part: Part
  readonly started: Promise<Runtime>
  readonly state: () => RunState
  readonly inFlight: () => number
}

/** The runtime stops within the shutdown timeout; this much later it is not waited for any more. */
const GRACE_MS = 10_000

/**
 * Starts the workers and the reaper. The part is there at once: a process that is told to end while they are still
 * starting waits for them, to stop them.
 */
export function startWorkersPart({
  databaseUrl,
  settings,
  work,
  events,
  log,
}: WorkersOptions): StartingWorkers {
  const { workers, reaper, declared } = work
  const { schema, givenTiming, timing } = settings
  let state: RunState = 'starting'
  let runtime: Runtime | undefined

  async function start(): Promise<Runtime> {
    const options = {
      databaseUrl,
      schema,
      workers,
      reaper,
      reapTables: declared,
      settings: givenTiming,
      events,
      log,
      migrate: false,
    }
    runtime = await startRuntime(options)
    if (state === 'starting') state = 'running'
    tell(runtime, 'works')
    return runtime
  }

  /** REC-11: who works, how often it looks, how long its leases last. */
  function tell(from: Runtime, message: string): void {
    const { id } = from
    for (const { name, table } of workers) {
      const { pollMs, leaseMs, concurrency } = from.worker(name).settings
      log.info({ worker: id, role: name, table: tableName(table), pollMs, leaseMs, concurrency }, message)
    }
    if (reaper) log.info({ worker: id, role: 'reaper', intervalMs: timing.reaperIntervalMs }, message)
  }

  const started = start()
  return {
    started,
    state: () => state,
    inFlight: () => runtime?.inFlight ?? 0,
    part: {
      name: 'workers',
      get stopWithinMs() {
        const timeouts = workers.map(({ name }) => runtime?.worker(name).settings.shutdownTimeoutMs ?? 0)
        return Math.max(timing.shutdownTimeoutMs, ...timeouts) + GRACE_MS
      },
      async stop() {
        state = 'stopping'
        // A start that failed is reported to whoever awaits `started`, and left nothing to stop.
        const ready = await started.catch(() => undefined)
        if (ready === undefined) return { clean: true }
        const { clean } = await ready.stop()
        tell(ready, clean ? 'stopped' : 'stopped, and left rows to the reaper')
        return { clean }
      },
    },
  }
}
