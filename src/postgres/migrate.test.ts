import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { withDatabase } from '../../test/support/admin.ts'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { startServer, type TestServer } from '../../test/support/server.ts'
import { openDatabase, type Database } from './database.ts'
import { quoteIdentifier, quoteQualified } from './identifiers.ts'
import { migrate, readMigrations, type MigrationEvent } from './migrate.ts'
import type { Statement } from './queryable.ts'

useQuietProcess()
const database = useDatabase()
const directories: string[] = []
let db: Database
let schemas = 0

beforeAll(() => {
  db = openDatabase({ url: database.url })
})

afterAll(async () => {
  await db.close()
})

afterEach(async () => {
  await Promise.all(directories.splice(0).map(async (directory) => rm(directory, { recursive: true })))
})

/** A name that is not in use, and that has to be quoted. */
function freshSchema(): string {
  schemas += 1
  return `Lease "hold" ${schemas}`
}

async function directoryOf(files: Readonly<Record<string, string>>): Promise<URL> {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-migrations-'))
  directories.push(directory)
  await Promise.all(Object.entries(files).map(async ([name, text]) => writeFile(join(directory, name), text)))
  return pathToFileURL(`${directory}/`)
}

async function tablesOf(schema: string): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>({
    text: 'select tablename as name from pg_tables where schemaname = $1 order by 1',
    values: [schema],
  })
  return rows.map(({ name }) => name)
}

const one = 'create table one (id int);\ninsert into one values (1);\n'
const two = 'create table two (id int);\n'

describe('the migrations of this package', () => {
  it('the migrations bring an empty schema to the newest version, and a second run changes nothing', async () => {
    const schema = freshSchema()
    const versions = (await readMigrations()).map(({ version }) => version)
    expect(await migrate(db, { schema })).toEqual({ applied: versions, version: versions.length, ahead: [] })
    expect(await migrate(db, { schema })).toEqual({ applied: [], version: versions.length, ahead: [] })
    expect(await tablesOf(schema)).toEqual(expect.arrayContaining(['audit', 'migrations']))
  })

  it('each migration is applied exactly once when eight processes migrate at the same time', async () => {
    const schema = freshSchema()
    const directory = await directoryOf({
      '001_one.sql': one,
      '002_two.sql': two,
      '003_three.sql': 'select pg_sleep(0.05)',
    })
    const starters = Array.from({ length: 8 }, () => openDatabase({ url: database.url }))
    const results = await Promise.all(
      starters.map(async (starter) => migrate(starter, { schema, directory })),
    )
    await Promise.all(starters.map(async (starter) => starter.close()))
    expect(results.map(({ version }) => version)).toEqual(results.map(() => 3))
    expect(results.flatMap(({ applied }) => applied).sort((a, b) => a - b)).toEqual([1, 2, 3])
    expect(await tablesOf(schema)).toEqual(['migrations', 'one', 'two'])
  })

  it('migrating costs two round trips when there is nothing to apply', async () => {
    const schema = freshSchema()
    await migrate(db, { schema })
    const proxy = await startProxy(database.url)
    const counted = openDatabase({ url: proxy.url })
    await counted.query({ text: 'select 1' })
    const before = proxy.roundTrips
    await migrate(counted, { schema })
    expect(proxy.roundTrips - before).toBe(2)
    await counted.close()
    await proxy.close()
  })
})

describe('order', () => {
  it('only new files are applied, with the schema on their search_path', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const directory = await directoryOf({ '001_one.sql': one, '002_two.sql': 'insert into one values (2)' })
    expect(await migrate(db, { schema, directory })).toEqual({ applied: [2], version: 2, ahead: [] })
  })

  it('a database that is newer than the release is not changed, and its newer versions are reported', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one, '002_two.sql': two }) })
    const directory = await directoryOf({ '001_one.sql': one })
    expect(await migrate(db, { schema, directory })).toEqual({ applied: [], version: 2, ahead: [2] })
  })

  it.each([
    [{ '001_a.sql': '', '003_c.sql': '' }, '2 is missing before 003_c.sql'],
    [{ '002_b.sql': '' }, '1 is missing before 002_b.sql'],
    [{ '001_a.sql': '', '001_b.sql': '' }, '1 is used by 001_a.sql and 001_b.sql'],
    [{ '1-first.sql': '' }, '1-first.sql is not named like'],
  ])('files that are not numbered 1, 2, 3, … are refused: %o', async (files, message) => {
    const schema = freshSchema()
    const outcome = migrate(db, { schema, directory: await directoryOf(files) })
    await expect(outcome).rejects.toMatchObject({
      code: 'MIGRATION_FAILED',
      message: expect.stringContaining(message),
    })
    expect(await tablesOf(schema)).toEqual([])
  })

  it('a ledger with a gap is refused', async () => {
    const schema = freshSchema()
    const directory = await directoryOf({ '001_one.sql': one, '002_two.sql': two })
    await migrate(db, { schema, directory })
    await db.query({ text: `delete from ${quoteQualified(schema, 'migrations')} where version = 1` })
    await expect(migrate(db, { schema, directory })).rejects.toMatchObject({
      code: 'MIGRATION_CHANGED',
      message: expect.stringContaining('lacks version 1 but has version 2'),
    })
  })
})

describe('a file that was changed after it had been applied', () => {
  it('a changed file is refused with an error that has its name and both checksums', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const changed = await directoryOf({ '001_one.sql': `${one}-- more`, '002_two.sql': two })
    await expect(migrate(db, { schema, directory: changed })).rejects.toMatchObject({
      code: 'MIGRATION_CHANGED',
      message: expect.stringMatching(/001_one\.sql .*[0-9a-f]{64}.*[0-9a-f]{64}.* new migration/),
    })
    expect(await tablesOf(schema)).toEqual(['migrations', 'one'])
  })

  it('a file is accepted when only its line ends have changed', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const windows = await directoryOf({ '001_one.sql': one.replaceAll('\n', '\r\n') })
    expect(await migrate(db, { schema, directory: windows })).toMatchObject({ applied: [] })
  })
})

describe('a file that fails', () => {
  it('a file that fails is rolled back, earlier files stay applied, and the error has the file, the position and the SQL error', async () => {
    const schema = freshSchema()
    const broken = `${two}-- é 🙂\ninsert into two\n  select nothing;\n`
    const outcome = migrate(db, {
      schema,
      directory: await directoryOf({ '001_one.sql': one, '002_two.sql': broken }),
    })
    await expect(outcome).rejects.toMatchObject({
      code: 'MIGRATION_FAILED',
      message: expect.stringMatching(
        /002_two\.sql failed at line 4, column 10: .*nothing.* \(SQLSTATE 42703\)/,
      ),
      cause: { code: '42703' },
    })
    expect(await tablesOf(schema)).toEqual(['migrations', 'one'])
    const mended = await directoryOf({ '001_one.sql': one, '002_two.sql': two })
    expect(await migrate(db, { schema, directory: mended })).toMatchObject({ applied: [2], version: 2 })
  })
})

it('a role that may not create the schema gets the failure of the first migration', async () => {
  const role = `${database.name.slice(0, 40)}_reader`
  await db.query({ text: `create role ${quoteIdentifier(role)} login password 'reader'` })
  const url = new URL(database.url)
  url.username = role
  url.password = 'reader'
  const reader = openDatabase({ url: url.href })
  await expect(migrate(reader, { schema: freshSchema() })).rejects.toMatchObject({
    code: 'MIGRATION_FAILED',
    message: expect.stringMatching(/001_core\.sql failed: permission denied.*SQLSTATE 42501/),
  })
  await reader.close()
  await db.query({ text: `drop role ${quoteIdentifier(role)}` })
})

it('a schema that belongs to another role is refused, also to a superuser, and nothing is applied', async () => {
  const owner = `${database.name.slice(0, 40)}_owner`
  const schema = freshSchema()
  await db.query({ text: `create role ${quoteIdentifier(owner)}` })
  await db.query({ text: `create schema ${quoteIdentifier(schema)} authorization ${quoteIdentifier(owner)}` })
  await expect(migrate(db, { schema })).rejects.toMatchObject({
    code: 'MIGRATION_FAILED',
    message: expect.stringContaining(
      `The schema ${schema} belongs to ${owner}, and postgres is not a member`,
    ),
  })
  expect(await tablesOf(schema)).toEqual([])
  await db.query({ text: `grant ${quoteIdentifier(owner)} to current_user` })
  expect(await migrate(db, { schema })).toMatchObject({ version: 7 })
  await db.query({
    text: `drop schema ${quoteIdentifier(schema)} cascade; drop role ${quoteIdentifier(owner)}`,
  })
})

it('nothing that another role has put into its schema runs as whoever migrates: neither a ledger that is a view, nor the tables of a forged one', async () => {
  const owner = `${database.name.slice(0, 40)}_owner`
  const schema = freshSchema()
  const [role, named] = [quoteIdentifier(owner), quoteIdentifier(schema)]
  await db.query({
    text: `create table public.ran (by name); grant insert on public.ran to public; create role ${role}; create schema ${named} authorization ${role}`,
  })
  await db.query({
    text: `set role ${role};
create function ${named}.run() returns int language sql as 'insert into public.ran values (current_user) returning 1';
create view ${named}.migrations as select ${named}.run() as version, ''::text as checksum;
reset role`,
  })
  const refusal = { code: 'MIGRATION_FAILED', message: expect.stringContaining(`belongs to ${owner}`) }
  await expect(migrate(db, { schema })).rejects.toMatchObject(refusal)

  // A ledger that says that everything has been applied.
  const files = await readMigrations()
  const rows = files.map(({ version, checksum }) => `(${version}, '${checksum}')`)
  await db.query({
    text: `drop view ${named}.migrations; create table ${named}.migrations (version, checksum) as values ${rows.join(', ')};
alter table ${named}.migrations owner to ${role}`,
  })
  await expect(migrate(db, { schema })).rejects.toMatchObject(refusal)
  expect((await db.query({ text: 'select from public.ran' })).rows).toEqual([])
  await db.query({ text: `drop schema ${named} cascade; drop role ${role}; drop table public.ran` })
})

describe('a table that is locked', () => {
  const alter = { '001_one.sql': one, '002_alter.sql': 'alter table one add extra int' }

  async function prepared(): Promise<{ schema: string; directory: URL; hold: Statement }> {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const hold = { text: `lock table ${quoteQualified(schema, 'one')} in access share mode` }
    return { schema, directory: await directoryOf(alter), hold }
  }

  it('a locked table delays the migration, which is retried until the table is free', async () => {
    const { schema, directory, hold } = await prepared()
    let migrating: Promise<unknown> | undefined
    await db.transaction(async (tx) => {
      await tx.query(hold)
      const seen = await new Promise<MigrationEvent>((onEvent) => {
        migrating = migrate(db, { schema, directory, lockTimeoutMs: 20, onEvent })
      })
      expect(seen).toMatchObject({ type: 'migrationGaveWay', file: '002_alter.sql', attempt: 1 })
    })
    expect(await migrating).toMatchObject({ applied: [2] })
  })

  it('a table that stays locked makes the migration fail with the cause, and nothing is applied', async () => {
    const { schema, directory, hold } = await prepared()
    await db.transaction(async (tx) => {
      await tx.query(hold)
      await expect(migrate(db, { schema, directory, lockTimeoutMs: 20, attempts: 2 })).rejects.toMatchObject({
        code: 'MIGRATION_FAILED',
        message: expect.stringMatching(/002_alter\.sql got no lock in 2 attempts of lockTimeoutMs = 20 ms/),
        cause: { code: '55P03' },
      })
    })
    expect(await migrate(db, { schema, directory })).toMatchObject({ applied: [2], version: 2 })
  })
})

describe('the number of buckets', () => {
  it('gives way to a transaction that uses a table, as migrations do', async () => {
    const schema = freshSchema()
    await migrate(db, { schema })
    const hold = { text: `lock table ${quoteQualified(schema, 'outbox')} in access share mode` }
    let raising: Promise<unknown> = Promise.resolve()
    await db.transaction(async (tx) => {
      await tx.query(hold)
      const seen = await new Promise<MigrationEvent>((onEvent) => {
        raising = migrate(db, { schema, buckets: 4, lockTimeoutMs: 20, onEvent })
      })
      expect(seen).toMatchObject({ type: 'migrationGaveWay', file: 'the number of buckets (4)', attempt: 1 })
    })
    await raising
    await db.transaction(async (tx) => {
      await tx.query(hold)
      // Only the first raise changes the tables; a number that is the same changes nothing.
      await migrate(db, { schema, buckets: 4, lockTimeoutMs: 20, attempts: 1 })
    })
  })

  it('is not raised if a table stays locked, and the error names the cause', async () => {
    const schema = freshSchema()
    await migrate(db, { schema })
    await db.transaction(async (tx) => {
      await tx.query({ text: `lock table ${quoteQualified(schema, 'outbox')} in access share mode` })
      const raising = migrate(db, { schema, buckets: 4, lockTimeoutMs: 20, attempts: 2 })
      await expect(raising).rejects.toMatchObject({
        code: 'MIGRATION_FAILED',
        message: expect.stringMatching(
          /number of buckets \(4\) got no lock in 2 attempts of lockTimeoutMs = 20 ms/,
        ),
        cause: { code: '55P03' },
      })
    })
  })

  it('is not raised twice while an ordering key has rows in its first bucket, and the remedy names the schema', async () => {
    const schema = freshSchema()
    await migrate(db, { schema })
    await db.query({
      text: `insert into ${quoteQualified(schema, 'outbox')} (event_type, payload, ordering_key)
        select 'a', '{}', 'key ' || n from generate_series(1, 10) as n`,
    })
    await migrate(db, { schema, buckets: 8 })
    const raising = migrate(db, { schema, buckets: 16 })
    await expect(raising).rejects.toMatchObject({
      code: 'SETTING_INVALID',
      remedy: expect.stringContaining(`select ${quoteIdentifier(schema)}.has_rows_of_previous_buckets()`),
    })
  })
})

describe('the roles', () => {
  let server: TestServer
  beforeAll(async () => {
    server = await startServer()
  })
  afterAll(async () => server.remove())

  const ROLES = [
    'leasehold_api',
    'leasehold_dispatcher',
    'leasehold_operator',
    'leasehold_producer',
    'leasehold_reader',
    'leasehold_tenant',
    'leasehold_worker',
  ]
  const roles = {
    text: `select rolname as name, rolcanlogin as login from pg_roles where rolname like 'leasehold\\_%' order by 1`,
  }

  it('roles and their grants are skipped where the migrating role may not create roles', async () => {
    const admin = openDatabase({ url: server.url })
    await admin.query({ text: `create role migrator login password 'only-for-this-test'` })
    await admin.query({ text: 'grant create on database postgres to migrator' })
    const url = new URL(server.url)
    url.username = 'migrator'
    const migrator = openDatabase({ url: url.href })
    expect(await migrate(migrator)).toMatchObject({ version: 7 })
    expect((await admin.query(roles)).rows).toEqual([])
    await migrator.close()
    await admin.query({ text: 'drop schema leasehold cascade' })
    await admin.close()
  })

  it('roles are created once per server, without login, when several databases are migrated at the same time', async () => {
    const names = ['first', 'second', 'third', 'fourth']
    const admin = openDatabase({ url: server.url })
    for (const name of names) await admin.query({ text: `create database ${name}` })
    const databases = names.map((name) => openDatabase({ url: withDatabase(server.url, name) }))
    const migrated = await Promise.all(databases.map(async (one) => migrate(one)))
    expect(migrated.map(({ version }) => version)).toEqual([7, 7, 7, 7])
    expect((await admin.query(roles)).rows).toEqual(ROLES.map((name) => ({ name, login: false })))
    const granted = {
      text: `select has_schema_privilege('leasehold_producer', 'leasehold', 'usage')
        and has_column_privilege('leasehold_producer', 'leasehold.outbox', 'payload', 'insert')
        and not has_column_privilege('leasehold_producer', 'leasehold.outbox', 'payload', 'select') as granted`,
    }
    for (const one of databases) expect((await one.query(granted)).rows).toEqual([{ granted: true }])
    await Promise.all([...databases, admin].map(async (one) => one.close()))
  })
})
