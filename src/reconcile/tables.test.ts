/** Tables as their owners have them: the migration is written, run and declared, and their rows are reconciled. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { apply, declaredIn, statementsOf } from '../../test/support/lease-migration.ts'
import { type EventOf, Events } from '../worker/events.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { type AddLeaseOptions, planLease } from '../lease/add-lease.ts'
import { leaseTable } from '../lease/declaration.ts'
import { type LeaseStore, openLeaseStore } from '../lease/store.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteLiteral, quoteQualified } from '../postgres/identifiers.ts'
import { reconciler } from './reconciler.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

beforeEach(async () => db.query({ text: 'drop schema if exists app cascade; create schema app' }))
afterAll(async () => db.close())

/** The migration of a reconciled table: rows with these statuses are open. */
async function migrationOf(
  given: Partial<AddLeaseOptions> = {},
  open: readonly string[] = ['pending'],
): Promise<string> {
  const status = given.status ?? 'status'
  const claimable = `${quote(status)} in (${open.map(quoteLiteral).join(', ')})`
  const options = { table: 'app.payments', claimable, prefix: 'reconcile_lease', status, ...given }
  return (await planLease(db, options)).migration
}

interface Case {
  readonly name: string
  /** Creates the table and puts four rows into it, three of which are open. */
  readonly sql: string
  readonly options?: Partial<AddLeaseOptions>
  readonly index: readonly string[]
  readonly statuses?: readonly [open: string, next: string, final: string]
}

const ROWS = "('pending'), ('confirmed'), ('pending'), ('detected')"

const CASES: readonly Case[] = [
  {
    name: 'a bigint key',
    sql: `create table app.payments (id bigint generated always as identity primary key,
        status text not null, created_at timestamptz not null default now());
      insert into app.payments (status) values ${ROWS}`,
    index: ['status', 'reconcile_lease_until', 'created_at', 'id'],
  },
  {
    name: 'a uuid key',
    sql: `create table app.payments (id uuid primary key default gen_random_uuid(),
        status varchar(20) not null, created_at timestamp not null default now());
      insert into app.payments (status) values ${ROWS}`,
    index: ['status', 'reconcile_lease_until', 'created_at', 'id'],
  },
  {
    name: 'no created_at',
    sql: `create table app.payments (id int generated always as identity primary key, status text not null);
      insert into app.payments (status) values ${ROWS}`,
    index: ['status', 'reconcile_lease_until', 'id'],
  },
  {
    name: 'a created_at that may be null, and is',
    sql: `create table app.payments (id text primary key default gen_random_uuid()::text, status text, created_at date);
      insert into app.payments (status) values ${ROWS};
      update app.payments set created_at = now() where status = 'detected'`,
    index: ['status', 'reconcile_lease_until', 'created_at', 'id'],
  },
  {
    name: 'a status of an enum type',
    sql: `create type app.state as enum ('pending', 'detected', 'confirmed', 'expired');
      create table app.payments (id bigint generated always as identity primary key,
        status app.state not null, created_at timestamptz not null default now());
      insert into app.payments (status) values ${ROWS}`,
    index: ['status', 'reconcile_lease_until', 'created_at', 'id'],
  },
  {
    name: 'a status of a domain',
    sql: `create domain app.state as text check (value in ('pending', 'detected', 'confirmed'));
      create table app.payments (id bigint generated always as identity primary key, status app.state not null);
      insert into app.payments (status) values ${ROWS}`,
    index: ['status', 'reconcile_lease_until', 'id'],
  },
  {
    name: 'a status that is a number',
    sql: `create table app.payments (id bigint generated always as identity primary key, status smallint not null);
      insert into app.payments (status) values (1), (3), (1), (2)`,
    index: ['status', 'reconcile_lease_until', 'id'],
    statuses: ['1', '2', '3'],
  },
  {
    name: 'a key of two columns',
    sql: `create table app.payments (tenant text default 'a', number int generated always as identity,
        status text not null, created_at timestamptz not null default now(), primary key (tenant, number));
      insert into app.payments (status) values ${ROWS}`,
    index: ['status', 'reconcile_lease_until', 'created_at', 'tenant', 'number'],
  },
  {
    name: 'partitions',
    sql: `create table app.payments (id uuid default gen_random_uuid(), status text not null,
        created_at timestamptz not null default now(), primary key (id, created_at)) partition by range (created_at);
      create table app.payments_old partition of app.payments for values from (minvalue) to ('2020-01-01');
      create table app.payments_new partition of app.payments for values from ('2020-01-01') to (maxvalue);
      insert into app.payments (status) values ${ROWS};
      update app.payments set created_at = '2019-01-01' where status = 'detected'`,
    index: ['status', 'reconcile_lease_until', 'created_at', 'id'],
  },
  {
    name: 'names that need quotes',
    sql: `create schema "My App";
      create table "My App"."Pay.ments" ("Id" uuid primary key default gen_random_uuid(), "the ""State""" text not null);
      insert into "My App"."Pay.ments" ("the ""State""") values ${ROWS}`,
    options: { table: { schema: 'My App', name: 'Pay.ments' }, status: 'the "State"', prefix: 'Lease' },
    index: ['the "State"', 'Lease_until', 'Id'],
  },
  {
    name: 'no token',
    sql: `create table app.payments (id bigint generated always as identity primary key,
        status text not null, created_at timestamptz not null default now());
      insert into app.payments (status) values ${ROWS}`,
    options: { token: false },
    index: ['status', 'reconcile_lease_until', 'created_at', 'id'],
  },
]

describe('REC-07: a table gets its lease by a migration, and the rows it had are reconciled', () => {
  it.each(CASES)('with $name', async (given) => {
    await db.query({ text: 'drop schema if exists "My App" cascade' })
    const [pending, detected, confirmed] = given.statuses ?? ['pending', 'detected', 'confirmed']
    await db.query({ text: given.sql })
    const status = given.options?.status ?? 'status'
    const sql = await migrationOf(given.options, [pending, detected])
    await apply(db, sql)
    // Run twice it changes nothing.
    await apply(db, sql)

    const table = declaredIn(sql)
    const [first = '', until = '', ...order] = given.index
    expect(await indexColumns(table)).toEqual(
      expect.arrayContaining([[first, until, ...order], order, [...table.id]]),
    )
    const { lease } = table
    const added = [lease.owner, lease.until, ...(lease.token === undefined ? [] : [lease.token])]
    expect(await nullable(table)).toEqual(expect.arrayContaining([...added, table.attempts?.expiries]))

    const declared = reconciler<Record<string, unknown>, string>({
      table,
      status,
      transitions: { [pending]: [detected], [detected]: [confirmed], [confirmed]: [] },
      everyMs: 20,
      settings: { pollMs: 50 },
      observe: async (row) => Promise.resolve(String(row[status]) === pending ? detected : confirmed),
    })
    const { events, runtime } = await start([declared])
    let left = 3
    await events.next(
      'settled',
      ({ outcome, ids }) => outcome === `${detected}->${confirmed}` && (left -= ids.length) === 0,
    )
    await runtime.stop()
    const { rows } = await db.query<{ status: string; owner: string | null; until: string | null }>({
      text: `select ${quote(status)}::text as status, ${quote(lease.owner)} as owner, ${quote(lease.until)}::text as until
        from ${quoteQualified(table.schema, table.name)}`,
    })
    expect(rows).toEqual(Array.from({ length: 4 }, () => ({ status: confirmed, owner: null, until: null })))
  })
})

async function indexColumns({ schema, name }: { schema: string; name: string }): Promise<string[][]> {
  const { rows } = await db.query<{ columns: string[] }>({
    text: `select array(select attname::text from pg_attribute where attrelid = i.indexrelid order by attnum) as columns
      from pg_index as i where i.indrelid = $1::regclass and i.indisvalid`,
    values: [quoteQualified(schema, name)],
  })
  return rows.map(({ columns }) => columns)
}

async function nullable({ schema, name }: { schema: string; name: string }): Promise<string[]> {
  const { rows } = await db.query<{ name: string }>({
    text: `select attname::text as name from pg_attribute
      where attrelid = $1::regclass and attnum > 0 and not attnotnull and not atthasdef`,
    values: [quoteQualified(schema, name)],
  })
  return rows.map((row) => row.name)
}

const PAYMENTS = `create table app.payments (id bigint generated always as identity primary key,
  status text not null, created_at timestamptz not null default now())`

describe('the migration of a lease', () => {
  it('REC-07: builds its indexes CONCURRENTLY, and not where PostgreSQL cannot', async () => {
    await db.query({ text: PAYMENTS })
    const plain = await migrationOf()
    expect(plain).toContain('CREATE INDEX CONCURRENTLY IF NOT EXISTS payments_reconcile_lease\n')
    expect(plain.replaceAll('\n-- ', ' ')).toContain('and therefore outside a transaction')
    await db.query({
      text: `create table app.parts (id int, at date, status text, primary key (id, at)) partition by range (at)`,
    })
    const partitioned = await migrationOf({ table: 'app.parts' })
    expect(partitioned).toContain('CREATE INDEX IF NOT EXISTS parts_reconcile_lease\n')
    expect(statementsOf(partitioned).join()).not.toContain('CONCURRENTLY')
  })

  it('is written without a change to the table', async () => {
    await db.query({ text: PAYMENTS })
    await migrationOf()
    expect(await nullable({ schema: 'app', name: 'payments' })).toEqual([])
    expect(await indexColumns({ schema: 'app', name: 'payments' })).toEqual([['id']])
  })

  it('a name with a line break cannot end its comment', async () => {
    await db.query({ text: 'create table app."x\ndrop schema app" (id int primary key, status text)' })
    await apply(db, await migrationOf({ table: { schema: 'app', name: 'x\ndrop schema app' } }))
    expect(await nullable({ schema: 'app', name: 'x\ndrop schema app' })).toContain('reconcile_lease_owner')
  })
})

it('a table without a usable index is reconciled, and each start warns of it with the CREATE INDEX to run', async () => {
  await db.query({
    text: `${PAYMENTS}; alter table app.payments add owner text, add until timestamptz, add token bigint`,
  })
  const table = leaseTable({
    table: 'app.payments',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'pending'",
    order: ['created_at', 'id'],
    onExpiry: 'claimable',
  })
  const declared = reconciler({
    table,
    transitions: { pending: ['done'], done: [] },
    observe: async () => 'done',
  })
  const startAndListen = async (): Promise<EventOf<'tableSlow'>[]> => {
    const events = new Events()
    const slow: EventOf<'tableSlow'>[] = []
    events.on('tableSlow', (event) => slow.push(event))
    const { runtime } = await start([declared], { events })
    await runtime.stop()
    return slow
  }
  const slow = await startAndListen()
  expect(slow).toMatchObject([
    { table: tableName(table), what: expect.stringContaining('no index serves the claim') },
    { table: tableName(table), what: expect.stringContaining('no index serves the reaper') },
  ])
  // What it says is what helps.
  for (const { remedy } of slow) await db.query({ text: remedy.replace('Run: ', '') })
  expect(await startAndListen()).toEqual([])
})

const COUNTED = { order: ['created_at', 'id'], onExpiry: 'claimable' } as const

/** The rows as the reconciler leases them: with its own outcomes. */
async function openStore(owner: string, given: LeaseTable): Promise<LeaseStore> {
  const { table } = reconciler({
    table: given,
    transitions: { pending: ['done'], done: [] },
    observe: async () => undefined,
  })
  return openLeaseStore(db, table, { owner })
}

describe('D10: an expired lease of a reconciled row', () => {
  async function declared(more: string): Promise<LeaseTable> {
    await db.query({ text: `${PAYMENTS}; ${more}` })
    const sql = await migrationOf()
    await apply(db, sql)
    return declaredIn(sql)
  }

  async function expire(): Promise<void> {
    await db.query({
      text: `update app.payments set reconcile_lease_until = now() - interval '1 second' where reconcile_lease_owner is not null`,
    })
  }

  async function payment(): Promise<Record<string, unknown> | undefined> {
    const { rows } = await db.query({
      text: `select status, reconcile_lease_owner as owner, reconcile_lease_expiries as expiries,
          round(greatest(0, extract(epoch from reconcile_lease_until - now())))::int as rests from app.payments`,
    })
    return rows[0]
  }

  const ONE = "insert into app.payments (status) values ('pending')"

  it('makes the row claimable at once the first time, and from the second on after a growing backoff', async () => {
    const store = await openStore('dead', await declared(ONE))
    const claim = async (): Promise<number> =>
      (await store.claim({ limit: 10, leaseMs: 60_000 })).claimed.length
    const rests: unknown[] = []
    const claimedEarly: number[] = []
    for (let expiries = 1; expiries <= 4; expiries += 1) {
      expect(await claim()).toBe(1)
      await expire()
      // Whoever takes it back, a claim or a reaper, makes the row wait from the second expiry on.
      if (expiries > 1) claimedEarly.push(await claim())
      else await store.reap()
      const { rests: resting, ...row } = (await payment()) ?? {}
      expect(row).toEqual({ status: 'pending', owner: null, expiries })
      rests.push(resting)
      if (expiries > 1) claimedEarly.push(await claim())
      await db.query({ text: 'update app.payments set reconcile_lease_until = now()' })
    }
    expect(rests).toEqual([0, 2, 4, 8])
    expect(claimedEarly.every((count) => count === 0)).toBe(true)
  })

  it('a row is claimed directly after its first expiry, even without a reaper', async () => {
    const table = await declared(ONE)
    const [dead, heir] = [await openStore('dead', table), await openStore('heir', table)]
    await dead.claim({ limit: 1, leaseMs: 60_000 })
    await expire()
    expect((await heir.claim({ limit: 1, leaseMs: 60_000 })).claimed).toHaveLength(1)
    expect(await payment()).toMatchObject({ owner: 'heir', expiries: 1 })
  })

  it('two expiries make a row a suspect, of which a claim takes one at a time, until an observation of it has ended', async () => {
    const table = await declared(
      "insert into app.payments (status) select 'pending' from generate_series(1, 3)",
    )
    await db.query({ text: 'update app.payments set reconcile_lease_expiries = 2' })
    const store = await openStore('w', table)
    const first = await store.claim({ limit: 10, leaseMs: 60_000 })
    expect([first.claimed.length, first.suspects]).toEqual([1, first.claimed.map(({ lease }) => lease.id)])
    expect((await store.claim({ limit: 10, leaseMs: 60_000, suspects: 0 })).claimed).toEqual([])
    await store.settle(
      'open',
      first.claimed.map(({ lease }) => lease),
      { args: [{ delay_ms: 0 }] },
    )
    const { rows } = await db.query({
      text: 'select reconcile_lease_expiries as expiries from app.payments order by id',
    })
    expect(rows).toEqual([{ expiries: 0 }, { expiries: 2 }, { expiries: 2 }])
    const second = await store.claim({ limit: 10, leaseMs: 60_000 })
    expect(second.claimed.map(({ lease }) => lease.id)).toEqual(['1', '2'])
    await store.settle(
      'pending->done',
      second.claimed.map(({ lease }) => lease),
      { args: [{}, {}] },
    )
    const ended = await db.query({
      text: 'select status, reconcile_lease_expiries as expiries from app.payments order by id',
    })
    expect(ended.rows.slice(0, 2)).toEqual([0, 0].map((expiries) => ({ status: 'done', expiries })))
  })

  it('makes the row claimable at once every time in a table without the column', async () => {
    await declared(ONE)
    await db.query({ text: 'alter table app.payments drop reconcile_lease_expiries' })
    const table = leaseTable({
      table: 'app.payments',
      id: 'id',
      lease: {
        owner: 'reconcile_lease_owner',
        until: 'reconcile_lease_until',
        token: 'reconcile_lease_token',
      },
      claimable: "status in ('pending')",
      ...COUNTED,
    })
    const store = await openStore('dead', table)
    const claimed = async (): Promise<number> =>
      (await store.claim({ limit: 10, leaseMs: 60_000 })).claimed.length
    for (let times = 1; times <= 3; times += 1) {
      expect(await claimed()).toBe(1)
      await expire()
      expect(await claimed()).toBe(1)
      await expire()
      expect(await store.reap()).toHaveLength(1)
    }
  })

  it('delays the row by its own column for that, where the table has one', async () => {
    await db.query({
      text: `${PAYMENTS}; ${ONE};
        alter table app.payments add owner text, add until timestamptz, add expiries int, add due timestamptz default now();
        create index on app.payments (status, until, created_at, id);
        create index on app.payments (created_at, id) where status = 'pending' and expiries >= 2`,
    })
    const table = leaseTable({
      table: 'app.payments',
      id: 'id',
      lease: { owner: 'owner', until: 'until' },
      claimable: "status = 'pending'",
      availableAt: 'due',
      attempts: { expiries: 'expiries' },
      ...COUNTED,
    })
    const store = await openStore('dead', table)
    const waits: unknown[] = []
    for (let expiries = 1; expiries <= 3; expiries += 1) {
      expect((await store.claim({ limit: 10, leaseMs: 60_000 })).claimed).toHaveLength(1)
      await db.query({ text: "update app.payments set until = now() - interval '1 second'" })
      await store.reap()
      const { rows } = await db.query<{ until: Date | null; waits: number }>({
        text: 'select until, round(greatest(0, extract(epoch from due - now())))::int as waits from app.payments',
      })
      expect(rows[0]?.until).toBeNull()
      waits.push(rows[0]?.waits)
      await db.query({ text: 'update app.payments set due = now()' })
    }
    expect(waits).toEqual([0, 2, 4])
  })
})
