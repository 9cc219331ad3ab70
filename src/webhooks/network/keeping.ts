/** Which requests leave their connection open for the next one. Thousands of endpoints must not mean as many sockets. */
import { type Connector } from './connector.ts'
import { type PostLimits } from './limits.ts'

/**
 * Runs a request and tells it whether its connection ends with it. What is on its way counts as open: a burst would
 * otherwise keep a connection for each of its requests.
 */
export function keeping(
  connector: Pick<Connector, 'opened'>,
  { keptPerOrigin, keptConnections }: Pick<PostLimits, 'keptPerOrigin' | 'keptConnections'>,
): <Result>(origin: string, send: (reset: boolean) => Promise<Result>) => Promise<Result> {
  const underway = new Map<string, number>()
  let total = 0

  function count(origin: string, change: 1 | -1): number {
    const left = (underway.get(origin) ?? 0) + change
    if (left > 0) underway.set(origin, left)
    else underway.delete(origin)
    total += change
    return left
  }

  return async (origin, send) => {
    const here = Math.max(count(origin, 1), connector.opened(origin))
    const everywhere = Math.max(total, connector.opened())
    try {
      return await send(here > keptPerOrigin || everywhere > keptConnections)
    } finally {
      count(origin, -1)
    }
  }
}
