import type { Settings } from '../../config/load.ts'
import type { EndpointNetwork } from '../../webhooks/endpoints/endpoints.ts'
import { LOOPBACK } from '../../webhooks/network/policy.ts'

/**
 * Where webhooks may go: the same for those who create endpoints and those who deliver to them. With the embedded
 * server everything runs on one machine, and the receiver is on loopback.
 */
export function webhookNetwork({
  webhookAllow,
  webhookRefuse,
  webhookPorts,
  webhookProxy,
  databaseUrl,
}: Pick<
  Settings,
  'webhookAllow' | 'webhookRefuse' | 'webhookPorts' | 'webhookProxy' | 'databaseUrl'
>): EndpointNetwork {
  return {
    allow: [...webhookAllow, ...(databaseUrl === undefined ? LOOPBACK : [])],
    refuse: webhookRefuse,
    ...(webhookPorts === undefined ? {} : { ports: webhookPorts }),
    ...(webhookProxy === undefined ? {} : { proxied: true }),
  }
}
