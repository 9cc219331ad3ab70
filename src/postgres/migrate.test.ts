import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openLeaseStore } from '../lease/index.ts'
import { outboxTable } from '../outbox/table.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database } from './database.ts'
import { quoteIdentifier, quoteQualified } from './identifiers.ts'
import { migrate, type MigrationEvent } from './migrate.ts'
import { MIGRATIONS_DIRECTORY, readMigrations } from './migration-files.ts'
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

/** A name that nobody has used, and that would not survive without quotes. */
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
  it('bring an empty schema to the newest version, and a second run does nothing', async () => {
    const schema = freshSchema()
    const versions = (await readMigrations(MIGRATIONS_DIRECTORY)).map(({ version }) => version)
    expect(await migrate(db, { schema })).toEqual({ applied: versions, version: versions.length, ahead: [] })
    expect(await migrate(db, { schema })).toEqual({ applied: [], version: versions.length, ahead: [] })
    expect(await tablesOf(schema)).toEqual(expect.arrayContaining(['audit', 'migrations']))
  })

  it('started by eight at once: each is applied exactly once, and all end at the same version', async () => {
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

  it('with nothing to do cost one round trip', async () => {
    const schema = freshSchema()
    await migrate(db, { schema })
    const proxy = await startProxy(database.url)
    const counted = openDatabase({ url: proxy.url })
    await counted.query({ text: 'select 1' })
    const before = proxy.roundTrips
    await migrate(counted, { schema })
    expect(proxy.roundTrips - before).toBe(1)
    await counted.close()
    await proxy.close()
  })
})

describe('order', () => {
  it('only what is new is applied, and every file finds the schema on its search_path', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const directory = await directoryOf({ '001_one.sql': one, '002_two.sql': 'insert into one values (2)' })
    expect(await migrate(db, { schema, directory })).toEqual({ applied: [2], version: 2, ahead: [] })
  })

  it('a database ahead of the release is left alone, and told', async () => {
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
  ])('files that are not numbered one by one are refused: %o', async (files, message) => {
    const schema = freshSchema()
    const outcome = migrate(db, { schema, directory: await directoryOf(files) })
    await expect(outcome).rejects.toMatchObject({
      code: 'MIGRATION_FAILED',
      message: expect.stringContaining(message),
    })
    expect(await tablesOf(schema)).toEqual([])
  })

  it('a ledger with a hole is refused', async () => {
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
  it('is refused, with its name and both checksums', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const changed = await directoryOf({ '001_one.sql': `${one}-- more`, '002_two.sql': two })
    await expect(migrate(db, { schema, directory: changed })).rejects.toMatchObject({
      code: 'MIGRATION_CHANGED',
      message: expect.stringMatching(/001_one\.sql .*[0-9a-f]{64}.*[0-9a-f]{64}.* new migration/),
    })
    expect(await tablesOf(schema)).toEqual(['migrations', 'one'])
  })

  it('line ends are no change', async () => {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const windows = await directoryOf({ '001_one.sql': one.replaceAll('\n', '\r\n') })
    expect(await migrate(db, { schema, directory: windows })).toMatchObject({ applied: [] })
  })
})

describe('a file that fails', () => {
  it('leaves nothing behind, keeps what came before, and names file, place and SQL error', async () => {
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

it('a role that may not create the schema is told so, as the failure of the first migration', async () => {
  const role = `${database.name.slice(0, 40)}_reader`
  await db.query({ text: `create role ${quoteIdentifier(role)} login password 'reader'` })
  const url = new URL(database.url)
  url.username = role
  url.password = 'reader'
  const reader = openDatabase({ url: url.href })
  await expect(migrate(reader, { schema: freshSchema() })).rejects.toMatchObject({
    code: 'MIGRATION_FAILED',
    message: expect.stringMatching(/001_foundation\.sql failed: permission denied.*SQLSTATE 42501/),
  })
  await reader.close()
  await db.query({ text: `drop role ${quoteIdentifier(role)}` })
})

describe('a table that is in use', () => {
  const alter = { '001_one.sql': one, '002_alter.sql': 'alter table one add extra int' }

  async function prepared(): Promise<{ schema: string; directory: URL; hold: Statement }> {
    const schema = freshSchema()
    await migrate(db, { schema, directory: await directoryOf({ '001_one.sql': one }) })
    const hold = { text: `lock table ${quoteQualified(schema, 'one')} in access share mode` }
    return { schema, directory: await directoryOf(alter), hold }
  }

  it('is tried again until it is free', async () => {
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

  it('for ever: the migration gives up, with what to look for, and nothing was applied', async () => {
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

describe('the tables beside the outbox', () => {
  it.each([
    [6, 'outbox_claims', 'note that'],
    [7, 'outbox_bundles', 'take bundles of them'],
  ])('%i: in %s, who may claim events may %s, whoever granted it before', async (version, beside) => {
    const schema = freshSchema()
    const role = `relay_${version}_${Date.now()}`
    await migrateTo(schema, version - 1)
    await db.query({ text: `create role ${role}` })
    try {
      await db.query({ text: `grant select, update on ${quoteQualified(schema, 'outbox')} to ${role}` })
      await migrateTo(schema, version)
      const { rows } = await db.query({
        text: `select bool_and(has_table_privilege($1, $2, p)) as granted
          from unnest(array['select', 'insert', 'update', 'delete']) as p`,
        values: [role, quoteQualified(schema, beside)],
      })
      expect(rows).toEqual([{ granted: true }])
    } finally {
      await db.query({ text: `drop owned by ${role}` })
      await db.query({ text: `drop role ${role}` })
    }
  })

  it('7: what could be claimed before can be claimed after, in its order, and nothing else', async () => {
    const schema = freshSchema()
    const outbox = quoteQualified(schema, 'outbox')
    await migrateTo(schema, 6)
    await db.query({
      text: `insert into ${outbox} (event_type, payload, ordering_key, behind, available_at)
        select 'a', '{}', case when n % 3 = 0 then 'k' || n end, n % 6 = 0, now() + (n % 2) * interval '1 h'
        from generate_series(1, 1000) as n`,
    })
    await db.query({
      text: `update ${outbox} set status = 'CLAIMED', available_at = null, claimed_at = now(), claimed_by = 'r',
        locked_until = now(), lock_token = 1 where id <= 100 and not behind`,
    })
    await migrateTo(schema, 7)
    const { rows } = await db.query<{ id: string }>({
      text: `select o.id::text as id from ${outbox} as o where available_at <= now() and not behind order by available_at, o.id`,
    })
    const store = await openLeaseStore(db, outboxTable({ schema }), { owner: 'r', bucket: 0 })
    const { claimed } = await store.claim({ limit: 5_000, leaseMs: 60_000 })
    expect(claimed.map(({ lease }) => lease.id)).toEqual(rows.map(({ id }) => id))
    const { rows: later } = await db.query<{ later: number }>({
      text: `select sum(cardinality(rows))::int as later from ${quoteQualified(schema, 'outbox_bundles')}`,
    })
    expect(later).toEqual([{ later: 450 }])
  })

  async function migrateTo(schema: string, version: number): Promise<void> {
    const files = (await readMigrations(MIGRATIONS_DIRECTORY)).slice(0, version)
    const directory = await directoryOf(Object.fromEntries(files.map(({ file, text }) => [file, text])))
    await migrate(db, { schema, directory })
  }
})
