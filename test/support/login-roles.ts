import { afterAll, beforeAll, inject } from 'vitest'
import { quoteIdentifier } from '../../src/postgres/identifiers.ts'
import type { RoleKind } from '../../src/postgres/permissions.ts'
import { withAdmin, withDatabase } from './admin.ts'
import type { TestDatabase } from './database.ts'

export interface LoginRole {
  readonly name: string
  readonly url: string
}

/** Login roles of this file alone, each a member of one of Leasehold's roles, and `stranger`, who is a member of none. */
export function useLoginRoles(database: TestDatabase): Readonly<Record<RoleKind | 'stranger', LoginRole>> {
  const login = (kind: string): LoginRole => {
    // Roles belong to the whole server, so the name of the database makes them unique.
    const name = `${database.name.slice(0, 50)}_${kind}`
    const url = new URL(database.url)
    url.username = name
    url.password = 'only-for-this-test'
    return { name, url: url.href }
  }
  const logins = {
    producer: login('producer'),
    worker: login('worker'),
    dispatcher: login('dispatcher'),
    reader: login('reader'),
    operator: login('operator'),
    tenant: login('tenant'),
    api: login('api'),
    stranger: login('stranger'),
  }
  const clusterUrl = inject('clusterUrl')
  beforeAll(async () => {
    await withAdmin(withDatabase(clusterUrl, database.name), async (admin) => {
      for (const [kind, { name }] of Object.entries(logins)) {
        await admin.query(`create role ${quoteIdentifier(name)} login password 'only-for-this-test'`)
        if (kind !== 'stranger') await admin.query(`grant leasehold_${kind} to ${quoteIdentifier(name)}`)
      }
      // What a careful administrator does: only what is granted to the roles is left.
      await admin.query('revoke execute on all functions in schema leasehold from public')
    })
  })
  afterAll(async () => {
    await withAdmin(withDatabase(clusterUrl, database.name), async (admin) => {
      for (const { name } of Object.values(logins)) {
        await admin.query(`drop owned by ${quoteIdentifier(name)}`)
        await admin.query(`drop role ${quoteIdentifier(name)}`)
      }
    })
  })
  return logins
}
