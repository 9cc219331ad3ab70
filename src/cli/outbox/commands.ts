import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define, type Run } from '../command.ts'
import { collect } from '../flags.ts'
import { enqueueCommand } from './enqueue.ts'
import { addFilterFlags } from './filter-flags.ts'
import { listCommand } from './list.ts'
import { replayCommand } from './replay.ts'
import { showCommand } from './show.ts'
import { unblockCommand } from './unblock.ts'

const JSON_FLAG = ['--json', 'one JSON document instead of text, for scripts'] as const
const PRINCIPAL = [
  '--principal <name>',
  'who does it, for the audit (default: the account that runs this)',
] as const

/** `leasehold outbox …` */
export function addOutboxCommands(program: Command, define: Define): void {
  const outbox = program.command('outbox').description('write, look at, replay and unblock events')
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
        .option('--header <name=value>', 'travels beside the payload; can be repeated', collect)
        .option('--available-at <moment>', 'not published before: 2026-03-01T12:00:00Z')
        .option('--event-id <uuid>', 'what consumers recognise it by; the same one again writes nothing')
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
    addFilterFlags(command, 'published, dead (default: both)')
      .option('--dry-run', 'count what would be replayed, and change nothing')
      .option('--rate <n>', 'at most so many events per second')
      .option('--limit <n>', 'at most so many, the oldest first')
      .option('--reason <text>', 'why, for the audit; required unless it is a dry run')
      .option(...PRINCIPAL)
      .option('--yes', 'do not ask before a replay by filter')
      .option('--resume <replay>', 'go on with a replay that was stopped or died')
      .option(...JSON_FLAG)
      .addHelpText('after', REPLAY_HELP),
  )
  add(
    'unblock <key>',
    'let an ordering key go on that a parked or failing event holds up',
    unblockCommand,
    (command) =>
      command
        .option('--replay', 'publish that event again first, now, instead of going on without it')
        .option('--reason <text>', 'why, for the audit; required')
        .option(...PRINCIPAL)
        .option(...JSON_FLAG),
  )
}

const REPLAY_HELP = `
Reset are the status, the attempts and expiries and the last error; the event id, the token and the
moment it was written stay. Events of a key are published in their old order, and later ones wait for them.

  leasehold outbox replay 4711 --reason 'the receiver lost it'
  leasehold outbox replay --status dead --error timeout --dry-run
  leasehold outbox replay --status dead --error timeout --rate 100 --reason 'the broker is back'`
