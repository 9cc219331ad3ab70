// The systems under test, as a worker process runs them: `migrate`, `write`, `start`; and the SQL with which the bench reads
// and ages their rows. Packages are loaded by the process that needs them.
import { loadFrom } from '../builds.mjs'

/** Jobs that one process runs at the same time, on every side. */
export const CONCURRENCY = 5

const TYPE = 'survival.job'
const QUEUE = 'survival'

/**
 * `settings`: what differs from the defaults, in words. `expiresByItself`: whether the lock of a stopped process expires within
 * the minute that a stage waits; otherwise the bench ages it. `rows`: each job that the system still knows, with `state` and
 * `due`, the seconds until a job that runs may be taken by another process, by the system's own rule. `age`: makes the locks
 * older than the rule allows.
 */
export const SIDES = {
  leasehold: {
    title: 'Leasehold',
    settings: 'defaults: lease 30 s',
    expiresByItself: true,
    ...leasehold({}),
  },
  'leasehold-short': {
    title: 'Leasehold, lease 10 s',
    settings: '`leaseMs: 10000`',
    expiresByItself: true,
    ...leasehold({ leaseMs: 10_000 }),
  },
  'graphile-worker': {
    title: 'graphile-worker',
    settings:
      'defaults: a lock is held for 4 hours, which is fixed. It looks for older ones every 2 to 5 s here, in its favour (`minResetLockedInterval`, `maxResetLockedInterval`; default: every 8 to 10 minutes)',
    expiresByItself: false,
    ...graphileWorker({ minResetLockedInterval: 2_000, maxResetLockedInterval: 5_000 }),
  },
  'graphile-worker-batch': {
    title: 'graphile-worker, batches',
    settings:
      'the same with `completeJobBatchDelay: 0` and `failJobBatchDelay: 0`: it then waits for the statements that finish jobs when it stops',
    expiresByItself: false,
    ...graphileWorker({
      minResetLockedInterval: 2_000,
      maxResetLockedInterval: 5_000,
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    }),
  },
  'pg-boss': {
    title: 'pg-boss',
    settings:
      'defaults: a job expires after 15 minutes (`expireInSeconds`). It looks for such jobs every 5 s here, in its favour (`superviseIntervalSeconds`, `monitorIntervalSeconds`; default: every 60 s)',
    expiresByItself: false,
    ...pgBoss({}),
  },
  'pg-boss-heartbeat': {
    title: 'pg-boss, heartbeat 10 s',
    settings: 'the same with `heartbeatSeconds: 10`, the shortest it accepts',
    expiresByItself: true,
    ...pgBoss({ heartbeatSeconds: 10 }),
  },
}

function leasehold(timing) {
  const load = async (build) => ({
    ...(await loadFrom(build, '.')),
    ...(await loadFrom(build, './outbox')),
    ...(await loadFrom(build, './publishers/handlers')),
  })
  return {
    async migrate({ url, build }) {
      const { migrate, openDatabase } = await load(build)
      const db = openDatabase({ url })
      await migrate(db)
      await db.close()
    },

    write: { text: `insert into leasehold.outbox (event_type, payload) values ('${TYPE}', $1::jsonb)` },

    async start({ url, build, handle, told, trouble }) {
      const { Events, handlers, relay, startRuntime } = await load(build)
      const events = new Events()
      events.on('fencedOff', ({ outcome }) => told(`event fencedOff (${outcome})`))
      events.on('lost', ({ reason }) => told(`event lost (${reason})`))
      for (const type of ['trouble', 'databaseLost', 'renewalFailed'])
        events.on(type, ({ error }) => trouble(`${type}: ${error?.message}`))
      const publisher = handlers({
        [TYPE]: async ({ payload, attempt }, { signal }) => handle({ job: payload.job, attempt, signal }),
      })
      const runtime = await startRuntime({
        databaseUrl: url,
        migrate: false,
        events,
        workers: [relay({ publisher, settings: { ...timing, concurrency: CONCURRENCY } })],
      })
      process.once('SIGTERM', () => {
        void runtime.stop().then(({ clean }) => process.exit(clean ? 0 : 1))
      })
    },

    rows: `select (payload ->> 'job')::int as job,
        case status when 'PUBLISHED' then 'done' when 'DEAD' then 'failed' when 'CLAIMED' then 'running' else 'waiting' end as state,
        extract(epoch from locked_until - clock_timestamp())::float8 as due,
        json_build_object('status', status, 'claimed_by', claimed_by, 'locked_until', locked_until, 'lock_token', lock_token,
          'attempts', attempts, 'available_at', available_at) as columns
      from leasehold.outbox`,
  }
}

function graphileWorker(worker) {
  return {
    async migrate({ url }) {
      const { Logger, runMigrations } = await import('graphile-worker')
      await runMigrations({ connectionString: url, logger: new Logger(() => () => {}) })
    },

    write: { text: `select from graphile_worker.add_job('${QUEUE}', $1::json)` },

    async start({ url, handle, trouble }) {
      const { Logger, run } = await import('graphile-worker')
      const logger = new Logger(() => (level, message) => {
        if (level === 'error' || level === 'warning') trouble(message)
      })
      const runner = await run({
        preset: { worker: { connectionString: url, concurrentJobs: CONCURRENCY, logger, ...worker } },
        taskList: {
          [QUEUE]: async ({ job }, { job: row, abortSignal }) =>
            handle({ job, attempt: row.attempts, signal: abortSignal }),
        },
      })
      // As its documentation does it. It handles SIGTERM itself, and ends the process when it has released its jobs.
      void untilEnd(runner.promise, trouble)
    },

    // What is done is deleted.
    rows: `select (payload ->> 'job')::int as job,
        case when locked_at is not null then 'running' when attempts >= max_attempts then 'failed' else 'waiting' end as state,
        extract(epoch from locked_at + interval '4 hours' - clock_timestamp())::float8 as due,
        json_build_object('locked_at', locked_at, 'locked_by', locked_by, 'attempts', attempts, 'run_at', run_at,
          'last_error', last_error) as columns
      from graphile_worker._private_jobs`,

    age: `update graphile_worker._private_jobs set locked_at = locked_at - interval '4 hours 1 minute' where locked_at is not null`,
  }
}

/** Nothing keeps a program alive whose runner has ended; here, the channel to the bench would. */
async function untilEnd(running, trouble) {
  try {
    await running
    trouble('the runner ended')
    process.disconnect()
  } catch (error) {
    trouble(`the runner ended: ${error.message}`)
    process.exit(1)
  }
}

function pgBoss(queue) {
  const open = async (url, trouble = () => {}) => {
    const { PgBoss } = await import('pg-boss')
    const boss = new PgBoss({
      connectionString: url,
      superviseIntervalSeconds: 5,
      monitorIntervalSeconds: 5,
    })
    boss.on('error', (error) => trouble(error.message))
    boss.on('warning', ({ message }) => trouble(message))
    await boss.start()
    return boss
  }
  return {
    async migrate({ url }) {
      const boss = await open(url)
      await boss.createQueue(QUEUE, queue)
      await boss.stop()
    },

    write: {
      /** Its own `send`, which fills in the settings of the queue. */
      async send({ url, jobs }) {
        const boss = await open(url)
        for (const job of jobs) await boss.send(QUEUE, { job })
        await boss.stop()
      },
    },

    async start({ url, handle, trouble }) {
      const boss = await open(url, trouble)
      await boss.work(
        QUEUE,
        { localConcurrency: CONCURRENCY, includeMetadata: true },
        async ([{ data, retryCount, signal }]) => handle({ job: data.job, attempt: retryCount + 1, signal }),
      )
      // As its documentation does it.
      process.once('SIGTERM', () => {
        void boss.stop().then(() => process.exit(0))
      })
    },

    rows: `select (data ->> 'job')::int as job,
        case state when 'completed' then 'done' when 'failed' then 'failed' when 'active' then 'running' else 'waiting' end as state,
        case state when 'active' then extract(epoch from least(started_on + expire_seconds * interval '1 s',
          heartbeat_on + heartbeat_seconds * interval '1 s') - clock_timestamp())::float8 end as due,
        json_build_object('state', state, 'started_on', started_on, 'expire_seconds', expire_seconds, 'heartbeat_on', heartbeat_on,
          'heartbeat_seconds', heartbeat_seconds, 'retry_count', retry_count, 'retry_limit', retry_limit, 'output', output) as columns
      from pgboss.job where name = '${QUEUE}'`,

    age: `update pgboss.job set started_on = started_on - (expire_seconds + 60) * interval '1 s'
      where name = '${QUEUE}' and state = 'active'`,
  }
}
