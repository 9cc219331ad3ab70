import { tableName, type LeaseTable } from '../lease/table.ts'
import type { LogSource } from '../worker/context.ts'
import type { Events } from '../worker/events.ts'
import { SKIPPED } from './table.ts'
import type { Transition } from './transitions.ts'

export interface CycleSummaryOptions {
  readonly table: LeaseTable
  readonly transitions: readonly Transition[]
  readonly events: Events
  readonly worker: string
  readonly log: LogSource
}

/** REC-12: what a cycle came to, in one line. A cycle in which nothing was open says nothing. */
export class CycleSummary {
  readonly #options: CycleSummaryOptions
  readonly #targets: ReadonlyMap<string, string>
  readonly #off: () => void
  #counts: Map<string, number>

  constructor(options: CycleSummaryOptions) {
    this.#options = options
    this.#targets = new Map(options.transitions.map(({ outcome, to }) => [outcome, to]))
    this.#counts = this.#zero()
    const { events, worker } = options
    const table = tableName(options.table)
    const isOurs = (event: { readonly worker: string; readonly table: string }): boolean =>
      event.worker === worker && event.table === table
    const offs = [
      events.on('claimed', (event) => (isOurs(event) ? this.count('claimed', event.count) : undefined)),
      events.on('settled', (event) => {
        const as = event.outcome === SKIPPED ? SKIPPED : this.#targets.get(event.outcome)
        if (as !== undefined && isOurs(event)) this.count(as, event.ids.length)
      }),
      // A look that outlasts a heartbeat hears of a changed status as of a lease that is gone.
      events.on('fencedOff', (event) => (isOurs(event) ? this.count(SKIPPED) : undefined)),
    ]
    this.#off = () => offs.forEach((off) => off())
  }

  count(what: string, by = 1): void {
    this.#counts.set(what, (this.#counts.get(what) ?? 0) + by)
  }

  /** Says what has happened since the last time. */
  say(): void {
    const counts = this.#counts
    if ([...counts.values()].every((count) => count === 0)) return
    this.#counts = this.#zero()
    const { log, worker, table } = this.#options
    log.info({ worker, table: tableName(table), ...Object.fromEntries(counts) }, 'cycle')
  }

  close(): void {
    this.#off()
    this.say()
  }

  #zero(): Map<string, number> {
    const names = ['claimed', 'scanned', ...this.#targets.values(), SKIPPED, 'errors']
    return new Map(names.map((name) => [name, 0]))
  }
}
