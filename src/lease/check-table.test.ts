import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { OWN_TABLES } from '../../test/support/statement-plans.ts'
import { messageOf } from '../errors.ts'
import { openDatabase } from '../postgres/database.ts'
import { checkTable } from './check-table.ts'
import { openLeaseStore } from './store.ts'
import { leaseTable, type LeaseTableDeclaration } from './declaration.ts'

const db = openDatabase({ url: useDatabase().url })
afterAll(async () => db.close())

/** As seed 004 has it, with the index that it asks for. */
const GOOD = `
  create schema if not exists app;
  drop table if exists app.payments cascade;
  create table app.payments (
    id uuid primary key default gen_random_uuid(),
    status text not null default 'pending',
    created_at timestamptz not null default now(),
    lease_owner text,
    lease_until timestamptz,
    lease_token bigint
  );
  create index payments_claim on app.payments (status, lease_until, created_at, id)`

const declaration = {
  table: 'app.payments',
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  outcomes: { confirmed: { status: "'confirmed'" } },
} as const satisfies LeaseTableDeclaration

async function open(changes: Partial<LeaseTableDeclaration> = {}): Promise<unknown> {
  return openLeaseStore(db, leaseTable<string>({ ...declaration, ...changes }), { owner: 'worker' })
}

beforeEach(async () => {
  await db.query({ text: GOOD })
})

it('REC-07: a table with nullable lease columns and the index of the source document fits', async () => {
  await expect(open()).resolves.toBeDefined()
})

describe('a table that does not fit its declaration', () => {
  it.each<[string, string, Partial<LeaseTableDeclaration>, readonly string[]]>([
    ['is not there', '', { table: 'app.paymentz' }, ['app.paymentz', 'no such table', '`table`']],
    [
      'is a view',
      'create or replace view app.open_payments as select * from app.payments',
      { table: 'app.open_payments' },
      ['app.open_payments', 'it is a view, not a table', 'the table underneath'],
    ],
    [
      'lacks a lease column',
      'alter table app.payments drop column lease_token',
      {},
      [
        'no column lease_token',
        '`lease.token`',
        'ALTER TABLE app.payments ADD COLUMN lease_token bigint; Or declare `lease` without `token`.',
      ],
    ],
    [
      'has a lease column of the wrong type',
      'alter table app.payments drop column lease_until, add column lease_until timestamp',
      {},
      [
        'lease_until',
        'is timestamp without time zone and must be timestamp with time zone',
        'ALTER TABLE app.payments ALTER COLUMN lease_until TYPE timestamp with time zone USING lease_until::timestamp with time zone;',
      ],
    ],
    [
      'has a token of the wrong type',
      'alter table app.payments alter column lease_token type uuid using null',
      {},
      [
        'lease_token',
        'is uuid and must be bigint',
        'DROP COLUMN lease_token, ADD COLUMN lease_token bigint;',
      ],
    ],
    [
      'lacks an order column',
      '',
      { order: ['due_at'] },
      ['no column due_at', '`order`', 'the columns are id, status'],
    ],
    [
      'lacks a column an outcome writes',
      '',
      { outcomes: { done: { set: { finished: 'true' } } } },
      ['no column finished', '`outcomes.done`'],
    ],
    [
      'lacks the time that latency is measured from',
      '',
      { createdAt: 'written_at' },
      [
        'no column written_at, which `createdAt` names',
        'ALTER TABLE app.payments ADD COLUMN written_at timestamp with time zone;',
        'Or declare the table without `createdAt`.',
      ],
    ],
    [
      'lacks the counter of attempts',
      '',
      { attempts: {} },
      [
        'no column attempts, which `attempts.column` names',
        'ALTER TABLE app.payments ADD COLUMN attempts integer;',
        'Or set `attempts.column` to false to count no attempts.',
      ],
    ],
    [
      'lacks the counter of expiries',
      '',
      { attempts: { column: false } },
      [
        'no column expiries, which `attempts.expiries` names',
        'Or set `attempts.expiries` to false to count no expiries.',
      ],
    ],
    [
      'lacks the column for the error',
      '',
      { attempts: { column: false, expiries: false } },
      [
        'no column last_error, which `attempts.error` names',
        'ALTER TABLE app.payments ADD COLUMN last_error text;',
        'Or set `attempts.error` to false to write no error.',
      ],
    ],
    [
      'has no unique key',
      'alter table app.payments drop constraint payments_pkey',
      {},
      ['nothing keeps id unique', 'ADD UNIQUE (id)'],
    ],
    [
      'has only a partial unique key',
      'alter table app.payments drop constraint payments_pkey; create unique index on app.payments (id) where id is not null',
      {},
      ['nothing keeps id unique'],
    ],
    [
      'has an id that may be null',
      'alter table app.payments drop constraint payments_pkey, add unique (id), alter column id drop not null',
      {},
      ['its column id may be null', 'ALTER COLUMN id SET NOT NULL'],
    ],
    [
      'has too short an owner',
      'alter table app.payments alter column lease_owner type varchar(20)',
      {},
      ['lease_owner holds 20 characters', 'ALTER COLUMN lease_owner TYPE text'],
    ],
    [
      'has too coarse an end of the lease',
      'alter table app.payments alter column lease_until type timestamptz(0)',
      {},
      ['lease_until keeps 0 digits of a second'],
    ],
    [
      'has no unique index on what is in flight of an ordering key',
      `alter table app.payments add column customer text;
       create index on app.payments (created_at, id) where status in ('pending', 'detected') and customer is null;
       create index on app.payments (id) where status in ('pending', 'detected') and customer is not null;
       create index on app.payments (customer, id) where customer is not null and (status in ('pending', 'detected'))`,
      {
        leased: 'lease_owner is not null',
        ordering: { key: 'customer', unfinished: "status in ('pending', 'detected')" },
      },
      [
        'nothing keeps two rows of an ordering key from being in flight',
        'CREATE UNIQUE INDEX CONCURRENTLY payments_in_flight ON app.payments (customer) WHERE lease_owner is not null;',
      ],
    ],
    [
      'has a column with a name that the statements use',
      'alter table app.payments add column ready int',
      { order: ['ready', 'id'] },
      ['column ready has a name that the kernel'],
    ],
    [
      'is declared with a predicate that is not SQL',
      '',
      { claimable: "status is 'pending'" },
      [
        `PostgreSQL refuses \`claimable\`, which is "status is 'pending'" (syntax error at or near "'pending'"). Correct \`claimable\`.`,
      ],
    ],
    [
      'is declared with an unknown column in a predicate',
      '',
      { claimable: "state = 'pending'" },
      [
        `PostgreSQL refuses \`claimable\`, which is "state = 'pending'" (column "state" does not exist)`,
        `A text in SQL has quotes of its own: { status: "'sent'" }.`,
      ],
    ],
    [
      'is declared with several fragments that are not SQL',
      '',
      { claimable: 'status =', outcomes: { done: { status: 'paid' }, dead: { status: "'dead'" } } },
      [
        `  - PostgreSQL refuses \`claimable\`, which is 'status =' (`,
        `  - PostgreSQL refuses \`outcomes.done.status\`, which is 'paid' (column "paid" does not exist)`,
      ],
    ],
    [
      'lacks a column of almost that name',
      '',
      { order: ['createdAt', 'id'] },
      ['no column "createdAt", which `order` names', 'Correct `order`: did you mean created_at?'],
    ],
  ])('a table that %s is refused, with the remedy', async (_, change, declared, parts) => {
    if (change !== '') await db.query({ text: change })
    const refusal = await open(declared).then(
      () => undefined,
      (error: unknown) => error,
    )
    expect(refusal).toMatchObject({ code: 'LEASE_TABLE_MISMATCH' })
    for (const part of parts) expect(String(refusal)).toContain(part)
  })

  it.each<[string, string, Partial<LeaseTableDeclaration>, readonly string[]]>([
    [
      'has an index for the claim in another order',
      `drop index app.payments_claim; create index on app.payments (id) where status in ('pending', 'detected');
       create index on app.payments (id) where lease_owner is not null`,
      {},
      ['no index serves the claim'],
    ],
    [
      'has no index for the claim',
      'drop index app.payments_claim; create index on app.payments (id) where lease_owner is not null',
      {},
      [
        'no index serves the claim',
        `CREATE INDEX CONCURRENTLY payments_claim ON app.payments (created_at, id) WHERE status in ('pending', 'detected');`,
      ],
    ],
    [
      'has an invalid index for the claim',
      `update pg_index set indisvalid = false where indexrelid = 'app.payments_claim'::regclass;
       create index on app.payments (id) where lease_owner is not null`,
      {},
      ['no index serves the claim'],
    ],
    [
      'has no index for the reaper',
      `drop index app.payments_claim; create index on app.payments (created_at, id) where status in ('pending', 'detected')`,
      {},
      [
        'no index serves the reaper',
        `CREATE INDEX CONCURRENTLY payments_leased ON app.payments (id) WHERE lease_owner IS NOT NULL;`,
      ],
    ],
    [
      'has no index for the reaper but the one for the claim, which every leased row is in too',
      `drop index app.payments_claim; create index on app.payments (created_at, id) where status in ('pending', 'detected')`,
      { leased: "status in ('pending', 'detected') and lease_owner is not null" },
      [
        'no index serves the reaper',
        "payments_leased ON app.payments (id) WHERE status in ('pending', 'detected') and lease_owner is not null;",
      ],
    ],
    [
      'has no index for the reaper but one of free rows, whose predicate names the owner',
      `drop index app.payments_claim;
       create index on app.payments (created_at, id) where status in ('pending', 'detected');
       create index on app.payments (created_at, id) where status in ('pending', 'detected') and lease_owner is null`,
      {},
      ['no index serves the reaper'],
    ],
    [
      'has no index for the heads of ordering keys',
      `alter table app.payments add column customer text;
       create index on app.payments (created_at, id) where status in ('pending', 'detected') and customer is null;
       create index on app.payments (id) where status in ('pending', 'detected') and customer is not null;
       create unique index on app.payments (customer) where lease_owner is not null`,
      {
        leased: 'lease_owner is not null',
        ordering: { key: 'customer', unfinished: "status in ('pending', 'detected')" },
      },
      [
        'no index serves the search for the head of an ordering key',
        `CREATE INDEX CONCURRENTLY payments_keys ON app.payments (customer, id) WHERE customer IS NOT NULL AND (status in ('pending', 'detected'));`,
      ],
    ],
    [
      'has no index for the walk of the ordering keys of its groups',
      `alter table app.payments add column customer text, add column shop text;
       create index on app.payments (shop, created_at, id) where status in ('pending', 'detected') and customer is null;
       create unique index on app.payments (shop, customer) where lease_owner is not null`,
      {
        leased: 'lease_owner is not null',
        ordering: { key: 'customer', unfinished: "status in ('pending', 'detected')" },
        groups: 'shop',
      },
      [
        'no index serves the search for the head of an ordering key',
        'ON app.payments (shop, customer, id) WHERE customer IS NOT NULL',
      ],
    ],
    [
      'has no index for the rows of ordering keys in the order in which they become due',
      `alter table app.payments add column customer text;
       create index on app.payments (created_at, id) where status in ('pending', 'detected') and customer is null;
       create index on app.payments (customer, id) where customer is not null and (status in ('pending', 'detected'));
       create unique index on app.payments (customer) where lease_owner is not null`,
      {
        leased: 'lease_owner is not null',
        ordering: { key: 'customer', unfinished: "status in ('pending', 'detected')" },
      },
      [
        'no index serves the claim by ordering key',
        `CREATE INDEX CONCURRENTLY payments_arrivals ON app.payments (id) WHERE (status in ('pending', 'detected')) AND customer IS NOT NULL;`,
      ],
    ],
    [
      'has no index for suspects',
      `drop index app.payments_claim;
       alter table app.payments add column expiries int;
       create index on app.payments (created_at, id) where status in ('pending', 'detected');
       create index on app.payments (id) where lease_owner is not null`,
      { attempts: { column: false, error: false } },
      [
        'no index serves the search for suspects',
        `CREATE INDEX CONCURRENTLY payments_suspects ON app.payments (created_at, id) WHERE (status in ('pending', 'detected')) AND coalesce(expiries, 0) >= 2;`,
      ],
    ],
  ])(
    'a table that %s is accepted, with a warning that has the statement',
    async (_, change, declared, parts) => {
      await db.query({ text: change })
      const warnings = await warningsOf(declared)
      for (const part of parts) expect(warnings).toContain(part)
      await runSuggested(warnings)
      await expect(warningsOf(declared)).resolves.toBe('')
    },
  )

  it('everything that does not fit is reported at once: first the columns, then the indexes', async () => {
    await db.query({
      text: 'drop index app.payments_claim; alter table app.payments drop column lease_token, alter lease_owner type varchar(9)',
    })
    const declared = { attempts: { error: false }, availableAt: 'due_at' } as const
    const columns = await refusalOf(declared)
    expect(columns.match(/^  - .*?(?=\. Run: )/gm)).toEqual([
      '  - it has no column lease_token, which `lease.token` names',
      '  - it has no column due_at, which `availableAt` names',
      '  - it has no column attempts, which `attempts.column` names',
      '  - it has no column expiries, which `attempts.expiries` names',
      '  - its column lease_owner holds 9 characters, which the id of a worker may exceed',
    ])
    await runSuggested(columns)
    const indexes = await warningsOf(declared)
    expect(indexes.match(/no index serves [\w ]+/g)).toEqual([
      'no index serves the claim',
      'no index serves the search for suspects',
      'no index serves the reaper',
    ])
    await runSuggested(indexes)
    await expect(warningsOf(declared)).resolves.toBe('')
  })

  it('every wrong fragment of SQL is reported at once, each of them once', async () => {
    const declared = { claimable: "state = 'pending'", outcomes: { done: { status: 'sent' } } }
    const refusal = await refusalOf(declared)
    expect(refusal.match(/column "\w+" does not exist/g)).toEqual([
      'column "state" does not exist',
      'column "sent" does not exist',
    ])
  })

  it.each([
    ['lease_token', 'uuid'],
    ['lease_token', 'text'],
    ['lease_token', 'integer'],
    ['lease_token', 'boolean'],
    ['lease_owner', 'uuid'],
    ['lease_owner', 'bigint'],
    ['lease_until', 'timestamp'],
    ['lease_until', 'date'],
    ['lease_until', 'text'],
    ['lease_until', 'bigint'],
    ['attempts', 'text'],
    ['attempts', 'numeric'],
    ['attempts', 'uuid'],
  ])('the statement for a column %s of type %s can be pasted, and mends it', async (column, type) => {
    const declared = { attempts: { expiries: false, error: false } } as const
    await db.query({ text: 'alter table app.payments add column attempts int' })
    await db.query({ text: `drop index app.payments_claim; alter table app.payments drop column ${column}` })
    await db.query({
      text: `alter table app.payments add column ${column} ${type};
        create index on app.payments (created_at, id) where status in ('pending', 'detected');
        create index on app.payments (id) where lease_owner is not null;
        insert into app.payments default values`,
    })
    await runSuggested(await refusalOf(declared))
    await expect(open(declared)).resolves.toBeDefined()
  })
})

async function refusalOf(declared: Partial<LeaseTableDeclaration>): Promise<string> {
  return open(declared).then(() => 'it fits', messageOf)
}

async function warningsOf(declared: Partial<LeaseTableDeclaration>): Promise<string> {
  const table = leaseTable<string>({ ...declaration, ...declared })
  const { slow } = await checkTable(db, table)
  return slow.map(({ what, remedy }) => `${what}. ${remedy}`).join('\n')
}

/** Runs every statement that a refusal suggests, as a person would who pastes them. */
async function runSuggested(refusal: string): Promise<void> {
  const statements = [...refusal.matchAll(/Run: ([^;]*;)/g)].map(([, statement = '']) => statement)
  expect(statements, refusal).not.toEqual([])
  for (const text of statements) await db.query({ text })
}

it('an index over some of the claimed rows and no claimable ones serves the reaper', async () => {
  await db.query({
    text: `alter table app.payments add column kind text not null default 'card';
      drop index app.payments_claim;
      create index on app.payments (created_at, id) where status = 'pending';
      create index on app.payments (id) where status = 'claimed'`,
  })
  const leased = "status = 'claimed' and kind in ('card', 'transfer')"
  await expect(warningsOf({ claimable: "status = 'pending'", leased, onExpiry: 'reap' })).resolves.toBe('')
})

it('an index without the rows that no claim or reap looks for serves it', async () => {
  await db.query({
    text: `alter table app.payments add column due_at timestamptz;
      drop index app.payments_claim;
      create index on app.payments (due_at, id) where status = 'pending' and due_at is not null;
      create index on app.payments (lease_until) where lease_until is not null`,
  })
  const declared = { claimable: "status = 'pending'", leased: "status = 'claimed'", availableAt: 'due_at' }
  await expect(warningsOf({ ...declared, order: ['due_at', 'id'], onExpiry: 'reap' })).resolves.toBe('')
})

it('an index over a function that the role may not call is not one that serves it, and nothing else', async () => {
  await db.query({
    text: `drop role if exists fit_caller; create role fit_caller;
      grant usage on schema app to fit_caller; grant select, update on app.payments to fit_caller;
      create or replace function app.is_open(text) returns boolean language sql immutable as $$ select $1 = 'pending' $$;
      revoke execute on function app.is_open(text) from public;
      drop index app.payments_claim;
      create index on app.payments (created_at, id) where app.is_open(status);
      create index on app.payments (id) where lease_owner is not null`,
  })
  const asCaller: typeof db = {
    ...db,
    transaction: async (work) =>
      db.transaction(async (tx) => {
        await tx.query({ text: 'set local role fit_caller' })
        return work(tx)
      }),
  }
  const { slow } = await checkTable(asCaller, leaseTable(declaration))
  await db.query({
    text: 'drop function app.is_open cascade; drop owned by fit_caller; drop role fit_caller',
  })
  expect(slow.map(({ what }) => what)).toEqual(['no index serves the claim, which would read every row'])
})

it('an empty owner is refused', async () => {
  await expect(openLeaseStore(db, leaseTable(declaration), { owner: ' ' })).rejects.toMatchObject({
    code: 'SETTING_INVALID',
  })
})

it('a partitioned table fits, and its suggested index can be built', async () => {
  await db.query({
    text: `drop table if exists app.parts;
      create table app.parts (id bigint not null, status text not null default 'pending', created_at timestamptz not null default now(),
        lease_owner text, lease_until timestamptz, lease_token bigint, primary key (id)) partition by range (id);
      create table app.parts_1 partition of app.parts for values from (0) to (100);
      create table app.parts_2 partition of app.parts for values from (100) to (200);
      create index on app.parts (id) where lease_owner is not null;
      insert into app.parts (id) values (1), (101)`,
  })
  await runSuggested(await warningsOf({ table: 'app.parts' }))
  await expect(warningsOf({ table: 'app.parts' })).resolves.toBe('')
  const table = leaseTable({ ...declaration, table: 'app.parts' })
  const store = await openLeaseStore(db, table, { owner: 'worker' })
  const { claimed } = await store.claim({ limit: 5, leaseMs: 60_000 })
  expect(claimed.map(({ lease }) => lease.id)).toEqual(['1', '101'])
  expect(
    (
      await store.settle(
        'confirmed',
        claimed.map(({ lease }) => lease),
      )
    ).ended,
  ).toHaveLength(2)
})

it('a role that may only read, and transactions that are not READ COMMITTED, are refused for what they are', async () => {
  await db.query({
    text: 'drop role if exists fit_reader; create role fit_reader; grant usage on schema app to fit_reader; grant select on app.payments to fit_reader',
  })
  const asReader: typeof db = {
    ...db,
    transaction: async (work) =>
      db.transaction(async (tx) => {
        await tx.query({ text: 'set local role fit_reader' })
        return work(tx)
      }),
  }
  await expect(openLeaseStore(asReader, leaseTable(declaration), { owner: 'worker' })).rejects.toThrow(
    /GRANT SELECT, UPDATE/,
  )
  await db.query({ text: 'drop owned by fit_reader; drop role fit_reader' })
  const repeatable: typeof db = {
    ...db,
    transaction: async (work) =>
      db.transaction(async (tx) => {
        await tx.query({ text: 'set transaction isolation level repeatable read' })
        return work(tx)
      }),
  }
  await expect(openLeaseStore(repeatable, leaseTable(declaration), { owner: 'worker' })).rejects.toThrow(
    /repeatable read.*default_transaction_isolation = 'read committed'/,
  )
})

it('an index that PostgreSQL does not use yet, because an older transaction is still open, counts as one', async () => {
  await db.query({
    text: 'drop index app.payments_claim; insert into app.payments (status) values (default)',
  })
  await db.transaction(async (older) => {
    await older.query({ text: 'select pg_current_xact_id()' })
    // As a migration does it: the new version of the row is on the same page, and the index does not have the old one.
    await db.transaction(async (tx) => {
      await tx.query({ text: "update app.payments set status = 'detected'" })
      await tx.query({
        text: `create index on app.payments (created_at, id) where status in ('pending', 'detected');
          create index on app.payments (id) where lease_owner is not null`,
      })
    })
    await expect(warningsOf({})).resolves.toBe('')
  })
  await expect(warningsOf({})).resolves.toBe('')
})

it.each(OWN_TABLES)('$table.name lacks no index', async ({ table }) => {
  expect((await checkTable(db, table)).slow).toEqual([])
})
