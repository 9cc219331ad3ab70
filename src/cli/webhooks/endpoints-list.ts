import type { Run } from '../command.ts'
import { invalidArgument, limitFlag, textFlag } from '../flags.ts'
import { printList } from '../output.ts'
import type { Endpoint } from '../../webhooks/endpoints/endpoint.ts'
import { withEndpoints } from './endpoints-access.ts'
import { state, withoutValues } from './endpoints-text.ts'

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
    json: withoutValues,
  })
}

function line(endpoint: Endpoint, now: Date): string[] {
  const { id, tenant, eventTypes, url } = endpoint
  return [
    id,
    tenant === '' ? '-' : tenant,
    eventTypes.length === 0 ? 'all' : eventTypes.join(', '),
    url,
    state(endpoint, now),
  ]
}

function enabledFlag(flags: Run['flags']): boolean | undefined {
  const value = textFlag(flags, 'state')
  if (value === undefined) return undefined
  if (value === 'enabled' || value === 'disabled') return value === 'enabled'
  throw invalidArgument('state', value, 'give enabled or disabled.')
}
