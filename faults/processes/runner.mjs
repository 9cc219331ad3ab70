// A runner of sync. Each chunk writes its effect and settles in one transaction; some of the time the process dies in between.
import { config, fromBuild, history, random, serve, worker } from './recorded-process.mjs'

const { openDatabase } = await fromBuild('index.js')
const { createSync } = await fromBuild('sync/index.js')
const target = openDatabase({ url: config.databaseUrl, maxConnections: 4 })
const sync = createSync()

function die(where) {
  history.write({ type: 'died', worker, where })
  process.kill(process.pid, 'SIGKILL')
}

sync.define('matrix', {
  async *plan({ matrixId }) {
    for (let n = 0; n < config.chunks; n += 1) yield { matrixId, n }
  },
  async syncChunk({ query }, context) {
    const synced = { rows: 1 }
    const dies = random.chance(config.deaths)
    await target.transaction(async (tx) => {
      await tx.query({
        text: 'insert into public.effects (n, token, worker) values ($1, $2, $3)',
        values: [query.n, String(context.token), worker],
      })
      if (dies && random.chance(0.5)) die('between effect and checkpoint')
      await context.settleIn(tx, synced)
      if (dies) die('between checkpoint and commit')
    })
    return synced
  },
  concurrency: 4,
  retry: config.retry,
})

const { settings } = config
await serve(sync.runner({ jobs: settings, chunks: settings, checkEveryMs: 100 }))
