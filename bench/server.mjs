// One real PostgreSQL for the whole run, in a directory of its own that is removed afterwards.
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { withClient } from './client.mjs'

/** Durable, as in production; and room enough that nobody waits for a checkpoint that another side has earned. */
const SETTINGS = {
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  shared_buffers: '512MB',
  max_wal_size: '8GB',
  checkpoint_timeout: '30min',
  max_connections: '100',
}

export async function startServer(dist, { statements }) {
  const { startEmbedded } = await import(new URL('embedded/index.js', dist).href)
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-bench-'))
  const remove = async () => rm(directory, { recursive: true, force: true })
  try {
    const settings = statements ? { ...SETTINGS, shared_preload_libraries: 'pg_stat_statements' } : SETTINGS
    const server = await startEmbedded({ directory, settings })
    const asAdmin = async (work) => withClient(server.url, work)
    const facts = await asAdmin(async (client) => (await client.query(FACTS)).rows[0])
    const pid = Number((await readFile(join(facts.data, 'postmaster.pid'), 'utf8')).split('\n')[0])
    const { data: _, ...settingsInForce } = facts
    return {
      pid,
      facts: settingsInForce,

      /** An empty database; its URL. */
      async createDatabase(name) {
        await asAdmin(async (client) => client.query(`create database ${name}`))
        const url = new URL(server.url)
        url.pathname = name
        return url.href
      },

      /** What is measured next starts from a table at rest: vacuumed, analysed and on disk. */
      async settle(url) {
        await withClient(url, async (client) => {
          await client.query('vacuum (analyze)')
          await client.query('checkpoint')
        })
      },

      async dropDatabase(name) {
        await asAdmin(async (client) => client.query(`drop database if exists ${name} with (force)`))
      },

      async stop() {
        await server.stop()
        await remove()
      },
    }
  } catch (error) {
    await remove()
    throw error
  }
}

const FACTS = `select current_setting('data_directory') as data, current_setting('server_version') as version,
  current_setting('fsync') as fsync, current_setting('synchronous_commit') as "synchronousCommit",
  current_setting('shared_buffers') as "sharedBuffers"`
