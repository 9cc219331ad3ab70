import type { WorkDeclaration } from '../worker/index.ts'
import type { Settings } from '../config/index.ts'
import { dispatcher, WEBHOOKS } from '../webhooks/dispatcher/dispatcher.ts'
import { secretKeyOf } from './secret-key.ts'
import { webhookNetwork } from './webhooks/network.ts'

/**
 * Everything that this process could work on: what the config file declares, and the dispatcher of webhooks, which
 * needs no code of its own. It is there where there is a key for secrets; without one there can be no endpoints.
 */
export async function declaredWork(settings: Settings): Promise<readonly WorkDeclaration[]> {
  const { workers, schema, webhookProxy } = settings
  if (workers.some(({ name }) => name === WEBHOOKS)) return workers
  const secretKey = await secretKeyOf(settings)
  if (secretKey === undefined) return workers
  const { proxied: _, ...network } = webhookNetwork(settings)
  const declaration = dispatcher({
    schema,
    secretKey,
    network,
    ...(webhookProxy === undefined ? {} : { proxy: webhookProxy }),
  })
  // What a worker's rows are is its handler's business alone; here they are only passed on.
  return [...workers, declaration as unknown as WorkDeclaration]
}
