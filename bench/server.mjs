// One real PostgreSQL for the whole run, in a directory of its own that is removed afterwards.
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, realpath, rm, rmdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { withClient } from './client.mjs'

/** Durable, as in production; and no checkpoint within a drain that an earlier one has caused. */
const SETTINGS = {
  fsync: 'on',
  synchronous_commit: 'on',
  full_page_writes: 'on',
  shared_buffers: '512MB',
  max_wal_size: '8GB',
  checkpoint_timeout: '30min',
  max_connections: '100',
  shared_preload_libraries: 'pg_stat_statements',
}

/** `startEmbedded` is that of a build; `settings` are added to those above. */
export async function startServer(startEmbedded, settings = {}) {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-bench-'))
  // Started by root, the server runs under another account, with its data outside of this directory.
  const dataDirectory = async () => realpath(join(directory, 'data')).catch(() => undefined)
  const remove = async () => {
    const data = await dataDirectory()
    await rm(directory, { recursive: true, force: true })
    if (data === undefined) return
    await rm(data, { recursive: true, force: true })
    await rmdir(dirname(data)).catch(() => {})
  }
  try {
    const start = async () => startEmbedded({ directory, settings: { ...SETTINGS, ...settings } })
    let server = await start()
    const asAdmin = async (work) => withClient(server.url, work)
    const facts = await asAdmin(async (client) => (await client.query(FACTS)).rows[0])
    const pid = Number((await readFile(join(facts.data, 'postmaster.pid'), 'utf8')).split('\n')[0])
    const { data: _, ...settingsInForce } = facts
    return {
      pid,
      facts: settingsInForce,

      /** An empty database, or a copy of another to which nobody is connected; its URL. */
      async createDatabase(name, { template } = {}) {
        const copied = template === undefined ? '' : ` template ${template} strategy file_copy`
        await asAdmin(async (client) => client.query(`create database ${name}${copied}`))
        const url = new URL(server.url)
        url.pathname = name
        return url.href
      },

      async vacuum(url) {
        await withClient(url, async (client) => client.query('vacuum (analyze)'))
      },

      async checkpoint() {
        await asAdmin(async (client) => client.query('checkpoint'))
      },

      /** A transaction that has taken its snapshot and keeps it until `release` is called. */
      async holdSnapshot(url) {
        const client = new pg.Client({ connectionString: url })
        await client.connect()
        await client.query('begin isolation level repeatable read')
        await client.query('select txid_current_snapshot()')
        return { release: async () => client.end() }
      },

      async readWal() {
        return asAdmin(async (client) => (await client.query(WAL_BYTES)).rows[0].bytes)
      },

      async dropDatabase(name) {
        await asAdmin(async (client) => client.query(`drop database if exists ${name} with (force)`))
      },

      /** An immediate shutdown, after which the server recovers from its WAL; `work` runs while it is down. */
      async crash(work) {
        process.kill(server.processId, 'SIGQUIT')
        // The pid file is the last thing that the postmaster removes.
        while (existsSync(join(facts.data, 'postmaster.pid'))) await delay(20)
        await work()
        server = await start()
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

/** Of the whole server, since it was initialised. */
const WAL_BYTES = `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as bytes`
