import type { Run } from '../command.ts'
import { isSet } from '../flags.ts'
import { printable, printableJson, relative } from '../output.ts'
import type { EndpointDetails } from '../../webhooks/endpoints/endpoint.ts'
import { withEndpoints } from './endpoints-access.ts'
import { state, withoutValues } from './endpoints-text.ts'

/** `leasehold webhooks endpoints show <id>` */
export async function showEndpointCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [id = ''] = args
  const endpoint = await withEndpoints(run, async (managed) => managed.get(id))
  print(
    isSet(flags, 'json')
      ? `${printableJson(withoutValues(endpoint))}\n`
      : `${described(endpoint, new Date())}\n`,
  )
  return 0
}

function described(endpoint: EndpointDetails, now: Date): string {
  const at = (moment: Date | null): string | undefined =>
    moment === null ? undefined : `${moment.toISOString()} (${relative(moment, now)})`
  const { eventTypes, headers, ratePerSecond, ordered, publicKey } = endpoint
  const lines: readonly (readonly [string, string | undefined])[] = [
    ['Endpoint', endpoint.id],
    ['Url', endpoint.url],
    ['Tenant', endpoint.tenant === '' ? 'none' : endpoint.tenant],
    ['Description', endpoint.description === '' ? undefined : endpoint.description],
    ['State', state(endpoint, now)],
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
    ['Old secret', at(endpoint.previousSecretUntil)?.replace(/^/, 'signs along until ')],
    ['Created', at(endpoint.createdAt)],
    ['Changed', at(endpoint.updatedAt)],
  ]
  return lines
    .flatMap(([name, text]) => (text === undefined ? [] : [`${name.padEnd(13)} ${printable(text)}`]))
    .join('\n')
}
