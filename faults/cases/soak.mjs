import cut from './cut.mjs'
import halfOpen from './half-open.mjs'
import lateWrites from './late-writes.mjs'
import lockedRows from './locked-rows.mjs'
import lostCommit from './lost-commit.mjs'
import maxConnections from './max-connections.mjs'
import postmaster from './postmaster.mjs'
import readOnly from './read-only.mjs'
import sigkill from './sigkill.mjs'
import sigstop from './sigstop.mjs'
import terminate from './terminate.mjs'

const MIXED = [
  cut,
  halfOpen,
  lateWrites,
  lockedRows,
  lostCommit,
  maxConnections,
  postmaster,
  readOnly,
  sigkill,
  sigstop,
  terminate,
]

const WORKERS = 4

/** Steps of all these faults, two at a time, for as long as it lasts. */
export function soakFor(durationMs) {
  return {
    name: 'soak',
    title: 'most of these at once, for as long as the soak lasts',
    workers: WORKERS,
    worker: { publishMs: [5, 300] },
    produces: { pauseMs: 100, keys: 40 },
    async run(context) {
      const until = performance.now() + (context.short ? durationMs / 4 : durationMs)
      const one = async () => {
        while (performance.now() < until) {
          // A worker that was started while the database was away has ended.
          if (context.workers.length < WORKERS) await context.startWorker({ mayFail: true })
          const fault = context.random.pick(MIXED)
          context.history.write({ type: 'step', fault: fault.name })
          // With two faults at once a step may wait for what the other one prevents.
          await fault
            .step(context)
            .catch((error) => context.history.write({ type: 'stepFailed', fault: fault.name, error }))
        }
      }
      await Promise.all([one(), one()])
      for (const worker of context.workers) {
        worker.signal('SIGCONT')
        worker.proxy.flush()
      }
      await context.startWorker()
    },
  }
}
