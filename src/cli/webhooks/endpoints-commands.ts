import type { Command } from 'commander'
import { DATABASE_SETTINGS, type Define, type Run, WEBHOOK_SETTINGS } from '../command.ts'
import {
  createEndpointCommand,
  deleteEndpointCommand,
  disableEndpointCommand,
  enableEndpointCommand,
  encryptSecretsCommand,
  rotateSecretCommand,
  updateEndpointCommand,
} from './endpoints-change.ts'
import { addEndpointFlags, addRemovingFlags } from './endpoints-flags.ts'
import { listEndpointsCommand } from './endpoints-list.ts'
import { showEndpointCommand } from './endpoints-show.ts'
import { sendCommand } from './send.ts'

const JSON_FLAG = ['--json', 'one JSON document instead of text, for scripts'] as const
const SECRET_STDIN = ['--secret-stdin', 'read the secret from stdin (default: one is made)'] as const

/** `leasehold webhooks endpoints …`, and `leasehold webhooks send`, which sends to them. */
export function addEndpointCommands(webhooks: Command, define: Define): void {
  const endpoints = webhooks.command('endpoints').description('create, look at and change endpoints')
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
        .option('--keep-old-for <time>', 'how long the old one signs along: 24h, 7d, 0 (default: 24h)')
        .option(...SECRET_STDIN),
    ),
  )
  add(
    'encrypt',
    'encrypt all secrets with the newest key, after it was put in front of the old one',
    encryptSecretsCommand,
    addBy,
  )
  add('enable <id>', 'let events go to it again', enableEndpointCommand, addBy)
  add('disable <id>', 'let no events go to it', disableEndpointCommand, addBy)
  add('delete <id>', 'remove it for good', deleteEndpointCommand, (command) =>
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
        .option('--available-at <moment>', 'not delivered before: 2026-03-01T12:00:00Z'),
    webhooks,
  )
}

function addBy(command: Command): Command {
  return command
    .option('--reason <text>', 'why, for the audit')
    .option('--principal <name>', 'who does it, for the audit (default: the account that runs this)')
}

const CREATE_HELP = `
Secrets are stored encrypted with LEASEHOLD_SECRET_KEY (or secretKey in leasehold.config), 32 bytes from
\`openssl rand -base64 32\`; the embedded PostgreSQL has a key of its own. What --webhook-allow
opens here, the dispatcher has to be allowed as well.

  leasehold webhooks endpoints create https://shop.example/hooks --types 'order.*' --tenant acme
  leasehold webhooks endpoints create http://127.0.0.1:3000/hooks --webhook-allow 127.0.0.0/8`
