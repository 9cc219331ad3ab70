// What the worker processes of a run have in common. Each gets its configuration as one argument, appends what it sees to
// the history, and ends with SIGTERM, or with the run, which holds its stdin open.
import { openHistory } from '../history.mjs'
import { randomFor } from '../random.mjs'

export const config = JSON.parse(process.argv[2])
export const worker = config.id
export const history = openHistory(config.history)
export const random = randomFor(config.seed, config.id)

/** A module of the build that this process is to run. */
export const fromBuild = async (path) => import(new URL(path, config.build))

const { Events, startRuntime } = await fromBuild('index.js')
export const events = new Events()

for (const type of ['databaseLost', 'trouble', 'notListening', 'dataError', 'workerDied', 'reaperFailed']) {
  events.on(type, ({ what, verb, id, error, died }) =>
    history.write({ type, worker, what, verb, id, died, error }),
  )
}

/** Runs these workers until the end of the process. */
export async function serve(workers) {
  const runtime = await startRuntime({
    id: worker,
    databaseUrl: config.databaseUrl,
    log: false,
    presenceMs: 500,
    events,
    workers,
  })
  history.write({ type: 'up', worker, pid: process.pid })
  process.stdout.write('up\n')
  process.stdin.resume()
  process.stdin.once('end', () => process.exit(2))
  await new Promise((resolve) => process.once('SIGTERM', resolve))
  const { clean } = await runtime.stop()
  process.exit(clean ? 0 : 1)
}
