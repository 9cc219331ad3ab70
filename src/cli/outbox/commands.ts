import type { Command } from 'commander'
import { HELD_UP_KEYS } from '../../outbox/operations.ts'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { collect, JSON_FLAG } from '../flags.ts'
import { addListFlags } from '../list.ts'
import { addBulkChangeFlags } from '../bulk-change.ts'
import { addExplainFlags } from '../explain.ts'
import { addOperations } from '../operations.ts'
import {
  addFilterFlags,
  enqueueCommand,
  explainCommand,
  giveUpCommand,
  listCommand,
  replayCommand,
  retryCommand,
  showCommand,
} from './events.ts'

/** `leasehold outbox …` */
export function addOutboxCommands(outbox: Command, define: Define): void {
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => void,
  ): void => define(outbox, usage, description, DATABASE_SETTINGS, act, addOptions)

  add(
    'enqueue <type> [payload]',
    'write one event; with - as the payload, read it from stdin',
    enqueueCommand,
    (command) =>
      command
        .option('--key <key>', 'ordering key of the event')
        .option('--header <name=value>', 'header to publish with the payload; can be repeated', collect)
        .option('--available-at <time>', 'do not publish before this time, such as 2026-03-01T12:00:00Z')
        .option(
          '--event-id <uuid>',
          'event id (default: a new one); if an event has this id already, nothing is written',
        )
        .option(...JSON_FLAG),
  )
  add('list', 'show events, newest first', listCommand, (command) =>
    addListFlags(addFilterFlags(command, 'pending, claimed, published, dead'), 'events'),
  )
  add('show <id>', 'show one event, by its id or its event id', showCommand, (command) =>
    command.option(...JSON_FLAG),
  )
  add('explain <id>', 'say why an event is not being published', explainCommand, addExplainFlags)
  add('retry [ids...]', 'publish pending events now, by id or by filter', retryCommand, (command) =>
    addBulkChangeFlags(addFilterFlags(command, 'pending (the default)'), 'events').addHelpText(
      'after',
      RETRY_HELP,
    ),
  )
  add(
    'give-up [ids...]',
    'give up pending events, by id or by filter: they are dead',
    giveUpCommand,
    (command) =>
      addBulkChangeFlags(addFilterFlags(command, 'pending (the default)'), 'events').addHelpText(
        'after',
        GIVE_UP_HELP,
      ),
  )
  add('replay [ids...]', 'publish finished events again, by id or by filter', replayCommand, (command) =>
    addBulkChangeFlags(addFilterFlags(command, 'published, dead (default: both)'), 'events').addHelpText(
      'after',
      REPLAY_HELP,
    ),
  )
  addOperations(HELD_UP_KEYS)(outbox, define)
}

const RETRY_HELP = `
Events that wait for their next attempt become due at once. Their attempts are not reset. A filter chooses
only events at which an attempt has failed; to publish an event earlier than it was written for, give its id.

  leasehold outbox retry 4711 --reason 'the broker is back'
  leasehold outbox retry --error timeout --rate 100 --reason 'the broker is back'`

const GIVE_UP_HELP = `
A filter chooses only events at which an attempt has failed; any other pending event is given up by its id.
Ordering keys that such an event held up go on. \`leasehold outbox replay\` brings it back.

  leasehold outbox give-up 4711 --reason 'the order was a test'
  leasehold outbox give-up --type email.requested --error 'no such user' --dry-run`

const REPLAY_HELP = `
A replay resets the status, the attempts, the expiries and the last error. It does not change the event
id, the token or the time of writing. Events of a key are published in order, and later events of the
key wait for the replayed ones.

  leasehold outbox replay 4711 --reason 'the receiver lost it'
  leasehold outbox replay --status dead --error timeout --dry-run
  leasehold outbox replay --status dead --error timeout --rate 100 --reason 'the broker is back'`
