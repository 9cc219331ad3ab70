import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
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

it('schema.sql is what the migrations make; after a change run `npm run schema`', async () => {
  await migrate(db, { schema: 'fresh' })
  const committed = await readFile(new URL('../../schema.sql', import.meta.url), 'utf8')
  expect(SCHEMA_FILE_HEADER + (await describeSchema(db, 'fresh'))).toBe(committed)
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

/** What is needed by others is created first. */
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
  const place = order.findIndex((start) => statement.startsWith(start))
  return place === -1 ? order.length : place
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
])('a change shows: %s', async (change) => {
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
