import { randomBytes } from 'node:crypto'

import type { TestProject } from 'vitest/node'

import { startEmbedded } from '../../src/embedded/index.ts'
import { openDatabase } from '../../src/postgres/database.ts'
import { quoteIdentifier } from '../../src/postgres/identifiers.ts'
import { migrate } from '../../src/postgres/migrate.ts'
import { FAST_SETTINGS } from '../../src/testing/test-server.ts'
import { withAdmin, withDatabase } from './admin.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'
import { freePort } from './free-port.ts'
import { useMemory } from './memory-directory.ts'
import { startWatchdog } from './watchdog.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** The URL of a superuser on the server that all test files share. */
    readonly clusterUrl: string
    /** The migrated database that `useDatabase` copies. */
    readonly templateDatabase: string
    /** The prefix of all databases of this run. They are dropped at its end. */
    readonly databasePrefix: string
  }
}

const SETTINGS = {
  ...FAST_SETTINGS,
  shared_buffers: '512MB',
  // Its files may be in memory.
  max_wal_size: '1GB',
}

interface Cluster {
  readonly url: string
  /** Started for this run. */
  readonly isOwn: boolean
  stop(): Promise<void>
}

/** The global setup: one server for the whole run. LEASEHOLD_TEST_DATABASE_URL names an existing one to use instead. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const removeFiles = await useMemory()
  let cluster: Cluster
  try {
    cluster = await openCluster()
  } catch (error) {
    await removeFiles()
    throw error
  }
  // An existing server may be used by several runs at the same time.
  const prefix = `test_${randomBytes(3).toString('hex')}_`
  const template = `${prefix}leasehold_template`
  try {
    await createTemplate(cluster.url, template)
  } catch (error) {
    await close(cluster, prefix)
    await removeFiles()
    throw error
  }
  project.provide('clusterUrl', cluster.url)
  project.provide('templateDatabase', template)
  project.provide('databasePrefix', prefix)
  return async () => {
    await close(cluster, prefix)
    await removeFiles()
  }
}

async function close(cluster: Cluster, prefix: string): Promise<void> {
  try {
    // The files of a server of our own are deleted anyway.
    if (!cluster.isOwn) await dropDatabases(cluster.url, prefix)
  } finally {
    await cluster.stop()
  }
}

async function openCluster(): Promise<Cluster> {
  const given = process.env['LEASEHOLD_TEST_DATABASE_URL']
  if (given !== undefined && given !== '') return { url: given, isOwn: false, stop: async () => {} }
  const directory = await temporaryDirectory()
  const watchdog = startWatchdog(directory)
  try {
    // On TCP as well, because the proxies, the pooler and postgres.js of the tests do not use Unix sockets.
    const port = String(await freePort())
    const settings = { ...SETTINGS, listen_addresses: '127.0.0.1', port }
    const server = await startEmbedded({ directory, settings })
    const { password } = new URL(server.url)
    return {
      url: `postgresql://postgres:${password}@127.0.0.1:${port}/leasehold`,
      isOwn: true,
      async stop() {
        await server.stop()
        await removeDirectory(directory)
        watchdog.release()
      },
    }
  } catch (error) {
    await removeDirectory(directory)
    watchdog.release()
    throw error
  }
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
    // A database with connections cannot be used as a template.
    await admin.query(`alter database ${quoteIdentifier(name)} with is_template true allow_connections false`)
  })
}

/** Drops the template, and the databases of test files that failed before they could drop them. */
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
