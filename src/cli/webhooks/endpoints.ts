/** The commands of `leasehold webhooks endpoints`: what they read from flags, and what they print. */
import type { Command } from 'commander'
import type {
  By,
  Endpoint,
  EndpointChanges,
  EndpointDetails,
  ShownSecret,
} from '../../webhooks/endpoints/endpoint.ts'
import type { NeededRole } from '../../postgres/index.ts'
import { endpoints, type Endpoints } from '../../webhooks/endpoints/endpoints.ts'
import { sendTest, TEST_EVENT_TYPE } from '../../webhooks/send/test-event.ts'
import { type Run, UsageError } from '../command.ts'
import { secretKeyOf, withWebhooks } from '../database.ts'
import {
  collect,
  headersOf,
  invalidArgument,
  isSet,
  limitFlag,
  principalOf,
  textFlag,
  textsFlag,
} from '../flags.ts'
import {
  counted,
  type Fact,
  factLines,
  momentFact,
  printable,
  printableJson,
  printList,
  relative,
} from '../output.ts'
import { webhookNetwork } from './network.ts'

async function withEndpoints<Result>(
  run: Run,
  act: (managed: Endpoints) => Promise<Result>,
  neededRole: NeededRole = 'reader',
): Promise<Result> {
  const { settings } = run.loaded
  return withWebhooks(
    run,
    async (db, schema) => {
      // An empty key is none: the settings have read the environment already.
      const secretKey = (await secretKeyOf(settings)) ?? ''
      const maxPerTenant = settings.webhookEndpointsPerTenant
      return act(endpoints(db, { schema, secretKey, network: webhookNetwork(settings), maxPerTenant }))
    },
    neededRole,
  )
}

/** `by`: who changes an endpoint, and why if a reason was given. */
async function changeEndpoints<Result>(
  run: Run,
  change: (managed: Endpoints, by: By) => Promise<Result>,
): Promise<Result> {
  const by = byOf(run)
  return withEndpoints(run, async (managed) => change(managed, by), 'operator')
}

function byOf(run: Run): By {
  return { principal: principalOf(run), reason: textFlag(run.flags, 'reason') }
}

/** `leasehold webhooks endpoints list` */
export async function listEndpointsCommand(run: Run): Promise<number> {
  const { flags } = run
  const filter = {
    tenant: textFlag(flags, 'tenant'),
    enabled: enabledFlag(flags),
    eventType: textFlag(flags, 'type'),
  }
  const after = textFlag(flags, 'after')
  const limit = limitFlag(flags)
  const { endpoints, next } = await withEndpoints(run, async (managed) =>
    managed.list({ ...filter, limit, after }),
  )
  const now = new Date()
  return printList(run, {
    what: 'endpoints',
    items: endpoints,
    next,
    nextFlag: '--after',
    chosenBy: { ...filter, after },
    none: 'There are no endpoints yet: `leasehold webhooks endpoints create` makes one.',
    headings: ['ID', 'TENANT', 'TYPES', 'URL', 'STATE'],
    line: (endpoint) => line(endpoint, now),
  })
}

function line(endpoint: Endpoint, now: Date): string[] {
  const { id, tenant, eventTypes, url } = endpoint
  return [
    id,
    tenant === '' ? '-' : tenant,
    eventTypes.length === 0 ? 'all' : eventTypes.join(', '),
    url,
    stateOf(endpoint, now),
  ]
}

function enabledFlag(flags: Run['flags']): boolean | undefined {
  const value = textFlag(flags, 'state')
  if (value === undefined) return undefined
  if (value === 'enabled' || value === 'disabled') return value === 'enabled'
  throw invalidArgument('state', value, 'give enabled or disabled.')
}

/** `leasehold webhooks endpoints show <id>` */
export async function showEndpointCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [id = ''] = args
  const endpoint = await withEndpoints(run, async (managed) => managed.get(id))
  print(isSet(flags, 'json') ? `${printableJson(endpoint)}\n` : `${described(endpoint, new Date())}\n`)
  return 0
}

function described(endpoint: EndpointDetails, now: Date): string {
  const at = (moment: Date | null): string | undefined => momentFact(moment, now)
  const { eventTypes, headers, ratePerSecond, ordered, publicKey } = endpoint
  const facts: readonly Fact[] = [
    ['Endpoint', endpoint.id],
    ['Url', endpoint.url],
    ['Tenant', endpoint.tenant === '' ? 'none' : endpoint.tenant],
    ['Description', endpoint.description === '' ? undefined : endpoint.description],
    ['State', stateOf(endpoint, now)],
    ['Disabled', at(endpoint.disabledAt)],
    ['Next probe', at(endpoint.openUntil)],
    ['Types', eventTypes.length === 0 ? 'all' : eventTypes.join(', ')],
    ['Order', ordered ? 'one at a time for each ordering key' : 'none'],
    ['Rate', ratePerSecond === null ? 'no limit' : `${ratePerSecond} per second`],
    ['Concurrency', String(endpoint.concurrency)],
    ['Timeout', `${endpoint.timeoutMs} ms`],
    ['Headers', Object.keys(headers).length === 0 ? undefined : Object.keys(headers).join(', ')],
    ['Signing', endpoint.signing],
    ['Public key', publicKey ?? undefined],
    ['Old secret', at(endpoint.previousSecretUntil)?.replace(/^/, 'also signs until ')],
    ['Created', at(endpoint.createdAt)],
    ['Changed', at(endpoint.updatedAt)],
  ]
  return factLines(facts)
}

/** Whether the endpoint gets events, and if not, why. */
function stateOf({ enabled, disabledReason, failingSince, failures }: Endpoint, now: Date): string {
  if (!enabled) return disabledReason === null ? 'disabled' : `disabled: ${disabledReason}`
  if (failingSince === null) return 'enabled'
  return `failing since ${relative(failingSince, now)}, ${failures} in a row`
}

/** `leasehold webhooks endpoints create <url>` */
export async function createEndpointCommand(run: Run): Promise<number> {
  const { flags, args } = run
  const [url = ''] = args
  const given = {
    ...readFields(flags),
    url,
    tenant: textFlag(flags, 'tenant'),
    signing: signingFlag(flags),
    secret: await givenSecret(run),
  }
  const created = await changeEndpoints(run, async (managed, by) => managed.create(given, by))
  printEndpoint(
    run,
    created,
    `Created: endpoint ${created.endpoint.id} for ${printable(created.endpoint.url)}.`,
  )
  return 0
}

/** `leasehold webhooks endpoints update <id>` */
export async function updateEndpointCommand(run: Run): Promise<number> {
  const { flags, args } = run
  const [id = ''] = args
  const changes = { ...readFields(flags), url: textFlag(flags, 'url') }
  const endpoint = await changeEndpoints(run, async (managed, by) => managed.update(id, changes, by))
  const { headersRemoved } = endpoint
  const removed =
    headersRemoved.length === 0
      ? ''
      : ` Its headers were removed (${headersRemoved.map(printable).join(', ')}), because the URL leads to another server; give those of the new one with --header.`
  printEndpoint(run, { endpoint }, `Changed: endpoint ${endpoint.id}.${removed}`)
  return 0
}

/** `leasehold webhooks endpoints rotate <id>` */
export async function rotateSecretCommand(run: Run): Promise<number> {
  const { flags, args } = run
  const [id = ''] = args
  const options = { keepOldForMs: windowFlag(flags, 'keepOldFor'), secret: await givenSecret(run) }
  const rotated = await changeEndpoints(run, async (managed, by) => managed.rotateSecret(id, by, options))
  const until = rotated.endpoint.previousSecretUntil
  const old =
    until === null
      ? 'The old secret is no longer used.'
      : `Deliveries are signed with the old secret too until ${until.toISOString()}.`
  printEndpoint(run, rotated, `Rotated: endpoint ${rotated.endpoint.id} has a new secret. ${old}`)
  return 0
}

/** `leasehold webhooks endpoints encrypt` */
export async function encryptSecretsCommand(run: Run): Promise<number> {
  const { flags, print } = run
  const changed = await changeEndpoints(run, async (managed, by) => managed.reencryptSecrets(by))
  print(
    isSet(flags, 'json')
      ? `${printableJson({ changed })}\n`
      : `The secrets and headers of ${counted(changed, 'endpoint')} were encrypted with the newest key. All are under it now; older keys can be removed.\n`,
  )
  return 0
}

/** `leasehold webhooks endpoints enable <id>` */
export async function enableEndpointCommand(run: Run): Promise<number> {
  const [id = ''] = run.args
  const endpoint = await changeEndpoints(run, async (managed, by) => managed.enable(id, by))
  printEndpoint(run, { endpoint }, `Enabled: endpoint ${endpoint.id} gets events; its circuit is closed.`)
  return 0
}

/** `leasehold webhooks endpoints disable <id>` */
export async function disableEndpointCommand(run: Run): Promise<number> {
  const [id = ''] = run.args
  const endpoint = await changeEndpoints(run, async (managed, by) => managed.disable(id, by))
  printEndpoint(run, { endpoint }, `Disabled: endpoint ${endpoint.id} gets no more events.`)
  return 0
}

/** `leasehold webhooks endpoints test <id>` */
export async function testEndpointCommand(run: Run): Promise<number> {
  const { flags, args, print } = run
  const [id = ''] = args
  const sent = await withWebhooks(
    run,
    async (db, schema) => sendTest(db, id, byOf(run), { schema }),
    'operator',
  )
  print(
    isSet(flags, 'json')
      ? `${printableJson(sent)}\n`
      : `Sent: delivery ${sent.id}, of the type ${TEST_EVENT_TYPE}. \`leasehold webhooks show ${sent.id}\` shows what becomes of it.\n`,
  )
  return 0
}

/** `leasehold webhooks endpoints delete <id>`; the exit code is 1 when the person at the terminal says no. */
export async function deleteEndpointCommand(run: Run): Promise<number> {
  const { flags, args, terminal, print } = run
  const [id = ''] = args
  const { ask } = terminal
  const asks = !isSet(flags, 'yes')
  if (asks && ask === undefined) {
    throw new UsageError('--yes is missing: a deletion cannot be undone, and nobody is at this terminal.')
  }
  return changeEndpoints(run, async (managed, by) => {
    const { url } = await managed.get(id)
    if (asks && ask !== undefined) {
      const answer = await ask(
        `Delete the endpoint for ${printable(url)}, and give up its deliveries? [y/N] `,
      )
      if (!/^y(es)?$/i.test(answer.trim())) {
        terminal.err('Nothing was changed.\n')
        return 1
      }
    }
    await managed.delete(id, by)
    print(
      isSet(flags, 'json')
        ? `${printableJson({ deleted: id })}\n`
        : `Deleted: endpoint ${id}. Its pending deliveries are given up.\n`,
    )
    return 0
  })
}

function printEndpoint(
  { flags, print }: Run,
  { endpoint, ...secret }: { readonly endpoint: Endpoint } & Partial<ShownSecret>,
  text: string,
): void {
  if (isSet(flags, 'json')) print(`${printableJson({ endpoint, ...secret })}\n`)
  else print(`${[text, ...secretLines(secret)].join('\n')}\n`)
}

/** A secret is printed here, for the person who asked for it, and nowhere else. */
function secretLines({ secret, publicKey }: Partial<ShownSecret>): readonly string[] {
  if (secret === undefined) return []
  if (typeof publicKey === 'string') {
    return [
      '',
      `Public key  ${publicKey}`,
      `Secret      ${secret}`,
      '',
      'Give the public key to the receiver. The secret is shown only once; receivers do not need it.',
    ]
  }
  return ['', `Secret  ${secret}`, '', 'It is shown only once. Give it to the receiver now.']
}

function signingFlag(flags: Run['flags']): 'v1' | 'v1a' | undefined {
  const value = textFlag(flags, 'signing')
  if (value === undefined || value === 'v1' || value === 'v1a') return value
  throw invalidArgument('signing', value, 'give v1 (a shared secret) or v1a (ed25519).')
}

/** From stdin, because everybody on the machine can read a command line. */
async function givenSecret({ flags, terminal }: Run): Promise<string | undefined> {
  return isSet(flags, 'secretStdin') ? (await terminal.input()).trim() : undefined
}

/** The flags that create and update have in common. */
export function addEndpointFlags(command: Command): Command {
  return command
    .option('--description <text>', 'description for people')
    .option(
      '--types <list>',
      'event types to receive, separated by commas: order.paid, user.* (default: all)',
    )
    .option('--header <name=value>', 'header to send with every delivery; can be repeated', collect)
    .option('--rate <n>', 'at most this many deliveries per second (default: no limit)')
    .option('--concurrency <n>', 'at most this many deliveries at once (default: 10)')
    .option('--timeout-ms <n>', 'how long one attempt may take (default: 15000)')
    .option('--ordered', 'deliver events of an ordering key one at a time, in order')
}

/** The flags of update that remove something. */
export function addRemovingFlags(command: Command): Command {
  return command
    .option(
      '--url <url>',
      'URL to which deliveries are POSTed; one with another scheme, host or port removes the headers',
    )
    .option('--no-types', 'receive events of all types')
    .option('--no-header', 'send no additional headers')
    .option('--no-rate', 'do not limit the deliveries per second')
    .option('--no-ordered', 'deliver events of an ordering key in any order')
}

/** What the flags say. The endpoints check it. */
function readFields(flags: Run['flags']): EndpointChanges {
  const { ordered } = flags
  return {
    description: textFlag(flags, 'description'),
    eventTypes: flags['types'] === false ? [] : listOf(textFlag(flags, 'types')),
    headers: headersFlag(flags),
    ratePerSecond: flags['rate'] === false ? null : numberFlag(flags, 'rate'),
    concurrency: numberFlag(flags, 'concurrency'),
    timeoutMs: numberFlag(flags, 'timeoutMs'),
    ordered: typeof ordered === 'boolean' ? ordered : undefined,
  }
}

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const

/** `24h`, or 0 for not at all. */
function windowFlag(flags: Run['flags'], name: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  if (value === '0') return 0
  const [, count, unit] = /^(\d{1,6})([smhd])$/.exec(value) ?? []
  if (count === undefined) throw invalidArgument(name, value, 'give a duration such as 30m, 24h or 7d, or 0.')
  // The pattern lets no other unit through.
  return Number(count) * UNITS[unit as keyof typeof UNITS]
}

function headersFlag(flags: Run['flags']): Record<string, string> | undefined {
  if (flags['header'] === false) return {}
  const given = textsFlag(flags, 'header')
  return given.length === 0 ? undefined : headersOf(given)
}

function listOf(text: string | undefined): readonly string[] | undefined {
  return text?.split(',').map((part) => part.trim())
}

function numberFlag(flags: Run['flags'], name: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  if (/^\d{1,12}(\.\d{1,6})?$/.test(value)) return Number(value)
  throw invalidArgument(name, value, 'give a number.')
}
