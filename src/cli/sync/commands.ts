import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { cancelCommand, retryCommand } from './change.ts'
import { enqueueCommand } from './enqueue.ts'
import { JSON_FLAG, STATES } from './flags.ts'
import { listCommand } from './list.ts'
import { showCommand } from './show.ts'
import { statusCommand } from './status.ts'

/** `leasehold sync …` */
export function addSyncCommands(program: Command, define: Define): void {
  const sync = program.command('sync').description('ask for, watch, cancel and retry sync jobs')
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => void,
  ): void => define(sync, usage, description, DATABASE_SETTINGS, act, addOptions)

  add('status [job]', 'show how far the open jobs, or one job, have come', statusCommand, (command) =>
    command
      .option('--watch', 'keep it live until Ctrl-C, or until the one job has ended')
      .option('--every <time>', 'how often, with --watch (default: 1s at a terminal, 10s elsewhere)')
      .option('--json', 'one JSON document instead of text; with --watch one a line')
      .addHelpText('after', STATUS_HELP),
  )
  add('list', 'show jobs, newest first', listCommand, (command) =>
    command
      .option('--definition <name>', 'only jobs of this definition')
      .option('--matrix <id>', 'only jobs of this matrix')
      .option('--state <names>', `only these states, separated by commas: ${STATES}`)
      .option('--limit <n>', 'at most so many (default: 50)')
      .option('--before <id>', 'only jobs with smaller ids: the next page')
      .option(...JSON_FLAG),
  )
  add('show <job>', 'show one job with its chunks, in the order of the plan', showCommand, (command) =>
    command
      .option('--state <names>', `only chunks in these states, separated by commas: ${STATES}`)
      .option('--limit <n>', 'at most so many chunks (default: 50)')
      .option('--after <hash>', 'only chunks behind this one: the next page')
      .option(...JSON_FLAG),
  )
  add('enqueue <definition> <matrix>', 'ask for a job', enqueueCommand, (command) =>
    command
      .option('--params <json>', 'what the plan is told besides')
      .option('--priority <n>', 'higher ones come first (default: 0)')
      .option('--force', 'sync chunks again that were synced before')
      .option(
        '--fresh-for <time>',
        'sync chunks again that were synced longer ago than this: 90s, 15m, 2h, 7d',
      )
      .option('--parallel', 'also beside another open job of the same matrix')
      .option(...JSON_FLAG),
  )
  add('cancel <job>', 'give up an open job; what it has synced stays', cancelCommand, (command) =>
    addChangeFlags(command).addHelpText('after', CANCEL_HELP),
  )
  add('retry <job>', 'open a failed job again, for its failed chunks only', retryCommand, addChangeFlags)
}

function addChangeFlags(command: Command): Command {
  return command
    .option('--reason <text>', 'why, for the audit; required')
    .option('--principal <name>', 'who does it, for the audit (default: the account that runs this)')
    .option(...JSON_FLAG)
}

const STATUS_HELP = `
Watching one job ends with it: the exit code is 0 when it is completed, and 1 when it has failed.

  leasehold sync status
  leasehold sync status 4711 --watch`

const CANCEL_HELP = `
Chunks in flight are finished; the others are dropped, unless another job wants them. A retry takes
the job up again where it was.

  leasehold sync cancel 4711 --reason 'the wrong matrix'`
