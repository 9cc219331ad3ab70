import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase, type Database } from './database.ts'
import { quoteIdentifier } from './identifiers.ts'
import { migrate } from './migrate.ts'
import { describeSchema, SCHEMA_FILE_HEADER } from './schema.ts'

const database = useDatabase()
let db: Database

beforeAll(() => {
  db = openDatabase({ url: database.url })
})

afterAll(async () => {
  await db.close()
})

it('schema.sql is what the migrations create; after a change run `npm run schema`', async () => {
  await migrate(db, { schema: 'fresh' })
  const { rows } = await db.query<{ version: number }>({
    text: `select current_setting('server_version_num')::int as version`,
  })
  const shown = (text: string): string =>
    (rows[0]?.version ?? 0) >= 180_000 ? text : sameInEveryRelease(text)
  const committed = await readFile(new URL('../../schema.sql', import.meta.url), 'utf8')
  expect(shown(SCHEMA_FILE_HEADER + (await describeSchema(db, 'fresh')))).toBe(shown(committed))
})

/**
 * The file shows what PostgreSQL 18 prints. Before 16 the text of a view names its table before each column, and before
 * 18 new_event_id() is a function of ours.
 */
function sameInEveryRelease(text: string): string {
  const differs = /^create view |^CREATE OR REPLACE FUNCTION leasehold\.new_event_id\(/
  return text
    .split('\n\n')
    .filter((definition) => !differs.test(definition))
    .join('\n\n')
}

describe('the row is the whole truth', () => {
  const facts = async (text: string): Promise<unknown[]> => {
    await migrate(db, { schema: 'fresh' })
    return (await db.query({ text })).rows
  }

  it('the outbox is one table', async () => {
    const tables = `select relname as name from pg_class
      where relnamespace = 'fresh'::regnamespace and relkind in ('r', 'p', 'm', 'f') and relname like 'outbox%'`
    expect(await facts(tables)).toEqual([{ name: 'outbox' }])
  })

  it('no function runs with the rights of its owner', async () => {
    const functions = `select proname from pg_proc where pronamespace = 'fresh'::regnamespace and prosecdef`
    expect(await facts(functions)).toEqual([])
  })

  it('no trigger function writes to a table', async () => {
    const functions = `select proname from pg_proc
      where pronamespace = 'fresh'::regnamespace and prorettype = 'trigger'::regtype
        and prosrc ~* '(insert\\s+into|update\\s+\\w+\\s+set|delete\\s+from|truncate|execute)'`
    expect(await facts(functions)).toEqual([])
  })

  it('no column is generated from others', async () => {
    const columns = `select attname from pg_attribute as a join pg_class as c on c.oid = a.attrelid
      where c.relnamespace = 'fresh'::regnamespace and a.attgenerated <> ''`
    expect(await facts(columns)).toEqual([])
  })

  it('no table and no index reserves room in its pages, but for the few rows of the registry', async () => {
    const relations = `select relname from pg_class
      where relnamespace = 'fresh'::regnamespace and array_to_string(reloptions, ',') like '%fillfactor%'`
    expect(await facts(relations)).toEqual([{ relname: 'workers' }])
  })

  it('every table, column, view, function, trigger and index of the migrations has a comment', async () => {
    const objects = `with relation as (
        select c.oid, c.relkind, c.relname from pg_class as c where c.relnamespace = 'fresh'::regnamespace
      )
      select relname as name from relation
      where relkind in ('r', 'v') and obj_description(oid, 'pg_class') is null
      union all
      select r.relname || '.' || a.attname from relation as r join pg_attribute as a on a.attrelid = r.oid
      where a.attnum > 0 and col_description(r.oid, a.attnum) is null
        and (relkind = 'r' or (relkind = 'v' and r.relname = 'webhook_attempts'))
      union all
      select proname from pg_proc
      where pronamespace = 'fresh'::regnamespace and obj_description(oid, 'pg_proc') is null
      union all
      select t.tgname from pg_trigger as t join relation as r on r.oid = t.tgrelid
      where not t.tgisinternal and obj_description(t.oid, 'pg_trigger') is null
      union all
      select r.relname from relation as r
      where relkind = 'i' and obj_description(r.oid, 'pg_class') is null
        and not exists (select from pg_constraint as c where c.conindid = r.oid)`
    expect(await facts(objects)).toEqual([])
  })
})

async function build(schema: string, statements: readonly string[]): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query({ text: `create schema ${quoteIdentifier(schema)}` })
    await tx.query({ text: `set local search_path to ${quoteIdentifier(schema)}` })
    for (const text of statements) await tx.query({ text })
  })
}

const parts = [
  "create type mood as enum ('sad', 'glad')",
  'create table parent (id int primary key, mood mood)',
]
const tables = [
  `create table child (
     id bigint generated always as identity primary key,
     parent int not null references parent,
     twice int generated always as (parent * 2) stored,
     label text collate "C" default 'x' check (label <> ''),
     unique (parent, label)
   ) with (fillfactor = 70)`,
  'create table other (at timestamptz default now())',
]
const rest = [
  'create index child_twice on child (twice) where twice > 3',
  'create view twices as select twice from child',
  `create function touch() returns trigger language plpgsql set search_path from current as
     $$ begin perform 1 from child; return new; end $$`,
  'create trigger touched before update on child for each row execute function touch()',
  "comment on table child is 'the child''s table'",
  "comment on column child.twice is 'two times'",
  "comment on function touch() is 'touches'",
]

it('the text does not depend on the name of the schema or the order of creation', async () => {
  await build('leasehold_a', [...parts, ...tables, ...rest])
  await build('Other "name', [...parts, ...tables.toReversed(), ...rest.toReversed()].toSorted(byNeed))
  const first = await describeSchema(db, 'leasehold_a')
  expect(await describeSchema(db, 'Other "name')).toBe(first)
  expect(first).not.toContain('leasehold_a')
})

/** An object that others depend on is created first. */
function byNeed(a: string, b: string): number {
  return need(a) - need(b)
}

function need(statement: string): number {
  const order = [
    'create type',
    'create table',
    'create index',
    'create view',
    'create function',
    'create trigger',
  ]
  const position = order.findIndex((start) => statement.startsWith(start))
  return position === -1 ? order.length : position
}

it.each([
  'alter table child alter label drop default',
  'alter table child alter parent drop not null',
  'alter table child set (fillfactor = 80)',
  'alter table child add constraint positive check (parent > 0)',
  "alter type mood add value 'calm'",
  'drop index child_twice',
  'drop trigger touched on child',
  'create or replace view twices as select twice from child where twice > 1',
  'alter function touch() reset search_path',
  "comment on column child.twice is 'changed'",
  'create sequence counter',
  'alter table child alter label set storage external',
  'grant select on child to leasehold_reader',
  'grant insert (label) on child to leasehold_producer',
  'grant execute on function touch() to leasehold_worker',
])('the text shows the change: %s', async (change) => {
  const schema = `changed ${change.length}`
  await build(schema, [...parts, ...tables, ...rest])
  const before = await describeSchema(db, schema)
  await db.transaction(async (tx) => {
    await tx.query({ text: `set local search_path to ${quoteIdentifier(schema)}` })
    await tx.query({ text: change })
  })
  expect(await describeSchema(db, schema)).not.toBe(before)
  await db.query({ text: `drop schema ${quoteIdentifier(schema)} cascade` })
})
