/** The health of the workers for @nestjs/terminus, which is not needed here: its results are plain objects. */
import {
  type Check,
  createHealth,
  databaseAnswers,
  type Health,
  migrationsCurrent,
  workerChecks,
} from '../observe/health.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import type { LeaseholdModuleOptions, LeaseholdRuntime } from './runtime.ts'

/** What @nestjs/terminus expects of an indicator: the status, and by the name of each check what it found. */
export type LeaseholdHealth<Key extends string = string> = Record<
  Key,
  { status: 'up' | 'down' } & Record<string, string>
>

/**
 * The checks of `/readyz`: the database answers, its schema is current, the workers run, somebody reaps their tables.
 *
 * ```ts
 * class HealthController {
 *   constructor(readonly health: HealthCheckService, readonly leasehold: LeaseholdHealthIndicator) {}
 *
 *   @Get('health') @HealthCheck()
 *   check() {
 *     return this.health.check([async () => this.leasehold.isHealthy('leasehold')])
 *   }
 * }
 * ```
 */
export class LeaseholdHealthIndicator {
  readonly #options: LeaseholdModuleOptions
  readonly #runtime: LeaseholdRuntime
  #db: Database | undefined
  #health: Health | undefined
  #hasStopped = false

  constructor(options: LeaseholdModuleOptions, runtime: LeaseholdRuntime) {
    this.#options = options
    this.#runtime = runtime
  }

  /** Never rejects. The answer takes at most three seconds, also where the database does not answer. */
  async isHealthy<const Key extends string>(key: Key): Promise<LeaseholdHealth<Key>> {
    // A connection that is opened now would be closed by nobody.
    if (this.#hasStopped) return this.#answer(key, 'down', { application: 'has stopped' })
    // Opened by the first request: a process that only enqueues may never be asked.
    this.#health ??= createHealth(this.#checks())
    const results = await this.#health.examine()
    const status = results.every(({ ok }) => ok) ? ('up' as const) : ('down' as const)
    const details = Object.fromEntries(results.map(({ name, detail }) => [name, detail]))
    return this.#answer(key, status, details)
  }

  /** The last hook: until here the application answers requests. */
  async onApplicationShutdown(): Promise<void> {
    this.#hasStopped = true
    await this.#db?.close()
  }

  #answer<Key extends string>(
    key: Key,
    status: 'up' | 'down',
    details: Readonly<Record<string, string>>,
  ): LeaseholdHealth<Key> {
    // The compiler makes the name of the field a string.
    return { [key]: { ...details, status } } as LeaseholdHealth<Key>
  }

  #checks(): Check[] {
    const { databaseUrl, schema = 'leasehold', start = true } = this.#options
    const db = openDatabase({ url: databaseUrl, maxConnections: 3, applicationName: 'leasehold health' })
    this.#db = db
    return start
      ? workerChecks({ db, schema, runtime: () => this.#runtime.runtime })
      : [databaseAnswers(db), migrationsCurrent(db, schema)]
  }
}
