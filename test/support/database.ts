import { randomBytes } from 'node:crypto'
import { basename } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

import type { Client } from 'pg'
import { afterAll, beforeAll, expect, inject } from 'vitest'

import { quoteIdentifier } from '../../src/postgres/identifiers.ts'
import { withAdmin, withDatabase } from './admin.ts'

const WIND_DOWN_MS = 2_000
const WIND_DOWN_POLL_MS = 20

export interface TestDatabase {
  readonly url: string
  readonly name: string
}

/**
 * A database of this file's own, copied from the migrated template. After the file it is dropped, and
 * the file fails when a connection to it is still open.
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

/** At most 63 bytes, and a person who looks at pg_stat_activity sees which file it is. */
function databaseName(prefix: string): string {
  const file = basename(expect.getState().testPath ?? 'test').replace(/\.test\.ts$/, '')
  const readable = file.replaceAll(/[^a-z0-9]+/gi, '_').slice(0, 36)
  return `${prefix}${readable}_${randomBytes(4).toString('hex')}`.toLowerCase()
}

/** A closed connection's backend takes a moment to go: nothing tells us when, so this looks again. */
async function openConnections(admin: Client, name: string): Promise<string[]> {
  const deadline = performance.now() + WIND_DOWN_MS
  for (;;) {
    const { rows } = await admin.query<{ connection: string }>(
      `select format('%s (%s): %s', coalesce(nullif(application_name, ''), '(no name)'), state, query) as connection
       from pg_stat_activity where datname = $1 and backend_type = 'client backend'`,
      [name],
    )
    const connections = rows.map((row) => row.connection)
    if (connections.length === 0 || performance.now() > deadline) return connections
    await delay(WIND_DOWN_POLL_MS)
  }
}
