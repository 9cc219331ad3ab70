/** `leasehold reconcile …`: prepares tables for reconcilers. */
import { writeFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { Command } from 'commander'
import { messageOf } from '../../errors.ts'
import { addLease } from '../../reconcile/add-lease.ts'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { withRunningDatabase } from '../database.ts'
import { invalidArgument, textFlag } from '../flags.ts'

export function addReconcileCommands(program: Command, define: Define): void {
  const reconcile = program
    .command('reconcile')
    .description('prepare a table you already have for reconciliation')
  define(
    reconcile,
    'add-lease',
    'write the migration that adds lease columns to a table; the table itself is not changed',
    DATABASE_SETTINGS,
    addLeaseCommand,
    (command) =>
      command
        .requiredOption('--table <name>', 'the table with its schema, such as app.payment_requests')
        .requiredOption('--status <column>', 'the column that holds the status')
        .option('--open <statuses>', 'the statuses in which a row is still examined, separated by commas')
        .option('--columns <prefix>', 'prefix of the new columns (default: reconcile_lease)')
        .option('--no-token', 'add no token column; the token is then carried inside the owner')
        .option('--out <file>', 'write to a new file instead of stdout')
        .addHelpText('after', ADD_LEASE_HELP),
  )
}

const ADD_LEASE_HELP = `
Example:
  leasehold reconcile add-lease --table app.payment_requests --status status \\
    --open pending,detected --out migrations/042_reconcile_lease.sql`

async function addLeaseCommand({ loaded, log, print, flags, terminal }: Run): Promise<number> {
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
  await writeNewFile(resolve(terminal.workingDirectory, out), out, sql)
  print(`Wrote ${out}. Run it, and declare the table as its comments say.\n`)
  return 0
}

function openStatuses(value: string | undefined): readonly string[] | undefined {
  if (value === undefined) return undefined
  const statuses = value.split(',').map((status) => status.trim())
  if (statuses.includes('')) throw invalidArgument('open', value, 'give statuses separated by commas.')
  return statuses
}

/** An existing migration is never overwritten: it may have been run, or edited. */
async function writeNewFile(path: string, given: string, sql: string): Promise<void> {
  try {
    await writeFile(path, sql, { flag: 'wx' })
  } catch (error) {
    const reason = messageOf(error)
    const exists = error instanceof Error && 'code' in error && error.code === 'EEXIST'
    throw invalidArgument('out', given, exists ? 'that file already exists; name another.' : `${reason}.`)
  }
}
