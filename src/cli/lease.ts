/** `leasehold lease …`: prepares a table that you already have for workers, and explains its rows. */
import { writeFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { Command } from 'commander'
import { explainRow, workedBy } from '../operations/explain/explain.ts'
import { messageOf } from '../errors.ts'
import { addLease, type LeaseAddition, planLease, WHAT_IS_MISSING } from '../lease/add-lease.ts'
import { rowId, tableName } from '../lease/index.ts'
import type { Database } from '../postgres/index.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { DATABASE_SETTINGS, type Define, type Run, type UsageError } from './command.ts'
import { withOwnTable, withRunningDatabase } from './database.ts'
import { addExplainFlags, runExplain } from './explain.ts'
import { invalidArgument, isSet, textFlag } from './flags.ts'

export function addLeaseCommands(lease: Command, define: Define): void {
  define(
    lease,
    'add',
    'add lease columns and the indexes of a worker to a table, and print its declaration',
    DATABASE_SETTINGS,
    addLeaseCommand,
    (command) =>
      command
        .requiredOption('--table <name>', 'the table with its schema, such as app.payment_requests')
        .requiredOption('--claimable <condition>', 'which rows may be claimed, as SQL on their columns')
        .option('--columns <prefix>', 'prefix of the new columns (default: lease)')
        .option('--status <column>', 'also add an index that begins with this column')
        .option('--no-token', 'add no token column; the token is then carried inside the owner')
        .option('--dry-run', 'print the SQL instead of running it')
        .option('--out <file>', 'write the SQL to a new file instead of running it')
        .addHelpText('after', HELP),
  )
  define(
    lease,
    'explain <id...>',
    'say why a row of a table is not being processed; where several columns identify a row, give all their values',
    DATABASE_SETTINGS,
    explainCommand,
    (command) =>
      addExplainFlags(
        command.requiredOption(
          '--table <name>',
          'the table with its schema, or the name of its worker in leasehold.config',
        ),
      ),
  )
}

/** `leasehold lease explain --table <name> <id...>` */
async function explainCommand(run: Run): Promise<number> {
  const { loaded, flags, args } = run
  const name = requiredFlag(flags, 'table')
  const declared = declarationsOf(name, loaded.settings.workers)
  const [first] = declared
  if (first === undefined) throw unknownTable(name, loaded.settings.workers)
  const { table } = first
  const [only = '', ...more] = args
  // A row id of several columns can also be given as one JSON array, as logs show it.
  const id = more.length === 0 ? only : rowId(only, ...more)
  if (args.length !== 1 && args.length !== table.id.length)
    throw invalidArgument('<id...>', args.join(' '), `give the values of ${table.id.join(', ')}.`)
  return runExplain(run, withOwnTable, async (db, options) =>
    explainRow(db, workedBy(table, declared), id, options),
  )
}

/** All workers of the table that is named, or whose worker is named. */
function declarationsOf(name: string, workers: readonly WorkDeclaration[]): readonly WorkDeclaration[] {
  const tables = new Set(
    workers.flatMap((worker) => {
      const table = tableName(worker.table)
      return worker.name === name || table === name || table === `public.${name}` ? [table] : []
    }),
  )
  const [only] = tables
  return workers.filter(({ table }) => tableName(table) === only)
}

function unknownTable(name: string, workers: readonly WorkDeclaration[]): UsageError {
  const known = [...new Set(workers.map((worker) => `${tableName(worker.table)} (${worker.name})`))]
  const rule =
    known.length === 0
      ? 'leasehold.config, in this directory, declares no workers. Run it where yours is, or declare one there.'
      : `give one of those in leasehold.config: ${known.join(', ')}.`
  return invalidArgument('table', name, rule)
}

const HELP = `
Example:
  leasehold lease add --table app.emails --claimable "sent_at is null" --dry-run`

/** An index on a large table takes hours at most. */
const INDEX_TIMEOUT_MS = 86_400_000

async function addLeaseCommand({ loaded, log, print, flags, terminal }: Run): Promise<number> {
  const prefix = textFlag(flags, 'columns')
  const status = textFlag(flags, 'status')
  const out = textFlag(flags, 'out')
  const options = {
    table: requiredFlag(flags, 'table'),
    claimable: requiredFlag(flags, 'claimable'),
    token: flags['token'] !== false,
    ...(prefix === undefined ? {} : { prefix }),
    ...(status === undefined ? {} : { status }),
  }
  const act = async (db: Database): Promise<string> => {
    const addition = await planLease(db, options)
    if (out !== undefined) {
      await writeNewFile(resolve(terminal.workingDirectory, out), out, addition.migration)
      return `Wrote ${out}. Run it, and declare the table as its comments say.\n`
    }
    if (isSet(flags, 'dryRun')) return addition.migration
    return describe(options.table, addition, await addLease(db, addition))
  }
  // An index is built outside a transaction, and its condition is the user's.
  print(await withRunningDatabase(loaded, log, act, { queryTimeoutMs: INDEX_TIMEOUT_MS, ownPath: true }))
  return 0
}

function describe(table: string, { declaration }: LeaseAddition, added: readonly string[]): string {
  const what =
    added.length === 0 ? `${table} has its lease already.` : `Added to ${table}: ${added.join(', ')}.`
  return `${what} Declare it:\n\n${WHAT_IS_MISSING.replaceAll(/^/gm, '// ')}\n${declaration}\n`
}

function requiredFlag(flags: Run['flags'], name: string): string {
  const value = textFlag(flags, name) ?? ''
  if (value.trim() === '') throw invalidArgument(name, value, 'it must not be empty.')
  return value
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
