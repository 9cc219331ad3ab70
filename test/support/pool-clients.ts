import { Pool, type PoolClient } from 'pg'
import { vi } from 'vitest'

/** Every client that any pool hands out from now on, until the mocks are restored. */
export function watchPoolClients(): ReadonlySet<PoolClient> {
  const clients = new Set<PoolClient>()
  // oxlint-disable-next-line typescript/unbound-method -- called with its pool below
  const { emit } = Pool.prototype
  vi.spyOn(Pool.prototype, 'emit').mockImplementation(function (this: Pool, name, ...rest) {
    // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- what pg-pool emits it with
    if (name === 'acquire') clients.add(rest[0] as PoolClient)
    return emit.call(this, name, ...rest)
  })
  return clients
}
