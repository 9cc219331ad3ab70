import { relative } from '../output.ts'
import type { Endpoint } from '../../webhooks/endpoints/endpoint.ts'

/** The one thing that matters about it: whether events arrive there. */
export function state({ enabled, disabledReason, failingSince, failures }: Endpoint, now: Date): string {
  if (!enabled) return disabledReason === null ? 'disabled' : `disabled: ${disabledReason}`
  if (failingSince === null) return 'enabled'
  return `failing since ${relative(failingSince, now)}, ${failures} in a row`
}

/** Headers may be credentials, and a terminal has spectators. */
export function withoutValues<Shown extends Endpoint>(endpoint: Shown): Shown {
  const headers = Object.fromEntries(Object.keys(endpoint.headers).map((name) => [name, '***']))
  return { ...endpoint, headers }
}
