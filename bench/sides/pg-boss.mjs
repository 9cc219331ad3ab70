// pg-boss in its fastest mode: large batches, several workers, no pause while batches come back full. Keyed events are in
// a queue of the policy `key_strict_fifo`, the only one that keeps the order of a key.
import { PgBoss } from 'pg-boss'

const QUEUES = { event: 'event', probe: 'probe' }

/** Maintenance that runs now and then is switched off: it is not what is measured. */
async function open(url) {
  const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false })
  boss.on('error', (error) => {
    throw error
  })
  await boss.start()
  return boss
}

export function pgBoss({ batchSize, localConcurrency, keys }) {
  const policy = keys === 'none' ? 'standard' : 'key_strict_fifo'
  // The table, columns and policy that its own `insert` writes.
  const into = `insert into pgboss.job_common (name, data, policy, singleton_key)`

  return {
    schema: 'pgboss',
    table: 'pgboss.job_common',

    insert: ({ type, key, payload }) => `${into} values ('${QUEUES[type]}', ${payload}, '${policy}', ${key})`,

    insertMany: ({ key, payload }) =>
      `${into} select '${QUEUES.event}', ${payload}, '${policy}', ${key} from generate_series(1, $1::int) as n`,

    async migrate({ url }) {
      const boss = await open(url)
      for (const queue of Object.values(QUEUES)) await boss.createQueue(queue, { policy })
      await boss.stop({ graceful: true })
    },

    async start({ url, handled, probed }) {
      const boss = await open(url)
      const work = async (queue, handle) =>
        boss.work(
          queue,
          { batchSize, localConcurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
          async (jobs) => {
            await Promise.all(jobs.map(async () => handle()))
          },
        )
      await work(QUEUES.event, () => handled())
      await work(QUEUES.probe, probed)
      return {
        async stop() {
          await boss.stop({ graceful: true })
        },
      }
    },

    unsettled: `select exists (select from pgboss.job where name = '${QUEUES.event}' and state < 'completed') as unsettled`,

    finished: `select count(*)::int as finished from pgboss.job where name = '${QUEUES.event}' and state = 'completed'`,
  }
}
