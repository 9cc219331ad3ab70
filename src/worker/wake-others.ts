import { tableName } from '../lease/table.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { Events } from './events.ts'
import type { WorkDeclaration } from './work-declaration.ts'

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
  /** Says that there may be rows for others in this table, before long. */
  soon(table: string): void
  /** Says that there may be rows for others in all these tables: this process stops, and gave back what it had. */
  all(): Promise<void>
  close(): void
}

/** Many rows become free at once; one wake-up is enough for them. */
const SOON_MS = 20

/**
 * Rows that the reaper took back were written by nobody who would wake a worker. Workers that are used to being woken
 * poll seldom, so they are told.
 */
export function createWakeOthers({ db, schema, worker, events, declared }: WakeOthersOptions): WakeOthers {
  const waiting = new Set<string>()
  let timer: NodeJS.Timeout | undefined
  const offs = [events.on('reaped', ({ table }) => soon(table))]

  function soon(table: string): void {
    if (waiting.size === 0) timer = setTimeout(() => void flush(), SOON_MS)
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
      // They find the rows by polling.
      events.emit('trouble', { worker, what: 'waking other workers', error })
    }
  }

  return {
    soon,
    all: async () => wake(() => true),
    close() {
      for (const off of offs) off()
      clearTimeout(timer)
      waiting.clear()
    },
  }
}
