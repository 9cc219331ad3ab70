// Where a side keeps its events: a new database of the PostgreSQL of the run, or a Redis of its own.
import { startRedis } from './redis.mjs'

/** Empty when it is opened, removed when it is closed. `pid`: whose processor time is that of the server. */
export async function openStore(server, side, name) {
  if (side.system === 'bullmq') {
    const redis = await startRedis({ appendfsync: side.appendfsync })
    return { kind: 'redis', url: redis.url, pid: redis.pid, close: redis.stop }
  }
  const database = `bench_${name}`.replaceAll(/\W+/g, '_').toLowerCase()
  await server.dropDatabase(database)
  return {
    kind: 'postgres',
    url: await server.createDatabase(database),
    pid: server.pid,
    close: async () => server.dropDatabase(database),
  }
}
