// pg-boss in its fastest mode: large batches, several workers, no pause while batches come back full. Keyed events are in
// a queue of the policy `key_strict_fifo`, the only one that keeps the order of a key.
import { PgBoss } from 'pg-boss'
import { clientProducer } from '../producer.mjs'

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

/** `notify`: producers wake the workers, which is quicker for single jobs and slower for many. */
export function pgBoss({ batchSize, localConcurrency, notify = false, keys }) {
  const policy = keys === 'none' ? 'standard' : 'key_strict_fifo'
  // The table, columns and policy that its own `insert` writes.
  const into = `insert into pgboss.job_common (name, data, policy, singleton_key)`
  /** One for all producers of a process; it is closed with the last of them. */
  let sending
  let producers = 0

  return {
    schema: 'pgboss',
    table: 'pgboss.job_common',

    insert: ({ type, key, payload }) => `${into} values ('${QUEUES[type]}', ${payload}, '${policy}', ${key})`,

    insertMany: ({ key, payload }) =>
      `${into} select '${QUEUES.event}', ${payload}, '${policy}', ${key} from generate_series(1, $1::int) as n`,

    /** In the transaction of the user, by the option `db`. */
    async openProducer({ url }) {
      sending ??= open(url, { max: 2, useListenNotify: notify })
      producers += 1
      const boss = await sending
      const producer = await clientProducer(url, {
        write: async (client, { key, payload }) => {
          const db = { executeSql: async (text, values) => client.query(text, values) }
          const id = await boss.send(QUEUES.event, payload, { singletonKey: key, db })
          if (id === null) throw new Error('pg-boss wrote no job')
        },
      })
      return {
        ...producer,
        async close() {
          await producer.close()
          producers -= 1
          if (producers === 0) await boss.stop({ graceful: true })
        },
      }
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
