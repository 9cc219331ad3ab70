import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { cancelCommand } from './cancel.ts'
import { addEndpointFilterFlags, addFilterFlags } from './deliveries-flags.ts'
import { addEndpointCommands } from './endpoints-commands.ts'
import { listCommand } from './list.ts'
import { recoverCommand } from './recover.ts'
import { requeueCommand } from './requeue.ts'
import { showCommand } from './show.ts'

const JSON_FLAG = ['--json', 'one JSON document instead of text, for scripts'] as const

/** `leasehold webhooks …` */
export function addWebhookCommands(program: Command, define: Define): void {
  const webhooks = program
    .command('webhooks')
    .description('manage endpoints; send, look at, requeue and cancel deliveries')
  addEndpointCommands(webhooks, define)
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => void,
  ): void => define(webhooks, usage, description, DATABASE_SETTINGS, act, addOptions)

  add('list', 'show deliveries, newest first', listCommand, (command) =>
    addFilterFlags(command, 'pending, delivered, failed')
      .option('--limit <n>', 'at most so many (default: 50)')
      .option('--before <id>', 'only deliveries with smaller ids: the next page')
      .option(...JSON_FLAG),
  )
  add('show <id>', 'show one delivery with every attempt at it', showCommand, (command) =>
    command.option(...JSON_FLAG),
  )
  add('requeue [ids...]', 'deliver once more, by id or by filter', requeueCommand, (command) =>
    addRequeueFlags(addFilterFlags(command, 'failed, delivered (default: failed)')).addHelpText(
      'after',
      REQUEUE_HELP,
    ),
  )
  add('recover', 'requeue all that has failed since a moment', recoverCommand, (command) =>
    addRequeueFlags(
      addEndpointFilterFlags(
        command.option(
          '--since <moment>',
          'since when: 2026-03-01T12:00:00Z, or 2h for two hours ago; required',
        ),
      ),
    ).addHelpText('after', RECOVER_HELP),
  )
  add('cancel [ids...]', 'give up pending deliveries, by id or by filter', cancelCommand, (command) =>
    addChangeFlags(addFilterFlags(command, 'pending (the default)'), 'cancelled').addHelpText(
      'after',
      CANCEL_HELP,
    ),
  )
}

function addRequeueFlags(command: Command): Command {
  return addChangeFlags(command.option('--rate <n>', 'at most so many deliveries per second'), 'requeued')
}

function addChangeFlags(command: Command, done: string): Command {
  return command
    .option('--dry-run', `count what would be ${done}, and change nothing`)
    .option('--limit <n>', 'at most so many, the oldest first')
    .option('--reason <text>', 'why, for the audit; required unless it is a dry run')
    .option('--principal <name>', 'who does it, for the audit (default: the account that runs this)')
    .option('--yes', 'do not ask before a change by filter')
    .option(...JSON_FLAG)
}

const REQUEUE_HELP = `
Reset are the status, the attempts and the last error; the event id stays, so that receivers recognise
what they have had, and so do the token and every attempt that was kept. An event id means all
deliveries of the event.

  leasehold webhooks requeue 4711 --reason 'the receiver lost it'
  leasehold webhooks requeue --status failed --error timeout --dry-run
  leasehold webhooks requeue --status delivered --event 0190b3a0-… --reason 'they asked for it'`

const RECOVER_HELP = `
  leasehold webhooks recover --since 2h --endpoint 0190b3a0-… --rate 50 --reason 'it is back'`

const CANCEL_HELP = `
A cancelled delivery has failed, with the code cancelled; requeue brings it back. What is in flight is
left alone.

  leasehold webhooks cancel 4711 --reason 'sent by mistake'
  leasehold webhooks cancel --endpoint 0190b3a0-… --type order.test --reason 'test events'`
