/** `leasehold serve`: the HTTP API alone, on a given database. It runs no workers. */
import { listKeys } from '../operations/api-keys.ts'
import { withoutPassword } from '../database-url.ts'
import type { Run } from './command.ts'
import { givenDatabase, onceAvailable, startDatabase } from './database.ts'
import { runProcess } from './process.ts'
import { declaredWork, noDatabase, refuseOutdated } from './work.ts'
import { readyMessage, startWorkerProcess } from './worker-process.ts'

/** Runs until the process is told to stop. Returns the exit code. */
export async function serve(run: Run): Promise<number> {
  const { loaded, log, version } = run
  const { schema } = loaded.settings
  const databaseUrl = (await givenDatabase(loaded)) ?? noDatabase()
  const { declared } = await declaredWork(loaded.settings)
  return runProcess(run, async (startup) => {
    const db = await startDatabase(databaseUrl, loaded, log, startup)
    await onceAvailable(loaded, log, startup, async () => refuseOutdated(db, schema))
    const work = { workers: [], reaper: false, declared }
    const options = {
      loaded,
      version,
      log,
      db,
      databaseUrl,
      work,
      http: 'defaultPort',
      api: 'withKeys',
    } as const
    const running = await startWorkerProcess(options, startup)
    const keys = await listKeys(db, { schema }).catch(() => undefined)
    if (keys?.some(({ revokedAt }) => revokedAt === null) === false)
      log.warn('there are no keys, so that nobody can use the API: create one with `leasehold keys create`')
    return readyMessage(version, running, withoutPassword(databaseUrl))
  })
}
