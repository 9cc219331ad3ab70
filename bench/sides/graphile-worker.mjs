// graphile-worker in its fastest mode: a local queue, and completions in batches. Its `queue_name` is the ordering key.
import { EventEmitter } from 'node:events'
import { Logger, run, runMigrations } from 'graphile-worker'
import { withClient } from '../client.mjs'
import { clientProducer, prepared } from '../producer.mjs'
import { STUCK_KEY } from '../scenarios.mjs'

const silent = new Logger(() => () => {})

/** `worker`: its settings. */
export function graphileWorker({ worker }) {
  const preset = (connectionString) => ({
    worker: {
      connectionString,
      maxPoolSize: 10,
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: silent,
      ...worker,
    },
  })

  return {
    schema: 'graphile_worker',
    table: 'graphile_worker._private_jobs',

    insert: ({ type, key, payload }) =>
      `perform graphile_worker.add_job('${type}', (${payload})::json, queue_name => ${key})`,

    insertMany: ({ key, payload }) =>
      `select count(*) from graphile_worker.add_jobs(array(
        select json_populate_record(null::graphile_worker.job_spec,
          json_build_object('identifier', 'event', 'payload', ${payload}, 'queue_name', ${key}))
        from generate_series(1, $1::int) as n))`,

    /** `addJob` takes a connection of its own: for a transaction, the documentation names this function, which it calls. */
    openProducer: async ({ url }) =>
      clientProducer(url, {
        write: prepared(
          `select graphile_worker.add_job('event', $1::json, queue_name => $2)`,
          ({ key, payload }) => [JSON.stringify(payload), key],
        ),
      }),

    async migrate({ url }) {
      await runMigrations({ connectionString: url, logger: silent })
    },

    async start({ url, handled, probed, stuckKey }) {
      let stopping
      const stopped = new Promise((resolve) => {
        stopping = resolve
      })
      // A failed job does not hold up its queue here, a running one does: the head of the stuck key never ends.
      const stuckQueue = stuckKey ? await queueId(url, STUCK_KEY) : undefined
      const events = new EventEmitter()
      events.setMaxListeners(0)
      const runner = await run({
        preset: preset(url),
        events,
        noHandleSignals: true,
        taskList: {
          event: async (payload, { job }) => {
            if (stuckQueue !== undefined && job.job_queue_id === stuckQueue) return stopped
            return handled(job.created_at, payload)
          },
          probe: async () => probed(),
        },
      })
      return {
        async stop() {
          stopping()
          await runner.stop()
        },
      }
    },

    unsettled: `select exists (select from graphile_worker._private_jobs where job_queue_id is distinct from
      (select id from graphile_worker._private_job_queues where queue_name = '${STUCK_KEY}')) as unsettled`,

    /** It deletes what is done. */
    finished: `select $1::int - count(*)::int as finished from graphile_worker._private_jobs
      where job_queue_id is distinct from
        (select id from graphile_worker._private_job_queues where queue_name = '${STUCK_KEY}')`,
  }
}

async function queueId(url, name) {
  const { rows } = await withClient(url, async (client) =>
    client.query('select id from graphile_worker._private_job_queues where queue_name = $1', [name]),
  )
  return rows[0].id
}
