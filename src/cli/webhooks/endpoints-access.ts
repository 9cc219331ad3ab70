import type { Run } from '../command.ts'
import { secretKeyOf, withWebhooks } from '../database.ts'
import { principalOf, textFlag } from '../flags.ts'
import type { By } from '../../webhooks/endpoints/endpoint.ts'
import { endpoints, type Endpoints } from '../../webhooks/endpoints/endpoints.ts'
import { webhookNetwork } from './network.ts'

/** Does something with the endpoints. */
export async function withEndpoints<Result>(
  run: Run,
  act: (managed: Endpoints) => Promise<Result>,
): Promise<Result> {
  const { settings } = run.loaded
  return withWebhooks(run, async (db, schema) => {
    // An empty key is none: the environment has been looked at already.
    const secretKey = (await secretKeyOf(settings)) ?? ''
    return act(endpoints(db, { schema, secretKey, network: webhookNetwork(settings) }))
  })
}

/** Who, and why if that is said. */
export function by(run: Run): By {
  return { principal: principalOf(run), reason: textFlag(run.flags, 'reason') }
}
