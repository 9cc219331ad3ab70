/** A command that changes many rows, halted half way: another session holds the lock of one of them. */
import { expect, onTestFinished, vi } from 'vitest'
import type { CommandLine } from './command-line.ts'
import type { Processes, TestProcess } from './processes.ts'
import { openSession } from './session.ts'

const BOUND = { timeout: 30_000, interval: 20 }

export interface HaltedCommand {
  readonly process: TestProcess
  /** The row is free again, and the command goes on if it is still there. */
  readonly letGo: () => Promise<void>
  /** The database ends the session that waits. */
  readonly endSession: () => Promise<void>
  /** The row is free again, and all that the command had asked of the database has ended. */
  readonly letGoOfKilled: () => Promise<void>
}

/** Runs `dist/cli/main.js` until it waits for the row with this id, of this table. */
export function useHaltedCommands(
  { spawnNode }: Processes,
  { db, url, directory }: CommandLine,
  table: string,
): (args: readonly string[], id: number) => Promise<HaltedCommand> {
  async function sessions(condition: string): Promise<number> {
    const { rows } = await db.query<{ count: number }>({
      text: `select count(*)::int as count from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and ${condition}`,
    })
    return rows[0]?.count ?? 0
  }

  return async (args, id) => {
    const holder = await openSession(url)
    await holder.query('begin')
    await holder.query(`select from ${table} where id = $1 for update`, [id])

    const env = { DATABASE_URL: url, LEASEHOLD_PORT: '' }
    const process = spawnNode('dist/cli/main.js', args, { cwd: directory(), env })
    onTestFinished(async () => void (await process.kill('SIGKILL')))
    const waiting = `wait_event_type = 'Lock' and query like '%for update%'`
    await vi.waitFor(async () => expect(await sessions(waiting)).toBe(1), BOUND)

    const letGo = async (): Promise<void> => void (await holder.query('rollback'))
    return {
      process,
      letGo,
      async endSession() {
        await db.query({
          text: `select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'`,
        })
      },
      async letGoOfKilled() {
        await letGo()
        await vi.waitFor(async () => expect(await sessions(`state = 'active'`)).toBe(0), BOUND)
      },
    }
  }
}
