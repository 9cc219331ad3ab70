import { tableName, type LeaseTable } from '../lease/table.ts'
import type { LogSource } from '../worker/context.ts'
import type { Events } from '../worker/events.ts'
import { SKIPPED } from './table.ts'
import type { Transition } from './transitions.ts'

export interface SummaryOptions {
  readonly table: LeaseTable
  readonly transitions: readonly Transition[]
  readonly events: Events
  readonly worker: string
  readonly log: LogSource
}

/** REC-12: counts what the reconciler has done since the last summary, and logs it as one line. */
export class Summary {
  readonly #options: SummaryOptions
  readonly #statusOf: ReadonlyMap<string, string>
  readonly #unsubscribe: () => void
  #counts: Map<string, number>

  constructor(options: SummaryOptions) {
    this.#options = options
    this.#statusOf = new Map(options.transitions.map(({ outcome, to }) => [outcome, to]))
    this.#counts = this.#zero()
    const { events, worker } = options
    const table = tableName(options.table)
    const isOurs = (event: { readonly worker: string; readonly table: string }): boolean =>
      event.worker === worker && event.table === table
    // Internal listeners: what is counted here must still reach the log if nobody else listens.
    const unsubscribes = [
      events.onInternal('claimed', (event) =>
        isOurs(event) ? this.count('claimed', event.count) : undefined,
      ),
      events.onInternal('settled', (event) => {
        const as = event.outcome === SKIPPED ? SKIPPED : this.#statusOf.get(event.outcome)
        if (as !== undefined && isOurs(event)) this.count(as, event.ids.length)
      }),
      // A row whose status changes during an observation that outlasts a heartbeat is no longer renewed: it is fenced off.
      events.onInternal('fencedOff', (event) => (isOurs(event) ? this.count(SKIPPED) : undefined)),
    ]
    this.#unsubscribe = () => unsubscribes.forEach((unsubscribe) => unsubscribe())
  }

  count(what: string, by = 1): void {
    this.#counts.set(what, (this.#counts.get(what) ?? 0) + by)
  }

  /** Logs the counts and starts from zero. Without anything to count, that is worth a line for debugging only. */
  log(): void {
    const { log, worker, table } = this.#options
    const level = this.#isEmpty() ? 'debug' : 'info'
    log[level]({ worker, table: tableName(table), ...Object.fromEntries(this.#counts) }, 'reconcile summary')
    this.#counts = this.#zero()
  }

  #isEmpty(): boolean {
    return [...this.#counts.values()].every((count) => count === 0)
  }

  close(): void {
    this.#unsubscribe()
    if (!this.#isEmpty()) this.log()
  }

  #zero(): Map<string, number> {
    const names = ['claimed', 'scanned', ...this.#statusOf.values(), SKIPPED, 'errors']
    return new Map(names.map((name) => [name, 0]))
  }
}
