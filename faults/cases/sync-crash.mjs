import { openDatabase } from '../../dist/index.js'
import { createSync } from '../../dist/sync/index.js'

const CHUNKS = { short: 60, whole: 200 }

export default {
  name: 'sync-crash',
  title: 'runners of sync die between the effect of a chunk and its checkpoint, and before the commit',
  produces: false,
  workers: 0,
  async run(context) {
    const db = openDatabase({ url: context.url })
    const chunks = context.short ? CHUNKS.short : CHUNKS.whole
    const worker = { script: 'runner.mjs', chunks, deaths: 0.08, mayFail: true }
    const runs = { isOver: false }
    try {
      await db.query({
        text: 'create table public.effects (n int not null, token bigint not null, worker text)',
      })
      const { jobId } = await createSync().enqueue(db, 'matrix', { matrixId: 'm' })
      const isOpen = async () => {
        const { rows } = await db.query({
          text: 'select completed_at is null and failed_at is null as open from leasehold.sync_jobs where id = $1',
          values: [jobId],
        })
        return rows[0].open
      }
      // As a supervisor would: whoever dies is replaced.
      const supervised = (async () => {
        while (!runs.isOver) {
          if (context.workers.length < 3) await context.startWorker(worker)
          else await context.delay(50)
        }
      })()
      const deadline = performance.now() + 120_000
      while ((await isOpen()) && performance.now() < deadline) await context.delay(100)
      runs.isOver = true
      await supervised
      for (const { where } of context.lines('died')) context.fire(where)
      const { rows } = await db.query({
        text: `select chunk_query ->> 'n' as n, state,
            (select count(*)::int from public.effects where effects.n = (chunk_query ->> 'n')::int) as effects
          from leasehold.sync_checkpoint_states order by position`,
      })
      for (const { n, ...rest } of rows)
        context.history.write({ type: 'outcome', of: `chunk ${String(n)}`, ...rest })
      if (rows.length !== chunks) throw new Error(`there are ${rows.length} chunks instead of ${chunks}`)
    } finally {
      runs.isOver = true
      await db.close()
    }
  },
}
