import { tableName } from '../../lease/table.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type Events, reportError } from '../events.ts'
import type { WorkDeclaration } from '../work-declaration.ts'

type Declared = Pick<WorkDeclaration<never>, 'table'> & Partial<Pick<WorkDeclaration<never>, 'name' | 'wake'>>

export interface WakeOthersOptions {
  readonly db: Queryable
  readonly schema: string
  readonly worker: string
  readonly events: Events
  /** The tables this process works on or reaps. */
  readonly declared: readonly Declared[]
}

export interface WakeOthers {
  /** Wakes the workers of all these tables: this process stops, and has released what it held. */
  all(): Promise<void>
  close(): void
}

/** Rows are reaped in batches; one wake-up in this time is enough. */
const WAKE_DELAY_MS = 20

/**
 * Wakes workers of other processes when the reaper has taken rows back: no producer does, and workers that are woken by
 * their producers poll seldom.
 */
export function createWakeOthers({ db, schema, worker, events, declared }: WakeOthersOptions): WakeOthers {
  const waiting = new Set<string>()
  let timer: NodeJS.Timeout | undefined
  const off = events.onInternal('reaped', ({ table }) => wakeSoon(table))

  function wakeSoon(table: string): void {
    if (waiting.size === 0) timer = setTimeout(() => void flush(), WAKE_DELAY_MS)
    waiting.add(table)
  }

  async function flush(): Promise<void> {
    const tables = new Set(waiting)
    waiting.clear()
    await wake(({ table }) => tables.has(tableName(table)))
  }

  async function wake(which: (one: Declared) => boolean): Promise<void> {
    const names = declared.flatMap((one) => (one.wake === true && which(one) ? [one.name] : []))
    try {
      for (const name of new Set(names)) {
        await db.query({ text: `select ${quoteQualified(schema, 'wake')}($1)`, values: [name] })
      }
    } catch (error) {
      // They find the rows at their next poll.
      reportError(events, worker, 'waking other workers', error)
    }
  }

  return {
    all: async () => wake(() => true),
    close() {
      off()
      clearTimeout(timer)
      waiting.clear()
    },
  }
}
