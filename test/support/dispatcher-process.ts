import type { WorkerSettings } from '../../src/worker/index.ts'
import type { DispatcherOptions } from '../../src/webhooks/dispatcher/dispatcher.ts'
import type { Processes } from './processes.ts'
import { SECRET_KEY } from './webhook-endpoints.ts'
import { told, type WorkerProcess } from './worker-process.ts'

/** What test/fixtures/dispatcher.mjs understands. */
export interface DispatcherConfig {
  readonly databaseUrl: string
  /** Events that are written out. */
  readonly tell?: readonly string[]
  readonly settings?: Partial<WorkerSettings>
  readonly dispatcher?: Pick<DispatcherOptions, 'schedule' | 'circuitBreaker' | 'limits'>
  /** Passed on to startRuntime. */
  readonly runtime?: Readonly<Record<string, unknown>>
}

export function startDispatcherProcess({ spawnNode }: Processes, config: DispatcherConfig): WorkerProcess {
  const order = { secretKey: SECRET_KEY, ...config }
  return told(spawnNode('test/fixtures/dispatcher.mjs', [JSON.stringify(order)]))
}
