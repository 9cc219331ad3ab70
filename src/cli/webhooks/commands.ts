import type { Command } from 'commander'
import { PORTAL_ROLES } from '../../operations/api-sessions.ts'
import { addBulkChangeFlags } from '../bulk-change.ts'
import { DATABASE_SETTINGS, type Define, type Run, WEBHOOK_SETTINGS } from '../command.ts'
import { addExplainFlags } from '../explain.ts'
import { JSON_FLAG, PRINCIPAL_FLAG } from '../flags.ts'
import { addListFlags } from '../list.ts'
import {
  addFailedSinceFlag,
  addFilterFlags,
  cancelCommand,
  explainCommand,
  listCommand,
  replayCommand,
  retryCommand,
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
  testEndpointCommand,
  updateEndpointCommand,
} from './endpoints.ts'
import { portalCommand } from './portal.ts'

const SECRET_STDIN = ['--secret-stdin', 'read the secret from stdin (default: generate a new one)'] as const

/** `leasehold webhooks …` */
export function addWebhookCommands(webhooks: Command, define: Define): void {
  addEndpointCommands(webhooks, define)
  const add = (
    usage: string,
    description: string,
    act: (run: Run) => Promise<number>,
    addOptions: (command: Command) => void,
  ): void => define(webhooks, usage, description, DATABASE_SETTINGS, act, addOptions)

  add('list', 'show deliveries, newest first', listCommand, (command) =>
    addListFlags(addFailedSinceFlag(addFilterFlags(command, 'pending, delivered, failed')), 'deliveries'),
  )
  add('show <id>', 'show one delivery and all its attempts', showCommand, (command) =>
    command.option(...JSON_FLAG),
  )
  add('explain <id>', 'say why a delivery is not being attempted', explainCommand, addExplainFlags)
  add('retry [ids...]', 'attempt pending deliveries now, by id or by filter', retryCommand, (command) =>
    addBulkChangeFlags(addFilterFlags(command, 'pending (the default)'), 'deliveries').addHelpText(
      'after',
      RETRY_HELP,
    ),
  )
  add('replay [ids...]', 'attempt finished deliveries again, by id or by filter', replayCommand, (command) =>
    addBulkChangeFlags(
      addFailedSinceFlag(addFilterFlags(command, 'failed, delivered (default: failed)')),
      'deliveries',
    ).addHelpText('after', REPLAY_HELP),
  )
  add(
    'cancel [ids...]',
    'fail pending deliveries without another attempt, by id or by filter',
    cancelCommand,
    (command) =>
      addBulkChangeFlags(addFilterFlags(command, 'pending (the default)'), 'deliveries').addHelpText(
        'after',
        CANCEL_HELP,
      ),
  )
  add('portal <tenant>', 'make a link that opens the portal of a tenant, once', portalCommand, (command) =>
    command
      .option('--role <role>', `what whoever opens it may do: ${PORTAL_ROLES.join(', ')} (default: read)`)
      .option('--expires <time>', 'how long the link can be used: 10s to 1h (default: 5m)')
      .option('--url <url>', 'where the dashboard is served; without it, a path relative to it is printed')
      .option('--name <name>', 'who it is for: <tenant>/portal:<name> in the audit')
      .option(...PRINCIPAL_FLAG)
      .option(...JSON_FLAG)
      .addHelpText('after', PORTAL_HELP),
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
      .option('--tenant <name>', 'only endpoints of this tenant')
      .option('--state <state>', 'only endpoints in this state: enabled or disabled')
      .option('--type <type>', 'only endpoints that receive events of this type')
      .option('--limit <n>', 'show at most this many (default: 50)')
      .option('--after <id>', 'only endpoints after this one, for the next page'),
  )
  add('show <id>', 'show one endpoint', showEndpointCommand, (command) => command)
  add('create <url>', 'create an endpoint; its secret is shown once', createEndpointCommand, (command) =>
    addBy(
      addEndpointFlags(command)
        .option('--tenant <name>', 'tenant of the endpoint (default: the default tenant)')
        .option('--signing <kind>', 'v1 for a shared secret, v1a for an ed25519 key pair (default: v1)')
        .option(...SECRET_STDIN),
    ).addHelpText('after', CREATE_HELP),
  )
  add('update <id>', 'change the given fields of an endpoint', updateEndpointCommand, (command) =>
    addBy(addRemovingFlags(addEndpointFlags(command))),
  )
  add('rotate <id>', 'give an endpoint a new secret, which is shown once', rotateSecretCommand, (command) =>
    addBy(
      command
        .option(
          '--keep-old-for <time>',
          'how long deliveries are also signed with the old secret: 24h, 7d, 0 (default: 24h)',
        )
        .option(...SECRET_STDIN),
    ),
  )
  add(
    'encrypt',
    'encrypt all secrets and headers with the newest key, the first one in LEASEHOLD_SECRET_KEY',
    encryptSecretsCommand,
    addBy,
  )
  add('test <id>', 'send a test event to an endpoint, whatever it subscribes to', testEndpointCommand, addBy)
  add('enable <id>', 'enable an endpoint: it receives events', enableEndpointCommand, addBy)
  add(
    'disable <id>',
    'disable an endpoint: it receives no events, and its pending deliveries wait',
    disableEndpointCommand,
    addBy,
  )
  add('delete <id>', 'delete an endpoint; its pending deliveries fail', deleteEndpointCommand, (command) =>
    addBy(command.option('--yes', 'do not ask for confirmation')),
  )
  add(
    'send <type> [payload]',
    'send one event; with - as the payload, read it from stdin',
    sendCommand,
    (command) =>
      command
        .option('--tenant <name>', 'tenant of the event (default: the default tenant)')
        .option('--key <key>', 'ordering key of the event')
        .option(
          '--event-id <uuid>',
          'event id, sent as the webhook-id (default: a new one); an endpoint gets each id once',
        )
        .option('--available-at <time>', 'do not deliver before this time, such as 2026-03-01T12:00:00Z'),
    webhooks,
  )
}

function addBy(command: Command): Command {
  return command.option('--reason <text>', 'reason for the change, for the audit').option(...PRINCIPAL_FLAG)
}

const RETRY_HELP = `
Deliveries that wait for their next attempt become due at once. Their attempts are not reset. A filter
chooses only deliveries at which an attempt has failed; to deliver an event earlier than it was sent for,
give its event id, or the id of its delivery. While an endpoint is disabled, or its circuit is open, its
deliveries still wait.

  leasehold webhooks retry 4711 --reason 'the receiver is back'
  leasehold webhooks retry --endpoint 0190b3a0-… --rate 50 --reason 'the receiver is back'`

const REPLAY_HELP = `
A replay resets the status, the attempts, the expiries and the last error. It does not change the token,
the history of attempts or the event id, by which receivers recognise events that they have already
received. An event id selects all deliveries of the event.

  leasehold webhooks replay 4711 --reason 'the receiver lost it'
  leasehold webhooks replay --since 2h --endpoint 0190b3a0-… --rate 50 --reason 'it is back'
  leasehold webhooks replay --status failed --error timeout --dry-run
  leasehold webhooks replay --status delivered --event 0190b3a0-… --reason 'they asked for it'`

const CANCEL_HELP = `
A cancelled delivery has failed, with the error code cancelled. A replay brings it back. Deliveries in
flight are not cancelled.

  leasehold webhooks cancel 4711 --reason 'sent by mistake'
  leasehold webhooks cancel --endpoint 0190b3a0-… --type order.test --reason 'test events'`

const PORTAL_HELP = `
Whoever opens the link sees the endpoints and deliveries of the tenant for one hour. Embed it in a page of
your own, and make a link each time: it can be used once.

  leasehold webhooks portal acme --url https://hooks.example/
  leasehold webhooks portal acme --role operate --name ada@acme.example --expires 1m`

const CREATE_HELP = `
Secrets and headers are stored encrypted with LEASEHOLD_SECRET_KEY (or secretKey in leasehold.config), 32 bytes from
\`openssl rand -base64 32\`. The embedded PostgreSQL has its own key. Networks given with --webhook-allow
must be allowed for the dispatcher as well.

  leasehold webhooks endpoints create https://shop.example/hooks --types 'order.*' --tenant acme
  leasehold webhooks endpoints create http://127.0.0.1:3000/hooks --webhook-allow 127.0.0.0/8`
