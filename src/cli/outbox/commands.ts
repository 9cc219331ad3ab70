import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { collect } from '../flags.ts'
import { addBulkChangeFlags } from '../bulk-change.ts'
import {
  addFilterFlags,
  enqueueCommand,
  listCommand,
  replayCommand,
  showCommand,
  unblockCommand,
} from './events.ts'

const JSON_FLAG = ['--json', 'one JSON document instead of text, for scripts'] as const
const PRINCIPAL = [
  '--principal <name>',
  'who does it, for the audit (default: the account that runs this)',
] as const

/** `leasehold outbox …` */
export function addOutboxCommands(program: Command, define: Define): void {
  const outbox = program.command('outbox').description('write, list, show, replay and unblock events')
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => void,
  ): void => define(outbox, usage, description, DATABASE_SETTINGS, act, addOptions)

  add(
    'enqueue <type> [payload]',
    'write one event; - reads its payload from stdin',
    enqueueCommand,
    (command) =>
      command
        .option('--key <key>', 'its ordering key')
        .option('--header <name=value>', 'sent along with the payload; can be repeated', collect)
        .option('--available-at <time>', 'not published before this time: 2026-03-01T12:00:00Z')
        .option(
          '--event-id <uuid>',
          'what consumers recognise it by; an id that exists already writes nothing',
        )
        .option(...JSON_FLAG),
  )
  add('list', 'show events, newest first', listCommand, (command) =>
    addFilterFlags(command, 'pending, claimed, published, dead')
      .option('--limit <n>', 'at most so many (default: 50)')
      .option('--before <id>', 'only events with smaller ids: the next page')
      .option(...JSON_FLAG),
  )
  add('show <id>', 'show one event, by its id or its event id', showCommand, (command) =>
    command.option(...JSON_FLAG),
  )
  add('replay [ids...]', 'publish finished events once more, by id or by filter', replayCommand, (command) =>
    addBulkChangeFlags(
      addFilterFlags(command, 'published, dead (default: both)'),
      'replay',
      'events',
    ).addHelpText('after', REPLAY_HELP),
  )
  add(
    'unblock <key>',
    'unblock an ordering key that a parked or failing event holds up',
    unblockCommand,
    (command) =>
      command
        .option('--replay', 'publish that event first, now, instead of continuing without it')
        .option('--reason <text>', 'why, for the audit; required')
        .option(...PRINCIPAL)
        .option(...JSON_FLAG),
  )
}

const REPLAY_HELP = `
The status, the attempts, the expiries and the last error are reset. The event id, the token and the
time of writing stay. Events of a key are published in their order, and later ones wait for them.

  leasehold outbox replay 4711 --reason 'the receiver lost it'
  leasehold outbox replay --status dead --error timeout --dry-run
  leasehold outbox replay --status dead --error timeout --rate 100 --reason 'the broker is back'`
