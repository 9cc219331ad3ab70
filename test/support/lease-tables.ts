/** Lease tables of different kinds, for the conformance suite and the tests of the kernel. */
import { leaseTable, rowId, type LeaseTable } from '../../src/lease/index.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { LeaseSubject } from '../../src/testing/index.ts'

export interface Specimen {
  readonly name: string
  readonly ddl: string
  readonly table: LeaseTable
  readonly bucket?: number
  readonly groups?: readonly string[]
  /** Inserts $1 rows and returns their keys in claim order. */
  readonly insert: string
  readonly final: LeaseSubject['final']
}

/** Like an outbox: a claim sets `available_at` to null, so that one partial index has all pending rows. */
export const events: Specimen = {
  name: 'bigint id, reaped',
  ddl: `
    create table public.events (
      id bigint generated always as identity primary key,
      payload jsonb not null default '{}',
      status text not null default 'PENDING',
      attempts int not null default 0,
      last_error text,
      available_at timestamptz default now(),
      claimed_by text,
      locked_until timestamptz,
      lock_token bigint not null default 0
    );
    create index events_pending on public.events (available_at, id) where available_at is not null;
    create index events_claimed on public.events (id) where status = 'CLAIMED'`,
  table: leaseTable({
    table: 'public.events',
    lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
    claimable: 'available_at is not null',
    availableAt: 'available_at',
    onExpiry: 'reap',
    leased: "status = 'CLAIMED'",
    attempts: { expiries: false },
    writes: {
      claim: { status: "'CLAIMED'", available_at: 'null' },
      release: { status: "'PENDING'", available_at: "now() + $delay_ms * interval '1 millisecond'" },
    },
    outcomes: {
      done: { status: "'PUBLISHED'" },
      retry: { status: "'PENDING'" },
    },
  }),
  insert: `insert into public.events (payload) select jsonb_build_object('n', n) from generate_series(1, $1::int) as n
    returning id::text as k1`,
  final: { outcome: 'done' },
}

/** Like a reconciled table of the user's: uuid key, an expired lease is claimable, nullable lease columns. */
export const payments: Specimen = {
  name: 'uuid id, expired leases claimable',
  ddl: `
    create table public.payments (
      id uuid primary key default gen_random_uuid(),
      status text not null default 'pending',
      created_at timestamptz not null default clock_timestamp(),
      tries smallint not null default 0,
      note text,
      lease_owner varchar(200),
      lease_until timestamptz,
      lease_token bigint
    );
    create index on public.payments (status, lease_until, created_at, id)`,
  table: leaseTable({
    table: 'public.payments',
    claimable: "status in ('pending', 'detected')",
    order: ['created_at', 'id'],
    attempts: { column: 'tries', expiries: false, error: false },
    outcomes: {
      confirmed: { set: { status: "'confirmed'", note: '$note' }, args: { note: 'text' } },
    },
    columns: ['id', 'status', 'created_at', 'tries'],
  }),
  insert: `with fresh as (
      insert into public.payments (created_at)
      select clock_timestamp() + n * interval '1 microsecond' from generate_series(1, $1::int) as n
      returning id, created_at)
    select id::text as k1 from fresh order by created_at, id`,
  final: { outcome: 'confirmed', args: { note: `paid {"in": 'full'}, \\ thanks` } },
}

/** Two key columns and a bucket, as a distributed table has them. */
export const chunks: Specimen = {
  name: 'composite key with bucket',
  ddl: `
    create table public.chunks (
      bucket smallint not null,
      matrix text not null,
      hash text not null,
      due int not null,
      done boolean not null default false,
      attempts bigint not null default 0,
      owner text,
      until timestamptz,
      token bigint not null default 0,
      primary key (bucket, matrix, hash)
    );
    create index on public.chunks (bucket, due, matrix, hash) where not done;
    create index on public.chunks (bucket, matrix, hash) where owner is not null;
    insert into public.chunks (bucket, matrix, hash, due) values (1, 'another', 'bucket', 0)`,
  table: leaseTable({
    table: 'public.chunks',
    id: ['matrix', 'hash'],
    bucket: 'bucket',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'not done',
    order: ['due', 'matrix', 'hash'],
    attempts: { expiries: false, error: false },
    outcomes: { done: { done: 'true' } },
  }),
  bucket: 3,
  insert: `with fresh as (
      insert into public.chunks (bucket, matrix, hash, due)
      select 3, 'matrix ' || n % 7, md5(random()::text) || '","' || n, n from generate_series(1, $1::int) as n
      returning matrix, hash, due)
    select matrix as k1, hash as k2 from fresh order by due, matrix, hash`,
  final: { outcome: 'done' },
}

/** No token column: the token is carried inside the owner value. A descending order: claims have no cursor. */
export const tasks: Specimen = {
  name: 'no token column',
  ddl: `
    create table public.tasks (
      id int generated always as identity primary key,
      priority int not null default 0,
      finished_at timestamptz,
      locked_by text,
      locked_until timestamptz
    );
    create index on public.tasks (priority desc, id) where finished_at is null;
    create index on public.tasks (id) where locked_by is not null`,
  table: leaseTable({
    table: { schema: 'public', name: 'tasks' },
    lease: { owner: 'locked_by', until: 'locked_until' },
    claimable: 'finished_at is null',
    order: ['priority desc', 'id'],
    outcomes: { finished: { finished_at: 'now()' } },
  }),
  insert: `with fresh as (
      insert into public.tasks (priority) select $1::int - n from generate_series(1, $1::int) as n returning id, priority)
    select id::text as k1 from fresh order by priority desc, id`,
  final: { outcome: 'finished' },
}

/** Names that must be quoted. */
export const odd: Specimen = {
  name: 'unusual quoted names',
  ddl: `
    create schema "Odd ""Schema"".x";
    create table "Odd ""Schema"".x"."select * from;--" (
      "the id" bigint generated always as identity primary key,
      "desc" text not null default 'open',
      "$1" timestamptz default now(),
      "Ünïcode.column" text,
      "until'" timestamptz,
      "@ token" bigint not null default 0,
      "times ""tried""" int not null default 0
    );
    create index on "Odd ""Schema"".x"."select * from;--" ("$1", "the id") where "$1" is not null;
    create index on "Odd ""Schema"".x"."select * from;--" ("the id") where "desc" = 'taken'`,
  table: leaseTable({
    table: { schema: 'Odd "Schema".x', name: 'select * from;--' },
    id: 'the id',
    lease: { owner: 'Ünïcode.column', until: "until'", token: '@ token' },
    claimable: '"$1" is not null',
    availableAt: '$1',
    onExpiry: 'reap',
    leased: `"desc" = 'taken'`,
    attempts: { column: 'times "tried"', expiries: false, error: false },
    writes: {
      claim: { desc: "'taken'", $1: 'null' },
      release: { desc: "'open'", $1: 'now()' },
    },
    outcomes: { closed: { desc: "'closed'" } },
  }),
  insert: `insert into "Odd ""Schema"".x"."select * from;--" ("$1") select now() from generate_series(1, $1::int)
    returning "the id"::text as k1`,
  final: { outcome: 'closed' },
}

/** Like an outbox with ordering keys. The rows of the conformance suite have keys of their own, or none. */
export const ordered: Specimen = {
  name: 'ordered by key, reaped, with expiries',
  ddl: `
    create table public.ordered_jobs (
      id bigint generated by default as identity primary key,
      customer text,
      parked boolean not null default false,
      status text not null default 'PENDING',
      attempts int not null default 0,
      expiries int not null default 0,
      error text,
      payload text not null default '',
      available_at timestamptz not null default now(),
      owner text,
      until timestamptz,
      token bigint not null default 0
    );
    create index ordered_jobs_pending on public.ordered_jobs (available_at, id)
      where status = 'PENDING' and customer is null and expiries < 2;
    create index ordered_jobs_suspects on public.ordered_jobs (available_at, id)
      where status = 'PENDING' and expiries >= 2;
    create index ordered_jobs_arrivals on public.ordered_jobs (available_at, id)
      where status = 'PENDING' and customer is not null;
    create index ordered_jobs_keys on public.ordered_jobs (customer, id)
      where customer is not null and (status in ('PENDING', 'CLAIMED') or parked);
    create unique index ordered_jobs_in_flight on public.ordered_jobs (customer) include (id) where status = 'CLAIMED'`,
  table: leaseTable({
    table: 'public.ordered_jobs',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'PENDING'",
    availableAt: 'available_at',
    onExpiry: 'reap',
    leased: "status = 'CLAIMED'",
    attempts: { max: 10, error: 'error' },
    ordering: { key: 'customer', unfinished: "status in ('PENDING', 'CLAIMED') or parked" },
    bytes: 'octet_length(payload)',
    writes: {
      claim: { status: "'CLAIMED'" },
      release: { status: "'PENDING'", available_at: "now() + $delay_ms * interval '1 millisecond'" },
    },
    outcomes: {
      done: { status: "'DONE'" },
      dead: { status: "'DEAD'" },
      park: { status: "'DEAD'", parked: 'true' },
    },
  }),
  insert: `insert into public.ordered_jobs (customer)
    select case when n % 2 = 0 then 'customer ' || n end from generate_series(1, $1::int) as n
    returning id::text as k1`,
  final: { outcome: 'done' },
}

/** Like webhook deliveries: endpoints are groups, rows may have ordering keys, and an expired lease is claimable. */
export const grouped: Specimen = {
  name: 'in groups, ordered by key, expired leases claimable',
  ddl: `
    create table public.grouped_jobs (
      id bigint generated always as identity primary key,
      endpoint text not null,
      customer text,
      status text not null default 'pending',
      attempts int not null default 0,
      expiries int not null default 0,
      payload text not null default '',
      next_attempt_at timestamptz not null default now(),
      owner text,
      until timestamptz,
      token bigint not null default 0
    );
    create index grouped_jobs_pending on public.grouped_jobs (endpoint, next_attempt_at, id)
      where status = 'pending' and customer is null and expiries < 2;
    create index grouped_jobs_suspects on public.grouped_jobs (endpoint, next_attempt_at, id)
      where status = 'pending' and expiries >= 2;
    create index grouped_jobs_keys on public.grouped_jobs (endpoint, customer, id)
      where status = 'pending' and customer is not null;
    create unique index grouped_jobs_in_flight on public.grouped_jobs (endpoint, customer) where owner is not null`,
  table: leaseTable({
    table: 'public.grouped_jobs',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'pending'",
    availableAt: 'next_attempt_at',
    leased: 'owner is not null',
    attempts: { max: 10, error: false },
    ordering: { key: 'customer', unfinished: "status = 'pending'" },
    groups: 'endpoint',
    bytes: 'octet_length(payload)',
    writes: { release: { next_attempt_at: "now() + $delay_ms * interval '1 millisecond'" } },
    outcomes: {
      done: { status: "'delivered'" },
      dead: { status: "'failed'" },
    },
  }),
  groups: ['a', 'b'],
  insert: `insert into public.grouped_jobs (endpoint, customer)
    select case when n * 2 <= $1::int then 'a' else 'b' end, case when n % 2 = 0 then 'customer ' || n end
    from generate_series(1, $1::int) as n
    returning id::text as k1`,
  final: { outcome: 'done' },
}

export const specimens: readonly Specimen[] = [events, payments, chunks, tasks, odd, ordered, grouped]

/** Makes the table a subject of the conformance suite. */
export function subjectOf(db: Database, specimen: Specimen): LeaseSubject & { create(): Promise<void> } {
  const { table, final, bucket, groups } = specimen
  const target = `"${table.schema.replaceAll('"', '""')}"."${table.name.replaceAll('"', '""')}"`
  return {
    db,
    table,
    final,
    ...(bucket === undefined ? {} : { bucket }),
    ...(groups === undefined ? {} : { groups }),
    create: async () => {
      await db.query({ text: specimen.ddl })
    },
    empty: async () => {
      const rows = `delete from ${target} ${bucket === undefined ? '' : `where "${table.bucket}" = ${bucket}`}`
      await db.query({ text: rows })
    },
    insert: async (count) => {
      const { rows } = await db.query<{ k1: string; k2?: string }>({ text: specimen.insert, values: [count] })
      return rows.map(({ k1, k2 }) => (k2 === undefined ? k1 : rowId(k1, k2)))
    },
  }
}
