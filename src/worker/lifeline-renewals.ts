import { systemClock } from '../clock.ts'
import { leaseStore } from '../lease/store.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import { HeldRows } from './held-rows.ts'
import type { FromLifeline, LifelineConfig, ToLifeline } from './lifeline-messages.ts'
import { createRenewal, type Renewal } from './renewal.ts'

/** A renewal that takes longer than this is taken for failed; the lease must outlast two tries. */
const RENEWAL_TIMEOUT_MS = 5_000

type OfType<Type extends ToLifeline['type']> = Extract<ToLifeline, { readonly type: Type }>

/** The renewals of a worker process, one for each of its workers, and the connections they share. */
export class LifelineRenewals {
  readonly db: Database
  readonly #owner: string
  readonly #tell: (message: FromLifeline) => void
  readonly #byName = new Map<string, Renewal>()

  constructor({ databaseUrl, worker }: LifelineConfig, tell: (message: FromLifeline) => void) {
    this.#owner = worker.id
    this.#tell = tell
    this.db = openDatabase({
      url: databaseUrl,
      applicationName: `leasehold lifeline ${worker.id}`.slice(0, 63),
      // One for each table that is just being renewed: a lock on one must not hold up the others.
      maxConnections: 3,
      queryTimeoutMs: RENEWAL_TIMEOUT_MS,
    })
  }

  serve({ name, table, shape, bucket, held, timing }: OfType<'serve'>): void {
    const renewal = createRenewal({
      name,
      store: leaseStore(this.db, table, shape, {
        owner: this.#owner,
        bucket,
        onDataError: (report) => this.#tell({ type: 'dataError', name, ...report }),
      }),
      held: new HeldRows(held),
      timing,
      clock: systemClock,
      tell: this.#tell,
    })
    this.#byName.set(name, renewal)
    renewal.loop.start()
  }

  hold({ name, rows }: OfType<'hold'>): void {
    this.#byName.get(name)?.hold(rows)
  }

  change({ name, timing }: OfType<'timing'>): void {
    this.#byName.get(name)?.change(timing)
  }

  /** The next beats are due now. */
  hasten(): void {
    for (const { loop } of this.#byName.values()) loop.hasten()
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#byName.values()].map(async ({ loop }) => loop.stop()))
  }
}
