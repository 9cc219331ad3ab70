// BullMQ, on Redis or on PostgreSQL. Completed jobs are removed, which is its fastest mode. A worker with a concurrency of one takes the
// jobs of a queue one after another, in order; ordering by key is part of BullMQ Pro.
import { createPostgresBackend, Queue, Worker } from 'bullmq'

const EVENTS = 'event'
const PROBES = 'probe'
const UNFINISHED = ['wait', 'active', 'prioritized', 'delayed', 'paused', 'waiting-children', 'failed']
const BULK = 1_000

const JOB = { removeOnComplete: true }

const BACKENDS = {
  redis: { connectionOf: (url) => ({ path: url, maxRetriesPerRequest: null }), factory: [] },
  postgres: {
    connectionOf: (url) => ({ connectionString: url, migrate: true }),
    factory: [createPostgresBackend],
  },
}

export function bullmq({ concurrency, backend = 'redis' }) {
  const { connectionOf, factory } = BACKENDS[backend]
  const openQueue = (name, url) => new Queue(name, { connection: connectionOf(url) }, ...factory)
  const withQueue = async (url, work) => {
    const queue = openQueue(EVENTS, url)
    try {
      return await work(queue)
    } finally {
      await queue.close()
    }
  }
  const unfinished = async (queue) =>
    Object.values(await queue.getJobCounts(...UNFINISHED)).reduce((sum, count) => sum + count, 0)

  return {
    // On Redis, nothing is counted there.
    schema: 'bullmq',
    table: 'bullmq.job',

    /** A queue creates what it needs. */
    async migrate({ url }) {
      await withQueue(url, async (queue) => queue.waitUntilReady())
    },

    /** Written in bulk: what is stored is the same, and the writing is not timed. */
    async writeEvents({ url, events, payload }) {
      await withQueue(url, async (queue) => {
        for (let first = 1; first <= events; first += BULK) {
          const count = Math.min(BULK, events - first + 1)
          await queue.addBulk(
            Array.from({ length: count }, () => ({ name: EVENTS, data: payload(), opts: JOB })),
          )
        }
      })
    },

    async openProducer({ url }) {
      const queue = openQueue(EVENTS, url)
      await queue.waitUntilReady()
      return {
        async send({ payload }) {
          await queue.add(EVENTS, payload, JOB)
        },
        close: async () => queue.close(),
      }
    },

    async start({ url, handled, probed }) {
      const work = (name, handle, at) =>
        new Worker(
          name,
          handle,
          { connection: connectionOf(url), concurrency: at, removeOnComplete: { count: 0 } },
          ...factory,
        )
      const workers = [
        work(EVENTS, async ({ data, timestamp }) => handled(new Date(timestamp), data), concurrency),
        work(PROBES, async () => probed(), 1),
      ]
      for (const worker of workers)
        worker.on('error', (error) => {
          throw error
        })
      await Promise.all(workers.map(async (worker) => worker.waitUntilReady()))
      return {
        async stop() {
          await Promise.all(workers.map(async (worker) => worker.close()))
        },
      }
    },

    async openQuestions({ url }) {
      const queue = openQueue(EVENTS, url)
      await queue.waitUntilReady()
      return {
        isUnsettled: async () => (await unfinished(queue)) > 0,
        close: async () => queue.close(),
      }
    },

    /** It removes what is done. */
    countFinished: async ({ url, events }) =>
      withQueue(url, async (queue) => events - (await unfinished(queue))),
  }
}
