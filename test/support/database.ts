import { randomBytes } from 'node:crypto'
import { basename } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Client, Pool, type PoolClient } from 'pg'
import { afterAll, beforeAll, expect, inject, onTestFinished, vi } from 'vitest'
import { quoteIdentifier } from '../../src/postgres/identifiers.ts'
import type { Queryable } from '../../src/postgres/queryable.ts'
import { withAdmin, withDatabase } from './admin.ts'

const DISCONNECT_TIMEOUT_MS = 2_000
const DISCONNECT_POLL_MS = 20

export interface TestDatabase {
  readonly url: string
  readonly name: string
}

/**
 * Creates a database for this test file from the migrated template. It is dropped after the file, which fails if a
 * connection to it is still open.
 */
export function useDatabase(): TestDatabase {
  const name = databaseName(inject('databasePrefix'))
  const clusterUrl = inject('clusterUrl')
  const template = inject('templateDatabase')

  beforeAll(async () => {
    await withAdmin(clusterUrl, async (admin) => {
      await admin.query(`create database ${quoteIdentifier(name)} template ${quoteIdentifier(template)}`)
    })
  })

  afterAll(async () => {
    await withAdmin(clusterUrl, async (admin) => {
      const leaked = await openConnections(admin, name)
      await admin.query(`drop database if exists ${quoteIdentifier(name)} with (force)`)
      expect(leaked, 'connections left open by this file').toEqual([])
    })
  })

  return { name, url: withDatabase(clusterUrl, name) }
}

/** At most 63 bytes. It contains the name of the file, to recognise it in pg_stat_activity. */
function databaseName(prefix: string): string {
  const file = basename(expect.getState().testPath ?? 'test').replace(/\.test\.ts$/, '')
  const readable = file.replaceAll(/[^a-z0-9]+/gi, '_').slice(0, 36)
  return `${prefix}${readable}_${randomBytes(4).toString('hex')}`.toLowerCase()
}

/** The backend of a closed connection takes a moment to end. PostgreSQL does not notify us, so this polls. */
async function openConnections(admin: Client, name: string): Promise<string[]> {
  const deadline = performance.now() + DISCONNECT_TIMEOUT_MS
  for (;;) {
    const { rows } = await admin.query<{ connection: string }>(
      `select format('%s (%s): %s', coalesce(nullif(application_name, ''), '(no name)'), state, query) as connection
       from pg_stat_activity where datname = $1 and backend_type = 'client backend'`,
      [name],
    )
    const connections = rows.map((row) => row.connection)
    if (connections.length === 0 || performance.now() > deadline) return connections
    await delay(DISCONNECT_POLL_MS)
  }
}

/** Opens a session that is closed at the end of the test. */
export async function openSession(url: string): Promise<Client> {
  const client = new Client({ connectionString: url })
  await client.connect()
  onTestFinished(async () => client.end())
  return client
}

/** Collects every client that any pool hands out from now on, until the mocks are restored. */
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

/** The process id of a session's backend. */
export async function backendOf(session: Client): Promise<number> {
  const { rows } = await session.query<{ pid: number }>('select pg_backend_pid() as pid')
  return rows[0]?.pid ?? 0
}

const BLOCKED_TIMEOUT_MS = 20_000
const BLOCKED_POLL_MS = 10

/** Resolves when this backend waits for a lock. PostgreSQL does not notify us, so this polls. */
export async function blocked(db: Queryable, pid: number): Promise<void> {
  const deadline = performance.now() + BLOCKED_TIMEOUT_MS
  for (;;) {
    const { rows } = await db.query<{ waits: boolean }>({
      text: `select cardinality(pg_blocking_pids($1)) > 0 as waits`,
      values: [pid],
    })
    if (rows[0]?.waits === true) return
    if (performance.now() > deadline) throw new Error(`backend ${pid} does not wait for a lock`)
    await delay(BLOCKED_POLL_MS)
  }
}
