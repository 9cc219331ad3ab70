/**
 * Bulk changes that run in the background of a server. A change is recorded in the audit when it is asked for, and each of
 * its batches is; so any server can continue it when the one that ran it ends.
 */
import { resumeBulkChange } from '../../admin/bulk-change.ts'
import { failChange, leftChanges, type LeftChange } from '../../admin/changes.ts'
import { isLeaseholdError, messageOf } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { isLockConflict, isUnavailable } from '../../postgres/failures.ts'
import { actingAs } from './acting.ts'
import { bulkChange } from './bulk-changes.ts'
import { forgetAnswers } from './idempotency.ts'

export interface BackgroundOptions {
  readonly db: Database
  readonly schema: string
  readonly prefix: () => Promise<string>
  readonly onError: (error: unknown) => void
  /** A change of which nothing was heard for so long is continued by whoever finds it. Default: two minutes. */
  readonly silentMs?: number
}

/** A batch may wait for locks, and reads up to some thousands of rows. */
const STATEMENT_TIMEOUT_MS = 60_000

/** Requests need connections of the same pool. */
const MAX_RUNNING = 2

const SILENT_MS = 120_000
const FIND_EVERY_MS = 60_000

export class BackgroundChanges {
  readonly #options: BackgroundOptions
  readonly #running = new Map<string, Promise<void>>()
  readonly #waiting = new Map<string, LeftChange>()
  readonly #stop = new AbortController()
  #timer: NodeJS.Timeout | undefined

  constructor(options: BackgroundOptions) {
    this.#options = options
  }

  /** Runs a change that is recorded, in the background, as soon as there is room. */
  start(change: LeftChange): void {
    const { changeId } = change
    if (this.#running.has(changeId) || this.#waiting.has(changeId) || this.#stop.signal.aborted) return
    this.#waiting.set(changeId, change)
    this.#fill()
  }

  #fill(): void {
    for (const change of this.#waiting.values()) {
      if (this.#running.size >= MAX_RUNNING || this.#stop.signal.aborted) return
      this.#waiting.delete(change.changeId)
      this.#startNow(change)
    }
  }

  #startNow(change: LeftChange): void {
    const { changeId } = change
    const run = this.#run(change)
      .catch(async (error: unknown) => this.#failed(change, error))
      .catch(this.#options.onError)
      .finally(() => {
        this.#running.delete(changeId)
        this.#fill()
      })
    this.#running.set(changeId, run)
  }

  async #run({ changeId, action, principal, tenant }: LeftChange): Promise<void> {
    const { db, schema, prefix } = this.#options
    const declaration = bulkChange(action)
    if (declaration === undefined) return
    const role = tenant === null ? 'operator' : 'tenant'
    const acting = {
      role,
      tenant,
      principal,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      readOnly: false,
    } as const
    const { signal } = this.#stop
    await resumeBulkChange(actingAs(db, acting, await prefix()), declaration, changeId, {
      schema,
      principal,
      signal,
      inBackground: true,
    })
  }

  async #failed({ changeId, principal }: LeftChange, error: unknown): Promise<void> {
    // It was cancelled, or another process continues it.
    if (isLeaseholdError(error, 'STATE_CONFLICT')) return
    this.#options.onError(error)
    // What passes by itself is tried again, by whoever finds the change.
    const passes = isUnavailable(error) || isLeaseholdError(error, 'QUERY_TIMEOUT') || isLockConflict(error)
    if (passes || isLeaseholdError(error, 'DATABASE_CLOSED')) return
    const { schema } = this.#options
    await failChange(await this.#own(), changeId, { principal, schema, error: messageOf(error) })
  }

  /** Acts for the server itself. */
  async #own(): Promise<Database> {
    const { db, prefix } = this.#options
    const acting = {
      role: 'api',
      tenant: null,
      principal: 'api',
      statementTimeoutMs: 5_000,
      readOnly: false,
    } as const
    return actingAs(db, acting, await prefix())
  }

  /** Continues what servers have left that ended, now and every minute; also forgets old answers. */
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
  }

  /** Lets each change finish its batch. */
  async stop(): Promise<void> {
    this.#stop.abort()
    clearInterval(this.#timer)
    await Promise.all(this.#running.values())
  }
}
