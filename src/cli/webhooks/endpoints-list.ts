import type { Endpoint } from '../../webhooks/endpoints/index.ts'
import { isSet, textFlag, wholeFlag, wrong } from '../flag-values.ts'
import type { Run } from '../run.ts'
import { columns, printableJson } from '../text-columns.ts'
import { withEndpoints } from './endpoints-access.ts'
import { state, withoutValues } from './endpoints-text.ts'

const LARGEST_PAGE = 1_000

/** `leasehold webhooks endpoints list` */
export async function listEndpointsCommand(run: Run): Promise<number> {
  const { print, flags, terminal } = run
  const filter = {
    tenant: textFlag(flags, 'tenant'),
    enabled: enabledFlag(flags),
    eventType: textFlag(flags, 'type'),
  }
  const after = textFlag(flags, 'after')
  const limit = wholeFlag(flags, 'limit', LARGEST_PAGE)
  const { endpoints, next } = await withEndpoints(run, async (managed) =>
    managed.list({ ...filter, limit, after }),
  )
  if (isSet(flags, 'json')) {
    print(`${printableJson({ endpoints: endpoints.map(withoutValues), next })}\n`)
    return 0
  }
  if (endpoints.length === 0) {
    const isFiltered = [...Object.values(filter), after].some((part) => part !== undefined)
    print(
      isFiltered
        ? 'No such endpoints.\n'
        : 'There are no endpoints yet: `leasehold webhooks endpoints create` makes one.\n',
    )
    return 0
  }
  const now = new Date()
  const lines = endpoints.map((endpoint) => line(endpoint, now))
  print(`${columns([['ID', 'TENANT', 'TYPES', 'URL', 'STATE'], ...lines], terminal.width)}\n`)
  if (next !== null) print(`There are more: --after ${next} shows the next ones.\n`)
  return 0
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
  throw wrong('state', value, 'give enabled or disabled.')
}
