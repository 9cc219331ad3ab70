import { writeFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import { addLease } from '../../reconcile/add-lease.ts'
import { textFlag, wrong } from '../flag-values.ts'
import type { Run } from '../run.ts'
import { withRunningDatabase } from '../running-database.ts'

/** `leasehold reconcile add-lease` */
export async function addLeaseCommand({ loaded, log, print, flags, terminal }: Run): Promise<number> {
  const prefix = textFlag(flags, 'columns')
  const open = openStatuses(textFlag(flags, 'open'))
  const out = textFlag(flags, 'out')
  const options = {
    table: textFlag(flags, 'table') ?? '',
    status: textFlag(flags, 'status') ?? '',
    token: flags['token'] !== false,
    ...(prefix === undefined ? {} : { prefix }),
    ...(open === undefined ? {} : { open }),
  }
  const sql = await withRunningDatabase(loaded, log, async (db) => addLease(db, options))
  if (out === undefined) {
    print(sql)
    return 0
  }
  await writeNew(resolve(terminal.workingDirectory, out), out, sql)
  print(`Wrote ${out}. Run it, and declare the table as it says.\n`)
  return 0
}

function openStatuses(value: string | undefined): readonly string[] | undefined {
  if (value === undefined) return undefined
  const statuses = value.split(',').map((status) => status.trim())
  if (statuses.includes('')) throw wrong('open', value, 'name statuses, separated by commas.')
  return statuses
}

/** A migration that is there already may have been run, or edited. */
async function writeNew(path: string, shown: string, sql: string): Promise<void> {
  try {
    await writeFile(path, sql, { flag: 'wx' })
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    const exists = error instanceof Error && 'code' in error && error.code === 'EEXIST'
    throw wrong('out', shown, exists ? 'that file is there already; name another.' : `${reason}.`)
  }
}
