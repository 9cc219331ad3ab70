import { usableHosts } from './database.ts'
import type { Hosts } from './hosts.ts'

/**
 * - `direct`: PostgreSQL itself, or something that passes the session on.
 * - `transaction`: a pooler that gave the same session to two connections.
 * - `pooled`: a pooler hides the session; in which mode cannot be told.
 */
export type Route = 'direct' | 'pooled' | 'transaction'

const TIMEOUT_MS = 5_000

/**
 * What a connection of this URL leads to. A pooler gives each connection a process id of its own, which is not that of the
 * backend. Two connections that are open at the same time and have one backend share it by transactions.
 */
export async function routeOf(url: string): Promise<Route> {
  const hosts = usableHosts(url)
  return withClient(hosts, async (first) => {
    if (first.backend === first.told) return 'direct'
    return withClient(hosts, async (second) => (second.backend === first.backend ? 'transaction' : 'pooled'))
  })
}

interface Backends {
  /** The process id that was told when the connection was opened, and that of the backend which answers. */
  readonly told: number
  readonly backend: number
}

async function withClient<Result>(
  hosts: Hosts,
  work: (backends: Backends) => Promise<Result>,
): Promise<Result> {
  const client = new hosts.Client({
    application_name: 'leasehold doctor',
    connectionTimeoutMillis: TIMEOUT_MS,
    query_timeout: TIMEOUT_MS,
  })
  // Whatever goes wrong rejects the promises below.
  client.on('error', () => undefined)
  try {
    await client.connect()
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
    // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- `pg` keeps the backend's key here; its types do not say so
    const { processID } = client as unknown as { readonly processID: number | null }
    return await work({ told: processID ?? 0, backend: rows[0]?.pid ?? 0 })
  } finally {
    await client.end().catch(() => undefined)
  }
}
