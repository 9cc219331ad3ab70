/** Which requests leave their connection open for the next one. Thousands of endpoints must not mean as many sockets. */
import type { Connector } from './connector.ts'
import type { PostLimits } from './limits.ts'

/** Runs a request, from its start to the end of its answer, and tells it whether its connection ends with it. */
export function keeping(
  connector: Pick<Connector, 'opened'>,
  { keptPerOrigin, keptConnections }: Pick<PostLimits, 'keptPerOrigin' | 'keptConnections'>,
): <Result>(origin: string, send: (reset: boolean) => Promise<Result>) => Promise<Result> {
  const underway = new Map<string, number>()
  return async (origin, send) => {
    const busy = underway.get(origin) ?? 0
    // With none idle it opens one more.
    const more = connector.opened(origin) > busy ? 0 : 1
    const tooMany =
      connector.opened(origin) + more > keptPerOrigin || connector.opened() + more > keptConnections
    underway.set(origin, busy + 1)
    try {
      return await send(tooMany)
    } finally {
      const left = (underway.get(origin) ?? 1) - 1
      if (left > 0) underway.set(origin, left)
      else underway.delete(origin)
    }
  }
}
