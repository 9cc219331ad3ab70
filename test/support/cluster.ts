import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

import { Client } from 'pg'
import type { TestProject } from 'vitest/node'

import { startEmbedded } from '../../src/embedded/index.ts'
import { openDatabase } from '../../src/postgres/database.ts'
import { quoteIdentifier, quoteLiteral } from '../../src/postgres/identifiers.ts'
import { migrate } from '../../src/postgres/migrate.ts'
import { withDatabase } from './database-url.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** A superuser's URL of the server all test files share. */
    readonly clusterUrl: string
    /** The migrated database that `useDatabase` copies. */
    readonly templateDatabase: string
  }
}

/** Durability costs time, and no test outlives the server. */
const FAST_AND_LOOSE = {
  fsync: 'off',
  synchronous_commit: 'off',
  full_page_writes: 'off',
  max_connections: '300',
  shared_buffers: '512MB',
  max_wal_size: '4GB',
}

interface Cluster {
  readonly url: string
  stop(): Promise<void>
}

/** One server for the whole run; LEASEHOLD_TEST_DATABASE_URL names another to use instead. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const cluster = await openCluster()
  const template = `leasehold_template_${process.pid}`
  try {
    await createTemplate(cluster.url, template)
  } catch (error) {
    await close(cluster, template)
    throw error
  }
  project.provide('clusterUrl', cluster.url)
  project.provide('templateDatabase', template)
  return () => close(cluster, template)
}

async function close(cluster: Cluster, template: string): Promise<void> {
  try {
    await dropTemplate(cluster.url, template)
  } finally {
    await cluster.stop()
  }
}

async function openCluster(): Promise<Cluster> {
  const given = process.env['LEASEHOLD_TEST_DATABASE_URL']
  if (given !== undefined && given !== '') return { url: given, stop: async () => {} }
  const directory = await temporaryDirectory()
  const watch = watchOver(directory)
  try {
    const server = await startEmbedded({ directory, settings: FAST_AND_LOOSE })
    return {
      url: server.url,
      async stop() {
        await server.stop()
        await removeDirectory(directory)
        watch.stdin.destroy()
      },
    }
  } catch (error) {
    await removeDirectory(directory)
    watch.stdin.destroy()
    throw error
  }
}

/** A killed run cannot stop its server; a process whose stdin it held open notices and does. */
function watchOver(directory: string) {
  const script = fileURLToPath(new URL('cluster-watch.mjs', import.meta.url))
  const watch = spawn(process.execPath, [script, directory], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  watch.unref()
  return watch
}

async function createTemplate(url: string, name: string): Promise<void> {
  await administer(url, `create database ${quoteIdentifier(name)}`)
  const database = openDatabase({ url: withDatabase(url, name) })
  try {
    await migrate(database)
  } finally {
    await database.close()
  }
  // A connection to the template would stop every copy of it.
  await administer(
    url,
    `alter database ${quoteIdentifier(name)} with is_template true allow_connections false`,
  )
}

async function dropTemplate(url: string, name: string): Promise<void> {
  // Raises no error when there is none: creating it may be what failed.
  await administer(url, `update pg_database set datistemplate = false where datname = ${quoteLiteral(name)}`)
  await administer(url, `drop database if exists ${quoteIdentifier(name)} with (force)`)
}

async function administer(url: string, statement: string): Promise<void> {
  const client = new Client({ connectionString: url, application_name: 'test cluster' })
  await client.connect()
  try {
    await client.query(statement)
  } finally {
    await client.end()
  }
}
