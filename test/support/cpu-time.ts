import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import type { Database } from '../../src/postgres/database.ts'

/**
 * Whether the processor time of the server can be read: its processes run on this Linux. A server that is given for a run
 * may be anywhere.
 */
export const canReadCpuTime =
  (process.env['LEASEHOLD_TEST_DATABASE_URL'] ?? '') === '' && existsSync('/proc/self/schedstat')

/**
 * Milliseconds of processor time that the work takes, in this process and in the sessions of the database. Unlike the
 * duration it hardly depends on what else the machine does: under a load of four for each core, durations of the same work
 * differed by a factor of five, and processor times by a tenth.
 */
export async function cpuTimeOf(db: Database, work: () => Promise<void>): Promise<number> {
  const sessionsBefore = await timesOfSessions(db)
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  let milliseconds = (user + system) / 1_000
  for (const [pid, time] of await timesOfSessions(db)) milliseconds += time - (sessionsBefore.get(pid) ?? 0)
  return milliseconds
}

async function timesOfSessions(db: Database): Promise<Map<number, number>> {
  const { rows } = await db.query<{ pid: number }>({
    text: `select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'`,
  })
  const times = new Map<number, number>()
  for (const { pid } of rows) {
    // A session that has just ended has no file any more.
    const text = await readFile(`/proc/${pid}/schedstat`, 'utf8').catch(() => '0')
    times.set(pid, Number(text.split(' ')[0]) / 1_000_000)
  }
  return times
}
