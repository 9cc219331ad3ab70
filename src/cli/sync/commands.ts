import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { addBulkChangeFlags } from '../bulk-change.ts'
import { addExplainFlags } from '../explain.ts'
import { JSON_FLAG } from '../flags.ts'
import { addListFlags } from '../list.ts'
import { addWatchFlags } from '../watch.ts'
import {
  addFailedSinceFlag,
  addFilterFlags,
  cancelCommand,
  enqueueCommand,
  explainCommand,
  listCommand,
  replayCommand,
  showCommand,
  STATES,
} from './jobs.ts'
import { statusCommand } from './status.ts'

/** `leasehold sync …` */
export function addSyncCommands(sync: Command, define: Define): void {
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => void,
  ): void => define(sync, usage, description, DATABASE_SETTINGS, act, addOptions)

  add('status [job]', 'show the progress of the open jobs, or of one job', statusCommand, (command) =>
    addWatchFlags(command, 'Ctrl-C, or until the given job has ended').addHelpText('after', STATUS_HELP),
  )
  add('list', 'show jobs, newest first', listCommand, (command) =>
    addListFlags(addFailedSinceFlag(addFilterFlags(command, STATES)), 'jobs'),
  )
  add('show <job>', 'show one job with its chunks, in the order of the plan', showCommand, (command) =>
    command
      .option('--state <names>', `only chunks in these states, separated by commas: ${STATES}`)
      .option('--limit <n>', 'show at most this many chunks (default: 50)')
      .option('--after <hash>', 'only chunks after this one, for the next page')
      .option(...JSON_FLAG),
  )
  add(
    'explain <job> [chunk]',
    'say why a job, or a chunk of it by its hash, is not running',
    explainCommand,
    addExplainFlags,
  )
  add('enqueue <definition> <matrix>', 'enqueue a job that syncs a matrix', enqueueCommand, (command) =>
    command
      .option('--params <json>', 'parameters for the plan, as JSON')
      .option('--priority <n>', 'jobs with a higher priority come first (default: 0)')
      .option('--force', 'sync all chunks, even those that were synced before')
      .option(
        '--fresh-for <time>',
        'also sync chunks that were synced longer ago than this: 90s, 15m, 2h, 7d',
      )
      .option('--parallel', 'create the job even if another job of the same matrix is open')
      .option(...JSON_FLAG),
  )
  add(
    'cancel [jobs...]',
    'fail open jobs, by id or by filter; what they have synced stays',
    cancelCommand,
    (command) =>
      addBulkChangeFlags(
        addFilterFlags(command, 'available, running, expired (default: all of them)'),
        'jobs',
      ).addHelpText('after', CANCEL_HELP),
  )
  add('replay [jobs...]', 'reopen failed jobs, by id or by filter', replayCommand, (command) =>
    addBulkChangeFlags(
      addFailedSinceFlag(addFilterFlags(command, 'failed (the default)')),
      'jobs',
    ).addHelpText('after', REPLAY_HELP),
  )
}

const STATUS_HELP = `
With --watch and a job, the command ends when the job does: with exit code 0 if the job is completed, and
with 1 if it has failed.

  leasehold sync status
  leasehold sync status 4711 --watch`

const CANCEL_HELP = `
Chunks in flight are finished. The others are dropped, unless another job needs them. A replay reopens
the job.

  leasehold sync cancel 4711 --reason 'the wrong matrix'
  leasehold sync cancel --definition invoices --dry-run`

const REPLAY_HELP = `
Only chunks that have failed or were dropped are synced. A job whose plan was not complete is planned
from the beginning. A job is not replayed while another job of its matrix is open.

  leasehold sync replay 4711 --reason 'the source is back'
  leasehold sync replay --since 2h --error 'HTTP 503' --rate 1 --reason 'the source is back'`
