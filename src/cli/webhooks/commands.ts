import type { Command } from 'commander'
import { addBulkChangeFlags } from '../bulk-change.ts'
import { DATABASE_SETTINGS, type Define, type Run, WEBHOOK_SETTINGS } from '../command.ts'
import {
  addFilterFlags,
  cancelCommand,
  listCommand,
  replayCommand,
  sendCommand,
  showCommand,
} from './deliveries.ts'
import {
  addEndpointFlags,
  addRemovingFlags,
  createEndpointCommand,
  deleteEndpointCommand,
  disableEndpointCommand,
  enableEndpointCommand,
  encryptSecretsCommand,
  listEndpointsCommand,
  rotateSecretCommand,
  showEndpointCommand,
  updateEndpointCommand,
} from './endpoints.ts'

const JSON_FLAG = ['--json', 'one JSON document instead of text, for scripts'] as const
const SECRET_STDIN = ['--secret-stdin', 'read the secret from stdin (default: one is generated)'] as const

/** `leasehold webhooks …` */
export function addWebhookCommands(program: Command, define: Define): void {
  const webhooks = program
    .command('webhooks')
    .description('manage endpoints; send, list, show, replay and cancel deliveries')
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
  add(
    'replay [ids...]',
    'deliver finished deliveries once more, by id or by filter',
    replayCommand,
    (command) =>
      addBulkChangeFlags(
        addFilterFlags(command, 'failed, delivered (default: failed)'),
        'replay',
        'deliveries',
      ).addHelpText('after', REPLAY_HELP),
  )
  add(
    'cancel [ids...]',
    'fail pending deliveries without another attempt, by id or by filter',
    cancelCommand,
    (command) =>
      addBulkChangeFlags(
        addFilterFlags(command, 'pending (the default)'),
        'cancel',
        'deliveries',
      ).addHelpText('after', CANCEL_HELP),
  )
}

/** `leasehold webhooks endpoints …`, and `leasehold webhooks send`, which sends to them. */
function addEndpointCommands(webhooks: Command, define: Define): void {
  const endpoints = webhooks.command('endpoints').description('create, list, show and change endpoints')
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => Command,
    parent = endpoints,
  ): void =>
    define(parent, usage, description, [...DATABASE_SETTINGS, ...WEBHOOK_SETTINGS], act, (command) =>
      addOptions(command).option(...JSON_FLAG),
    )

  add('list', 'show endpoints, oldest first', listEndpointsCommand, (command) =>
    command
      .option('--tenant <name>', 'only those of this tenant')
      .option('--state <state>', 'only those that are enabled, or disabled')
      .option('--type <type>', 'only those that get events of this type')
      .option('--limit <n>', 'at most so many (default: 50)')
      .option('--after <id>', 'only those after this one: the next page'),
  )
  add('show <id>', 'show one endpoint', showEndpointCommand, (command) => command)
  add('create <url>', 'create an endpoint; its secret is shown once', createEndpointCommand, (command) =>
    addBy(
      addEndpointFlags(command)
        .option('--tenant <name>', 'whose it is (default: of nobody in particular)')
        .option('--signing <kind>', 'v1, a shared secret, or v1a, ed25519 (default: v1)')
        .option(...SECRET_STDIN),
    ).addHelpText('after', CREATE_HELP),
  )
  add('update <id>', 'change an endpoint in what is named', updateEndpointCommand, (command) =>
    addBy(addRemovingFlags(addEndpointFlags(command))),
  )
  add('rotate <id>', 'give it a new secret, which is shown once', rotateSecretCommand, (command) =>
    addBy(
      command
        .option(
          '--keep-old-for <time>',
          'how long deliveries are signed with the old one too: 24h, 7d, 0 (default: 24h)',
        )
        .option(...SECRET_STDIN),
    ),
  )
  add(
    'encrypt',
    'encrypt all secrets with the newest key, after it was put in front of the old one',
    encryptSecretsCommand,
    addBy,
  )
  add('enable <id>', 'let events be sent to it', enableEndpointCommand, addBy)
  add('disable <id>', 'let no events be sent to it', disableEndpointCommand, addBy)
  add('delete <id>', 'delete it; its pending deliveries are given up', deleteEndpointCommand, (command) =>
    addBy(command.option('--yes', 'do not ask')),
  )
  add(
    'send <type> [payload]',
    'send one event; - reads its payload from stdin',
    sendCommand,
    (command) =>
      command
        .option('--tenant <name>', 'whose event it is (default: of nobody in particular)')
        .option('--key <key>', 'its ordering key')
        .option('--event-id <uuid>', 'the webhook-id; an endpoint gets the same one once')
        .option('--available-at <time>', 'not delivered before this time: 2026-03-01T12:00:00Z'),
    webhooks,
  )
}

function addBy(command: Command): Command {
  return command
    .option('--reason <text>', 'why, for the audit')
    .option('--principal <name>', 'who does it, for the audit (default: the account that runs this)')
}

const REPLAY_HELP = `
The status, the attempts and the last error are reset. The event id stays, so that receivers recognise
what they have had; so do the token and the history of attempts. An event id means all deliveries of
the event.

  leasehold webhooks replay 4711 --reason 'the receiver lost it'
  leasehold webhooks replay --since 2h --endpoint 0190b3a0-… --rate 50 --reason 'it is back'
  leasehold webhooks replay --status failed --error timeout --dry-run
  leasehold webhooks replay --status delivered --event 0190b3a0-… --reason 'they asked for it'`

const CANCEL_HELP = `
A cancelled delivery has failed, with the error code cancelled; a replay brings it back. Deliveries in
flight are not cancelled.

  leasehold webhooks cancel 4711 --reason 'sent by mistake'
  leasehold webhooks cancel --endpoint 0190b3a0-… --type order.test --reason 'test events'`

const CREATE_HELP = `
Secrets are stored encrypted with LEASEHOLD_SECRET_KEY (or secretKey in leasehold.config), 32 bytes from
\`openssl rand -base64 32\`; the embedded PostgreSQL has a key of its own. What --webhook-allow
opens here, the dispatcher has to be allowed as well.

  leasehold webhooks endpoints create https://shop.example/hooks --types 'order.*' --tenant acme
  leasehold webhooks endpoints create http://127.0.0.1:3000/hooks --webhook-allow 127.0.0.0/8`
