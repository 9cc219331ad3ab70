/**
 * Bulk changes that run in the background of a server. A change is recorded in the audit when it is asked for, and each of
 * its batches is; so any server can continue it when the one that ran it ends.
 */
import { resumeBulkChange } from '../../admin/bulk-change.ts'
import { leftChanges, type LeftChange } from '../../admin/changes.ts'
import { isLeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { actingAs } from './acting.ts'
import { bulkChange } from './bulk-changes.ts'
import { forgetAnswers } from './idempotency.ts'

export interface BackgroundOptions {
  readonly db: Database
  readonly schema: string
  readonly prefix: () => Promise<string>
  readonly onError: (error: unknown) => void
}

/** A batch may wait for locks, and reads up to some thousands of rows. */
const STATEMENT_TIMEOUT_MS = 60_000

/** A change of which nothing was heard for so long is continued by whoever finds it. */
const SILENT_MS = 120_000
const FIND_EVERY_MS = 60_000

export class BackgroundChanges {
  readonly #options: BackgroundOptions
  readonly #running = new Map<string, Promise<void>>()
  readonly #stop = new AbortController()
  #timer: NodeJS.Timeout | undefined

  constructor(options: BackgroundOptions) {
    this.#options = options
  }

  /** Runs a change that is recorded, in the background. */
  start(change: LeftChange): void {
    const { changeId } = change
    if (this.#running.has(changeId) || this.#stop.signal.aborted) return
    const run = this.#run(change)
      .catch((error: unknown) => {
        // It was cancelled, or another process continues it.
        if (!isLeaseholdError(error, 'REQUEST_INVALID')) this.#options.onError(error)
      })
      .finally(() => this.#running.delete(changeId))
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
    })
  }

  /** Continues what servers have left that ended, now and from time to time. */
  async resumeLeft(): Promise<void> {
    this.#timer ??= setInterval(() => {
      this.#resumeLeft().catch(this.#options.onError)
    }, FIND_EVERY_MS).unref()
    await this.#resumeLeft()
  }

  async #resumeLeft(): Promise<void> {
    const { db, schema, prefix } = this.#options
    const acting = {
      role: 'api',
      tenant: null,
      principal: 'api',
      statementTimeoutMs: 5_000,
      readOnly: false,
    } as const
    const own = actingAs(db, acting, await prefix())
    for (const change of await leftChanges(own, schema, SILENT_MS)) this.start(change)
    await forgetAnswers(own, schema)
  }

  /** Lets each change finish its batch. */
  async stop(): Promise<void> {
    this.#stop.abort()
    clearInterval(this.#timer)
    await Promise.all(this.#running.values())
  }
}
