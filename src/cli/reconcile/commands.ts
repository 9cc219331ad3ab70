import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define } from '../define.ts'
import { addLeaseCommand } from './add-lease.ts'

/** `leasehold reconcile …` */
export function addReconcileCommands(program: Command, define: Define): void {
  const reconcile = program
    .command('reconcile')
    .description('prepare a table you already have for being reconciled')
  define(
    reconcile,
    'add-lease',
    'write the migration that gives a table a lease; the table itself is only looked at',
    DATABASE_SETTINGS,
    addLeaseCommand,
    (command) =>
      command
        .requiredOption('--table <name>', 'the table, with its schema: app.payment_requests')
        .requiredOption('--status <column>', 'its column with the status')
        .option('--open <statuses>', 'those in which a row is still looked at, separated by commas')
        .option('--columns <prefix>', 'what the new columns begin with (default: reconcile_lease)')
        .option('--no-token', 'without a column for the token, which then travels inside the owner')
        .option('--out <file>', 'write to a new file instead of stdout')
        .addHelpText('after', ADD_LEASE_HELP),
  )
}

const ADD_LEASE_HELP = `
  leasehold reconcile add-lease --table app.payment_requests --status status \\
    --open pending,detected --out migrations/042_reconcile_lease.sql`
