/**
 * Bulk changes that run in the background of a server. A change is recorded in the audit when it is asked for, and each of
 * its batches is; so any server can continue it when the one that ran it ends.
 */
import { forgetSessions } from '../../operations/api-sessions.ts'
import { resumeBulkChange } from '../../operations/bulk-change.ts'
import { cancelRevoked, failChange, leftChanges, type LeftChange } from '../../operations/changes.ts'
import { isLeaseholdError, messageOf } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { isLockConflict, isUnavailable } from '../../postgres/failures.ts'
import { actingAs, actingForServer, type ActingRoles } from './acting.ts'
import { bulkChange } from './bulk-changes.ts'
import { forgetAnswers } from './idempotency.ts'
import { ConnectionLimiter } from './limits.ts'

export interface BackgroundOptions {
  readonly db: Database
  readonly schema: string
  readonly roles: ActingRoles
  readonly onError: (error: unknown) => void
  /** A change of which nothing was heard for so long is continued by whoever finds it. Default: two minutes. */
  readonly silentMs?: number
}

/** A batch may wait for locks, and reads up to some thousands of rows. */
const STATEMENT_TIMEOUT_MS = 60_000

/** Statements of the server itself read and write a few rows. */
const OWN_STATEMENT_TIMEOUT_MS = 5_000

/**
 * Requests need the other connections of the pool. Batches of all changes take turns: one that waits for its rate, for hours
 * perhaps, or has millions of rows does not keep the others waiting.
 */
const CONNECTIONS = { atOnce: 2, waitMs: Infinity, maxWaiting: Infinity }

const SILENT_MS = 120_000
const FIND_EVERY_MS = 60_000

export class BackgroundChanges {
  readonly #options: BackgroundOptions
  /** That of the options, as far as changes may use it. */
  readonly #db: Database
  readonly #running = new Map<string, Promise<void>>()
  readonly #stop = new AbortController()
  #timer: NodeJS.Timeout | undefined

  constructor(options: BackgroundOptions) {
    this.#options = options
    this.#db = new ConnectionLimiter(CONNECTIONS).limit(options.db, 'changes')
  }

  /** Runs a change that is recorded, in the background. */
  start(change: LeftChange): void {
    const { changeId } = change
    if (this.#running.has(changeId) || this.#stop.signal.aborted) return
    const run = this.#run(change)
      .catch(async (error: unknown) => this.#failed(change, error))
      .catch(this.#options.onError)
      .finally(() => this.#running.delete(changeId))
    this.#running.set(changeId, run)
  }

  async #run({ changeId, action, principal, tenant }: LeftChange): Promise<void> {
    const { schema, roles } = this.#options
    const declaration = bulkChange(action)
    if (declaration === undefined) return
    if (tenant !== null) await roles.requireTenantPolicies()
    const role = tenant === null ? 'operator' : 'tenant'
    const acting = {
      role,
      tenant,
      principal,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      readOnly: false,
    } as const
    const { signal } = this.#stop
    await resumeBulkChange(actingAs(this.#db, acting, await roles.prefix()), declaration, changeId, {
      schema,
      principal,
      signal,
      inBackground: true,
      // Whoever runs the change may not read the keys.
      beforeBatch: async () => cancelRevoked(await this.#own(this.#db), schema, changeId),
    })
  }

  async #failed({ changeId, principal }: LeftChange, error: unknown): Promise<void> {
    // It was cancelled, or another process continues it.
    if (isLeaseholdError(error, 'STATE_CONFLICT')) return
    // It waited for its turn when this server was stopped.
    if (this.#stop.signal.aborted && isLeaseholdError(error, 'TOO_MANY_REQUESTS')) return
    this.#options.onError(error)
    // What passes by itself is tried again, by whoever finds the change.
    const passes = isUnavailable(error) || isLeaseholdError(error, 'QUERY_TIMEOUT') || isLockConflict(error)
    if (passes || isLeaseholdError(error, 'DATABASE_CLOSED') || isLeaseholdError(error, 'POLICY_MISSING'))
      return
    const { schema } = this.#options
    await failChange(await this.#own(), changeId, { principal, schema, error: messageOf(error) })
  }

  async #own(db = this.#options.db): Promise<Database> {
    return actingForServer(db, this.#options.roles, OWN_STATEMENT_TIMEOUT_MS)
  }

  /** Continues what servers have left that ended, now and every minute; also forgets old answers and sessions, and ends changes of revoked keys. */
  async resumeLeft(): Promise<void> {
    this.#timer ??= setInterval(() => {
      this.#maintain().catch(this.#options.onError)
    }, FIND_EVERY_MS).unref()
    await this.#maintain()
  }

  async #maintain(): Promise<void> {
    const { schema, silentMs = SILENT_MS } = this.#options
    const own = await this.#own()
    for (const change of await leftChanges(own, schema, silentMs)) this.start(change)
    await forgetAnswers(own, schema)
    await forgetSessions(own, schema)
    await cancelRevoked(own, schema)
  }

  /** Lets each change finish its batch. Those that wait for their turn do not get it. */
  async stop(): Promise<void> {
    this.#stop.abort()
    clearInterval(this.#timer)
    await this.#db.close()
    await Promise.all(this.#running.values())
  }
}
