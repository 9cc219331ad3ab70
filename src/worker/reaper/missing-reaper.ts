/** Says, of a process that does not reap, which of its tables no process reaps (RULE-020-020, D13). */
import type { Queryable } from '../../postgres/queryable.ts'
import { type Events, reportError } from '../events.ts'
import { createLoop, type Loop } from '../loop.ts'
import { unreapedTables } from '../registry/registry.ts'

/** As long as it takes until a process that is not heard of counts as missing. */
const CHECK_MS = 30_000

/** Checks at the start and from then on. */
export function createReaperWatch(options: {
  readonly db: Queryable
  readonly schema: string
  readonly worker: string
  readonly events: Events
  /** As `schema.table`. */
  readonly tables: readonly string[]
  readonly onChecked: () => void
}): Loop {
  const { db, schema, worker, events, tables, onChecked } = options
  return createLoop({
    name: 'reaper watch',
    async work() {
      try {
        const unreaped = await unreapedTables(db, schema, tables)
        if (unreaped.length > 0) events.emit('reaperMissing', { worker, tables: unreaped })
      } finally {
        onChecked()
      }
    },
    pauseMs: () => CHECK_MS,
    onError: (error) => reportError(events, worker, 'looking for a reaper', error),
  })
}
