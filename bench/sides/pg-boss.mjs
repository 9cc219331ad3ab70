// pg-boss in its fastest mode: large batches, several workers, no pause while batches come back full. Keyed events are in
// a queue of the policy `key_strict_fifo`, the only one that keeps the order of a key.
import { PgBoss } from 'pg-boss'
import { sqlProducer } from '../producer.mjs'

const QUEUES = { event: 'event', probe: 'probe' }

/** Maintenance that runs now and then is switched off: it is not what is measured. */
async function open(url, options = {}) {
  const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false, ...options })
  boss.on('error', (error) => {
    throw error
  })
  await boss.start()
  return boss
}

/** The channel on which it wakes its workers, as its own `insert` computes it. */
const CHANNEL = `'pgboss_' || left(encode(sha224('pgboss'::bytea), 'hex'), 24)`

/** `notify`: producers wake the workers, which is quicker for single jobs and slower for many. */
export function pgBoss({ batchSize, localConcurrency, notify = false, keys }) {
  const policy = keys === 'none' ? 'standard' : 'key_strict_fifo'
  // The table, columns and policy that its own `insert` writes.
  const into = `insert into pgboss.job_common (name, data, policy, singleton_key)`

  return {
    schema: 'pgboss',
    table: 'pgboss.job_common',

    insert: ({ type, key, payload }) => `${into} values ('${QUEUES[type]}', ${payload}, '${policy}', ${key})`,

    insertMany: ({ key, payload }) =>
      `${into} select '${QUEUES.event}', ${payload}, '${policy}', ${key} from generate_series(1, $1::int) as n`,

    async openProducer({ url, type = 'event' }) {
      const insert = `${into} values ($1, $2, '${policy}', $3)`
      return sqlProducer(url, {
        text: notify
          ? `with job as (${insert} returning 1) select pg_notify(${CHANNEL}, $1) from job`
          : insert,
        values: ({ key, payload }) => [QUEUES[type], JSON.stringify(payload), key],
      })
    },

    async migrate({ url }) {
      const boss = await open(url)
      for (const queue of Object.values(QUEUES)) await boss.createQueue(queue, { policy, notify })
      await boss.stop({ graceful: true })
    },

    async start({ url, handled, probed }) {
      const boss = await open(url, { useListenNotify: notify })
      const work = async (queue, handle) =>
        boss.work(
          queue,
          { batchSize, localConcurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
          async (jobs) => {
            await Promise.all(jobs.map(async ({ data }) => handle(data)))
          },
        )
      await work(QUEUES.event, (payload) => handled(undefined, payload))
      await work(QUEUES.probe, () => probed())
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
