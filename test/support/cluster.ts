import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { fileURLToPath } from 'node:url'

import type { TestProject } from 'vitest/node'

import { startEmbedded } from '../../src/embedded/index.ts'
import { openDatabase } from '../../src/postgres/database.ts'
import { quoteIdentifier } from '../../src/postgres/identifiers.ts'
import { migrate } from '../../src/postgres/migrate.ts'
import { withAdmin, withDatabase } from './admin.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** A superuser's URL of the server all test files share. */
    readonly clusterUrl: string
    /** The migrated database that `useDatabase` copies. */
    readonly templateDatabase: string
    /** What the names of all databases of this run begin with; they are dropped at its end. */
    readonly databasePrefix: string
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
  // A server that was given may serve several runs at once.
  const prefix = `test_${randomBytes(3).toString('hex')}_`
  const template = `${prefix}leasehold_template`
  try {
    await createTemplate(cluster.url, template)
  } catch (error) {
    await close(cluster, prefix)
    throw error
  }
  project.provide('clusterUrl', cluster.url)
  project.provide('templateDatabase', template)
  project.provide('databasePrefix', prefix)
  return () => close(cluster, prefix)
}

async function close(cluster: Cluster, prefix: string): Promise<void> {
  try {
    await dropDatabases(cluster.url, prefix)
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
  await withAdmin(url, async (admin) => {
    await admin.query(`create database ${quoteIdentifier(name)}`)
    const database = openDatabase({ url: withDatabase(url, name) })
    try {
      await migrate(database)
    } finally {
      await database.close()
    }
    // A connection to the template would stop every copy of it.
    await admin.query(`alter database ${quoteIdentifier(name)} with is_template true allow_connections false`)
  })
}

/** The template, and what a file could not drop because it failed. */
async function dropDatabases(url: string, prefix: string): Promise<void> {
  await withAdmin(url, async (admin) => {
    const { rows } = await admin.query<{ datname: string }>(
      'select datname from pg_database where starts_with(datname, $1)',
      [prefix],
    )
    for (const { datname } of rows) {
      await admin.query(`alter database ${quoteIdentifier(datname)} with is_template false`)
      await admin.query(`drop database ${quoteIdentifier(datname)} with (force)`)
    }
  })
}
