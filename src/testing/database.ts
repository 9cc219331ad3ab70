/** A database for a test file: created from a template, emptied between tests, dropped at the end. */
import { createHash, randomBytes } from 'node:crypto'
import { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'

import { hasCode, LeaseholdError } from '../errors.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { DatabaseClient } from '../postgres/client.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { quoteIdentifier, quoteQualified } from '../postgres/identifiers.ts'
import { migrate, readMigrations } from '../postgres/migrate.ts'
import { holdTestServer, type ServerHold } from './test-server.ts'

export interface TestDatabaseOptions {
  /**
   * The URL of a role that may create databases, on an existing server. Default: `TEST_DATABASE_URL` or, if that is not
   * set, an embedded server that all test processes of this directory share.
   */
  readonly url?: string
  /** Create Leasehold's schema. Default true. */
  readonly migrate?: boolean
  /** The name of Leasehold's schema. Default `leasehold`. */
  readonly schema?: string
  /** Creates your own tables, and rows that every test needs. */
  readonly prepare?: (db: PreparedDatabase) => Promise<void>
  /**
   * Names the result of `prepare`, so that it runs once for each server instead of once for each database: databases with
   * the same key are copies of the first one. Change it with what `prepare` does, for example to a hash of its files.
   */
  readonly prepareKey?: string
}

const OPTIONS = namesOf<TestDatabaseOptions>({
  url: true,
  migrate: true,
  schema: true,
  prepare: true,
  prepareKey: true,
})

/** A database that `prepare` fills. */
export interface PreparedDatabase extends Database {
  readonly url: string
}

export interface TestDatabase extends PreparedDatabase {
  readonly name: string
  /**
   * Deletes the rows of all tables and restarts their sequences. Tables that had rows when the database was ready, such as
   * those that `prepare` has filled, are left as they are.
   */
  reset(): Promise<void>
  /** Drops the database. Refuses while something is still connected to it. May be called twice. */
  close(): Promise<void>
}

/** Creates a database for a test file. Call `close()` when the file has ended. */
export async function testDatabase(options: TestDatabaseOptions = {}): Promise<TestDatabase> {
  refuseUnknownOptions('testDatabase', options, OPTIONS)
  const given = options.url ?? process.env['TEST_DATABASE_URL']
  const hold: ServerHold =
    given === undefined || given === '' ? await holdTestServer() : { url: given, release: () => undefined }
  try {
    const admin = await openAdministration(hold.url)
    try {
      return await createDatabase(options, hold, admin)
    } catch (error) {
      await admin.end()
      throw error
    }
  } catch (error) {
    hold.release()
    throw error
  }
}

async function createDatabase(
  options: TestDatabaseOptions,
  hold: ServerHold,
  admin: Administration,
): Promise<TestDatabase> {
  await dropOrphans(admin)
  const name = `${admin.testPrefix}${randomBytes(6).toString('hex')}`
  const url = withDatabase(hold.url, name)
  // As long as this session lives, nobody else drops the database.
  await lock(admin, name)
  const template = await templateFor(options, hold.url, admin)
  await createFrom(admin, name, template)
  const db = openDatabase({ url, applicationName: 'leasehold test' })
  try {
    if (options.prepareKey === undefined) await options.prepare?.({ ...db, url })
    const filled = await filledTables(db)
    admin.unref()
    let closed: Promise<void> | undefined
    return {
      ...db,
      url,
      name,
      reset: async () => truncate(db, filled),
      async close() {
        closed ??= close(db, name, hold, admin)
        await closed
      },
    }
  } catch (error) {
    await db.close()
    await drop(admin, name)
    throw error
  }
}

async function close(db: Database, name: string, hold: ServerHold, admin: Administration): Promise<void> {
  admin.ref()
  try {
    await db.close()
    const open = await openConnections(admin, name)
    if (open.length > 0) throw stillConnected(name, open)
    await drop(admin, name)
  } finally {
    await admin.end()
    hold.release()
  }
}

/** The session that creates and drops databases. */
interface Administration extends Pick<Client, 'query' | 'end'> {
  /**
   * What the names of its databases begin with. They contain the oid of the database that the session is connected to,
   * because its locks are seen only there: sessions in another database must not take the same names.
   */
  readonly testPrefix: string
  readonly templatePrefix: string
  /** A process that has nothing else to do does not wait for the session until `ref` is called. */
  unref(): void
  ref(): void
}

async function openAdministration(url: string): Promise<Administration> {
  const socket = new Socket()
  const client = new DatabaseClient({
    connectionString: url,
    application_name: 'leasehold test administration',
    stream: () => socket,
  })
  // A session that was lost makes the next statement fail. Without a listener the error would end the process.
  client.on('error', () => {})
  await client.connect()
  await client.query('set idle_session_timeout = 0')
  const { rows } = await client.query<{ scope: string }>(
    `select lpad(to_hex(oid::bigint), 8, '0') as scope from pg_database where datname = current_database()`,
  )
  const scope = rows[0]?.scope ?? ''
  return {
    testPrefix: `leasehold_test_${scope}_`,
    templatePrefix: `leasehold_template_${scope}_`,
    query: client.query.bind(client),
    end: client.end.bind(client),
    unref: () => socket.unref(),
    ref: () => socket.ref(),
  }
}

/** Session-scoped, in the database of the administration. */
async function lock(admin: Administration, name: string): Promise<void> {
  await admin.query('select pg_advisory_lock(hashtextextended($1, 0))', [name])
}

async function unlock(admin: Administration, name: string): Promise<void> {
  await admin.query('select pg_advisory_unlock(hashtextextended($1, 0))', [name])
}

/**
 * Drops the databases of test processes that have ended without doing so: nobody holds their locks. Those that were
 * created from another administration database are left alone, because their locks cannot be seen from here.
 */
async function dropOrphans(admin: Administration): Promise<void> {
  const { rows } = await admin.query<{ datname: string }>(
    `select datname from pg_database where datname ~ ('^' || $1 || '[0-9a-f]{12}$')`,
    [admin.testPrefix],
  )
  for (const { datname } of rows) {
    const { rows: answer } = await admin.query<{ locked: boolean }>(
      'select pg_try_advisory_lock(hashtextextended($1, 0)) as locked',
      [datname],
    )
    if (answer[0]?.locked !== true) continue
    try {
      await drop(admin, datname)
    } catch (error) {
      // It belongs to another role.
      if (!hasCode(error, '42501')) throw error
    } finally {
      await unlock(admin, datname)
    }
  }
}

async function drop(admin: Administration, name: string): Promise<void> {
  await admin.query(`drop database if exists ${quoteIdentifier(name)} with (force)`)
}

/** The database that new ones are copied from. Undefined: they begin empty. */
async function templateFor(
  options: TestDatabaseOptions,
  url: string,
  admin: Administration,
): Promise<string | undefined> {
  const { migrate: isMigrated = true, schema = 'leasehold', prepare, prepareKey } = options
  const files = isMigrated ? await readMigrations() : []
  const base = isMigrated
    ? await ensureTemplate(admin, url, [schema, ...files.map(({ checksum }) => checksum)], {
        fill: async (db) => migrate(db, { schema }),
      })
    : undefined
  if (prepareKey === undefined || prepare === undefined) return base
  return ensureTemplate(admin, url, [base ?? '', prepareKey], { from: base, fill: prepare })
}

interface TemplateContents {
  readonly from?: string | undefined
  readonly fill: (db: PreparedDatabase) => Promise<unknown>
}

/** Creates the template unless it exists. One that is incomplete, because its process was killed, is created anew. */
async function ensureTemplate(
  admin: Administration,
  url: string,
  identity: readonly string[],
  { from, fill }: TemplateContents,
): Promise<string> {
  const hash = createHash('sha256').update(identity.join('\n')).digest('hex').slice(0, 12)
  const name = `${admin.templatePrefix}${hash}`
  if (await isTemplate(admin, name)) return name
  await lock(admin, name)
  try {
    if (await isTemplate(admin, name)) return name
    await drop(admin, name)
    await createFrom(admin, name, from)
    const target = withDatabase(url, name)
    const db = openDatabase({ url: target, applicationName: 'leasehold test' })
    try {
      await fill({ ...db, url: target })
    } finally {
      await db.close()
    }
    const open = await openConnections(admin, name)
    if (open.length > 0) throw stillConnected(name, open)
    // A database with connections cannot be copied.
    await admin.query(`alter database ${quoteIdentifier(name)} with is_template true allow_connections false`)
    return name
  } finally {
    await unlock(admin, name)
  }
}

async function isTemplate(admin: Administration, name: string): Promise<boolean> {
  const { rowCount } = await admin.query('select from pg_database where datname = $1 and datistemplate', [
    name,
  ])
  return rowCount === 1
}

async function createFrom(admin: Administration, name: string, template: string | undefined): Promise<void> {
  const copy = template === undefined ? '' : ` template ${quoteIdentifier(template)}`
  try {
    await admin.query(`create database ${quoteIdentifier(name)}${copy}`)
  } catch (error) {
    throw hasCode(error, '42501') ? createDenied(error) : error
  }
}

const DISCONNECT_TIMEOUT_MS = 2_000
const DISCONNECT_POLL_MS = 20

/** The backend of a closed connection takes a moment to end. PostgreSQL does not notify us, so this polls. */
async function openConnections(admin: Administration, name: string): Promise<readonly string[]> {
  const giveUpAt = performance.now() + DISCONNECT_TIMEOUT_MS
  for (;;) {
    const { rows } = await admin.query<{ connection: string }>(
      `select format('%s (%s): %s', coalesce(nullif(application_name, ''), '(no name)'), state, left(query, 100)) as connection
       from pg_stat_activity where datname = $1 and backend_type = 'client backend'`,
      [name],
    )
    if (rows.length === 0 || performance.now() > giveUpAt) return rows.map(({ connection }) => connection)
    await delay(DISCONNECT_POLL_MS)
  }
}

function stillConnected(name: string, connections: readonly string[]): LeaseholdError {
  return new LeaseholdError(
    'STATE_CONFLICT',
    `The test database ${name} still has ${connections.length} open connections: ${connections.join('; ')}.`,
    { remedy: 'Stop your workers and close your pools before you call close().' },
  )
}

/** All tables. A partition is a part of its table, and the tables of extensions are not ours. */
async function allTables(db: Database): Promise<readonly string[]> {
  const { rows } = await db.query<{ schema: string; name: string }>({
    text: `select n.nspname as schema, c.relname as name
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition
  and n.nspname <> 'information_schema' and not starts_with(n.nspname, 'pg_')
  and not exists (select from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')`,
  })
  return rows.map(({ schema, name }) => quoteQualified(schema, name))
}

/** The tables that have rows. */
async function filledTables(db: Database): Promise<ReadonlySet<string>> {
  const tables = await allTables(db)
  if (tables.length === 0) return new Set()
  const { rows } = await db.query<{ position: number }>({
    text: tables
      .map((table, i) => `select ${i} as position where exists (select from ${table})`)
      .join('\nunion all '),
  })
  return new Set(rows.map(({ position }) => tables[position] ?? ''))
}

/** How long `reset` waits for a transaction that is still open. */
const RESET_LOCK_TIMEOUT_MS = 5_000

/** All tables at once, because they may refer to each other. */
async function truncate(db: Database, except: ReadonlySet<string>): Promise<void> {
  const tables = (await allTables(db)).filter((table) => !except.has(table))
  if (tables.length === 0) return
  try {
    await db.transaction(async (tx) => {
      await tx.query({ text: `set local lock_timeout = ${RESET_LOCK_TIMEOUT_MS}` })
      await tx.query({ text: `truncate ${tables.join(', ')} restart identity` })
    })
  } catch (error) {
    if (!hasCode(error, '55P03')) throw error
    throw new LeaseholdError('STATE_CONFLICT', 'The test database cannot be reset: a transaction is open.', {
      remedy: 'Commit or roll back every transaction, and stop your workers, before you call reset().',
      cause: error,
    })
  }
}

/** The URL of another database on the same server. */
function withDatabase(url: string, name: string): string {
  const changed = new URL(url)
  changed.pathname = `/${encodeURIComponent(name)}`
  return changed.href
}

function createDenied(cause: unknown): LeaseholdError {
  return new LeaseholdError('PERMISSION_DENIED', 'The role of TEST_DATABASE_URL may not create databases.', {
    remedy: 'Use a role that may: ALTER ROLE … CREATEDB.',
    cause,
  })
}
