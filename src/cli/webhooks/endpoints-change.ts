import { type Run, UsageError } from '../command.ts'
import { invalidArgument, isSet, textFlag } from '../flags.ts'
import { counted, printable, printableJson } from '../output.ts'
import type { Endpoint, ShownSecret } from '../../webhooks/endpoints/endpoint.ts'
import { by, withEndpoints } from './endpoints-access.ts'
import { readFields, windowFlag } from './endpoints-flags.ts'
import { withoutValues } from './endpoints-text.ts'

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
  const created = await withEndpoints(run, async (managed) => managed.create(given, by(run)))
  tell(run, created, `Created: endpoint ${created.endpoint.id} for ${printable(created.endpoint.url)}.`)
  return 0
}

/** `leasehold webhooks endpoints update <id>` */
export async function updateEndpointCommand(run: Run): Promise<number> {
  const { flags, args } = run
  const [id = ''] = args
  const changes = { ...readFields(flags), url: textFlag(flags, 'url') }
  const endpoint = await withEndpoints(run, async (managed) => managed.update(id, changes, by(run)))
  tell(run, { endpoint }, `Changed: endpoint ${endpoint.id}.`)
  return 0
}

/** `leasehold webhooks endpoints rotate <id>` */
export async function rotateSecretCommand(run: Run): Promise<number> {
  const { flags, args } = run
  const [id = ''] = args
  const options = { keepOldForMs: windowFlag(flags, 'keepOldFor'), secret: await givenSecret(run) }
  const rotated = await withEndpoints(run, async (managed) => managed.rotateSecret(id, by(run), options))
  const until = rotated.endpoint.previousSecretUntil
  const old =
    until === null
      ? 'The old secret signs nothing any more.'
      : `The old secret signs along until ${until.toISOString()}.`
  tell(run, rotated, `Rotated: endpoint ${rotated.endpoint.id} has a new secret. ${old}`)
  return 0
}

/** `leasehold webhooks endpoints encrypt` */
export async function encryptSecretsCommand(run: Run): Promise<number> {
  const { flags, print } = run
  const changed = await withEndpoints(run, async (managed) => managed.reencryptSecrets(by(run)))
  print(
    isSet(flags, 'json')
      ? `${printableJson({ changed })}\n`
      : `${counted(changed, 'secret')} encrypted anew. All are under the newest key now; older ones can go.\n`,
  )
  return 0
}

/** `leasehold webhooks endpoints enable <id>` */
export async function enableEndpointCommand(run: Run): Promise<number> {
  const [id = ''] = run.args
  const endpoint = await withEndpoints(run, async (managed) => managed.enable(id, by(run)))
  tell(run, { endpoint }, `Enabled: endpoint ${endpoint.id} gets events again; its circuit is closed.`)
  return 0
}

/** `leasehold webhooks endpoints disable <id>` */
export async function disableEndpointCommand(run: Run): Promise<number> {
  const [id = ''] = run.args
  const endpoint = await withEndpoints(run, async (managed) => managed.disable(id, by(run)))
  tell(run, { endpoint }, `Disabled: endpoint ${endpoint.id} gets no more events.`)
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
  return withEndpoints(run, async (managed) => {
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
    await managed.delete(id, by(run))
    print(
      isSet(flags, 'json')
        ? `${printableJson({ deleted: id })}\n`
        : `Deleted: endpoint ${id}. What was still to be delivered there is given up.\n`,
    )
    return 0
  })
}

function tell(
  { flags, print }: Run,
  { endpoint, ...secret }: { readonly endpoint: Endpoint } & Partial<ShownSecret>,
  text: string,
): void {
  if (isSet(flags, 'json')) print(`${printableJson({ endpoint: withoutValues(endpoint), ...secret })}\n`)
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
      'Give the public key to the receiver. The secret is shown this once; nobody needs it to verify.',
    ]
  }
  return ['', `Secret  ${secret}`, '', 'It is shown this once: give it to the receiver now.']
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
