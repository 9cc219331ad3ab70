// graphile-worker in the mode in which it is fastest: a local queue, and completions in batches.
import { EventEmitter } from 'node:events'
import { Logger, run, runMigrations } from 'graphile-worker'
import { readyToCount } from '../clock.mjs'
import { withClient } from '../client.mjs'

const silent = new Logger(() => () => {})

export function graphileWorker({ localQueue, concurrentJobs }) {
  const preset = (connectionString) => ({
    worker: {
      connectionString,
      concurrentJobs,
      maxPoolSize: 10,
      localQueue: { size: localQueue },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: silent,
    },
  })

  return {
    measured: (rows) => rows,

    async prepare({ url, rows }) {
      await runMigrations({ connectionString: url, logger: silent })
      await withClient(url, async (client) =>
        client.query(
          `select count(*) from graphile_worker.add_jobs(array(
            select json_populate_record(null::graphile_worker.job_spec,
              json_build_object('identifier', 'happened', 'payload', json_build_object('n', n)))
            from generate_series(1, $1::int) as n))`,
          [rows],
        ),
      )
    },

    async drain({ url, rows, clock }) {
      const counter = await readyToCount(clock, rows, {
        url,
        unsettled: 'select exists (select from graphile_worker._private_jobs) as unsettled',
      })
      const events = new EventEmitter()
      events.setMaxListeners(0)
      clock.start()
      const runner = await run({
        preset: preset(url),
        events,
        noHandleSignals: true,
        taskList: { happened: async () => counter.handled() },
      })
      await counter.settled
      clock.stop()
      await runner.stop()
    },

    /** It deletes what is done: what is no longer there was finished. */
    finished: 'select $1::int - count(*)::int as finished from graphile_worker._private_jobs',
  }
}
