import { setTimeout as delay } from 'node:timers/promises'
import type { Queryable } from '../../src/postgres/queryable.ts'

const WITHIN_MS = 20_000
const LOOK_MS = 10

/** Waits until this backend waits for a lock. Nothing tells of that, so this looks again. */
export async function blocked(db: Queryable, pid: number): Promise<void> {
  const deadline = performance.now() + WITHIN_MS
  for (;;) {
    const { rows } = await db.query<{ waits: boolean }>({
      text: `select cardinality(pg_blocking_pids($1)) > 0 as waits`,
      values: [pid],
    })
    if (rows[0]?.waits === true) return
    if (performance.now() > deadline) throw new Error(`backend ${pid} waits for nobody`)
    await delay(LOOK_MS)
  }
}
