// pg-boss in the mode in which it is fastest: large batches, several workers, no pause while batches come back full.
import { PgBoss } from 'pg-boss'
import { readyToCount } from '../clock.mjs'

const QUEUE = 'happened'
const INSERT = 10_000

/** What runs beside the work now and then is switched off: it is not what is measured. */
const open = async (url) => {
  const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false })
  boss.on('error', (error) => {
    throw error
  })
  await boss.start()
  return boss
}

export function pgBoss({ batchSize, localConcurrency }) {
  return {
    measured: (rows) => rows,

    async prepare({ url, rows }) {
      const boss = await open(url)
      await boss.createQueue(QUEUE)
      for (let from = 0; from < rows; from += INSERT) {
        const size = Math.min(INSERT, rows - from)
        await boss.insert(
          QUEUE,
          Array.from({ length: size }, (_, i) => ({ data: { n: from + i + 1 } })),
        )
      }
      await boss.stop({ graceful: true })
    },

    async drain({ url, rows, clock }) {
      const counter = await readyToCount(clock, rows, {
        url,
        unsettled: `select exists (select from pgboss.job where name = '${QUEUE}' and state < 'completed') as unsettled`,
      })
      const handle = async () => counter.handled()
      clock.start()
      const boss = await open(url)
      await boss.work(
        QUEUE,
        { batchSize, localConcurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
        async (jobs) => {
          await Promise.all(jobs.map(handle))
        },
      )
      await counter.settled
      clock.stop()
      await boss.stop({ graceful: true })
    },

    finished: `select count(*)::int as finished from pgboss.job where name = '${QUEUE}' and state = 'completed'`,
  }
}
