/** Tables as different as users' tables are; the conformance suite and the kernel's tests run over them. */
import { leaseTable, rowId, type LeaseTable } from '../../src/lease/index.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { LeaseSubject } from '../../src/testing/index.ts'

export interface Specimen {
  readonly name: string
  readonly ddl: string
  readonly table: LeaseTable
  readonly bucket?: number
  readonly lanes?: readonly string[]
  /** Inserts $1 rows and returns their keys, in the order in which they are due. */
  readonly insert: string
  /** Removes all rows, where a DELETE is not enough. */
  readonly empty?: string
  readonly final: LeaseSubject['final']
}

/** Like an outbox: the claim empties `available_at`, so that one partial index knows what is pending. */
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
    id: 'id',
    lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
    claimable: 'available_at is not null',
    availableAt: 'available_at',
    order: ['available_at', 'id'],
    onExpiry: 'reap',
    held: "status = 'CLAIMED'",
    attempts: 'attempts',
    writes: {
      claim: { status: "'CLAIMED'", available_at: 'null' },
      release: { status: "'PENDING'", available_at: "now() + $delay_ms * interval '1 millisecond'" },
      reap: { status: "'PENDING'", available_at: 'now()', last_error: "'the lease expired'" },
    },
    outcomes: {
      done: { set: { status: "'PUBLISHED'" } },
      retry: {
        set: {
          status: "'PENDING'",
          attempts: 'attempts + 1',
          last_error: '$error',
          available_at: "now() + $delay_ms * interval '1 millisecond'",
        },
        args: { error: 'text', delay_ms: 'float8' },
      },
    },
  }),
  insert: `insert into public.events (payload) select jsonb_build_object('n', n) from generate_series(1, $1::int) as n
    returning id::text as k1`,
  final: { outcome: 'done' },
}

/** Like a reconciled table of the user's: uuid key, an expired lease is claimable, nullable lease columns. */
const payments: Specimen = {
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
    id: 'id',
    lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
    claimable: "status in ('pending', 'detected')",
    order: ['created_at', 'id'],
    onExpiry: 'claimable',
    attempts: 'tries',
    outcomes: {
      confirmed: { set: { status: "'confirmed'", note: '$note' }, args: { note: 'text' } },
    },
    columns: ['id', 'status', 'created_at'],
  }),
  insert: `with fresh as (
      insert into public.payments (created_at)
      select clock_timestamp() + n * interval '1 microsecond' from generate_series(1, $1::int) as n
      returning id, created_at)
    select id::text as k1 from fresh order by created_at, id`,
  final: { outcome: 'confirmed', args: { note: `paid {"in": 'full'}, \\ thanks` } },
}

/** Two key columns and a bucket, as a distributed table has them. */
const chunks: Specimen = {
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
    onExpiry: 'claimable',
    attempts: 'attempts',
    outcomes: { done: { set: { done: 'true' } } },
  }),
  bucket: 3,
  insert: `with fresh as (
      insert into public.chunks (bucket, matrix, hash, due)
      select 3, 'matrix ' || n % 7, md5(random()::text) || '","' || n, n from generate_series(1, $1::int) as n
      returning matrix, hash, due)
    select matrix as k1, hash as k2 from fresh order by due, matrix, hash`,
  final: { outcome: 'done' },
}

/** No token column: the token travels inside the owner value. A descending order: the claim keeps no place. */
const tasks: Specimen = {
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
    id: 'id',
    lease: { owner: 'locked_by', until: 'locked_until' },
    claimable: 'finished_at is null',
    order: ['priority desc', 'id'],
    onExpiry: 'claimable',
    outcomes: { finished: { set: { finished_at: 'now()' } } },
  }),
  insert: `with fresh as (
      insert into public.tasks (priority) select $1::int - n from generate_series(1, $1::int) as n returning id, priority)
    select id::text as k1 from fresh order by priority desc, id`,
  final: { outcome: 'finished' },
}

/** Names that only quoting makes possible. */
const odd: Specimen = {
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
    order: ['$1', { column: 'the id' }],
    onExpiry: 'reap',
    held: `"desc" = 'taken'`,
    attempts: 'times "tried"',
    writes: {
      claim: { desc: "'taken'", $1: 'null' },
      release: { desc: "'open'", $1: 'now()' },
      reap: { desc: "'open'", $1: 'now()' },
    },
    outcomes: { closed: { set: { desc: "'closed'" } } },
  }),
  insert: `insert into "Odd ""Schema"".x"."select * from;--" ("$1") select now() from generate_series(1, $1::int)
    returning "the id"::text as k1`,
  final: { outcome: 'closed' },
}

/** Rows that share a key stand in line. Those of the conformance suite have keys of their own, or none. */
export const lines: Specimen = {
  name: 'in lines by an ordering key',
  ddl: `
    create table public.line_jobs (
      id bigint generated always as identity primary key,
      customer text,
      behind boolean not null default false,
      parked boolean not null default false,
      status text not null default 'PENDING',
      attempts int not null default 0,
      available_at timestamptz default now(),
      owner text,
      until timestamptz,
      token bigint not null default 0
    );
    create index line_jobs_pending on public.line_jobs (available_at, id) where available_at is not null and not behind;
    create unique index line_jobs_in_flight on public.line_jobs (customer) where status = 'CLAIMED';
    create index line_jobs_lines on public.line_jobs (customer, (status <> 'CLAIMED'), id)
      where customer is not null and (status in ('PENDING', 'CLAIMED') or parked)`,
  table: leaseTable({
    table: 'public.line_jobs',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'available_at is not null',
    availableAt: 'available_at',
    order: ['available_at', 'id'],
    onExpiry: 'reap',
    held: "status = 'CLAIMED'",
    attempts: 'attempts',
    ordering: { key: 'customer', behind: 'behind', waitedFor: "status in ('PENDING', 'CLAIMED') or parked" },
    writes: {
      claim: { status: "'CLAIMED'", available_at: 'null' },
      release: { status: "'PENDING'", available_at: "now() + $delay_ms * interval '1 millisecond'" },
      reap: {
        status: "case when attempts >= 2 then 'DEAD' else 'PENDING' end",
        available_at: 'case when attempts >= 2 then null else now() end',
      },
    },
    outcomes: {
      done: { set: { status: "'DONE'" } },
      retry: {
        set: {
          status: "'PENDING'",
          attempts: 'attempts + 1',
          available_at: "now() + $delay_ms * interval '1 millisecond'",
        },
        args: { delay_ms: 'float8' },
      },
      park: { set: { status: "'DEAD'", parked: 'true' } },
    },
  }),
  insert: `insert into public.line_jobs (customer)
    select case when n % 2 = 0 then 'customer ' || n end from generate_series(1, $1::int) as n
    returning id::text as k1`,
  final: { outcome: 'done' },
}

/** Like webhook deliveries: each endpoint is a lane, keys may be in line, and an expired lease is claimable. */
export const lanes: Specimen = {
  name: 'in lanes, and in lines, expired leases claimable',
  ddl: `
    create table public.lane_jobs (
      id bigint generated always as identity primary key,
      endpoint text not null,
      line text,
      behind boolean not null default false,
      status text not null default 'pending',
      attempts int not null default 0,
      next_attempt_at timestamptz not null default now(),
      owner text,
      until timestamptz,
      token bigint not null default 0
    );
    create index lane_jobs_pending on public.lane_jobs (endpoint, next_attempt_at, id) where status = 'pending' and not behind;
    create index lane_jobs_leased on public.lane_jobs (id) where owner is not null;
    create unique index lane_jobs_in_flight on public.lane_jobs (line) where owner is not null and line is not null;
    create index lane_jobs_lines on public.lane_jobs (line, (not (status = 'pending' and owner is not null)), id)
      where line is not null and status = 'pending'`,
  table: leaseTable({
    table: 'public.lane_jobs',
    id: 'id',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: "status = 'pending'",
    availableAt: 'next_attempt_at',
    order: ['next_attempt_at', 'id'],
    onExpiry: 'claimable',
    held: "status = 'pending' and owner is not null",
    attempts: 'attempts',
    ordering: { key: 'line', behind: 'behind', waitedFor: "status = 'pending'" },
    lanes: 'endpoint',
    writes: { release: { next_attempt_at: "now() + $delay_ms * interval '1 millisecond'" } },
    outcomes: {
      done: { set: { status: "'delivered'" } },
      retry: {
        set: { attempts: 'attempts + 1', next_attempt_at: "now() + $delay_ms * interval '1 millisecond'" },
        args: { delay_ms: 'float8' },
      },
    },
  }),
  lanes: ['a', 'b'],
  insert: `insert into public.lane_jobs (endpoint, line)
    select case when n * 2 <= $1::int then 'a' else 'b' end, case when n % 2 = 0 then 'line ' || n end
    from generate_series(1, $1::int) as n
    returning id::text as k1`,
  final: { outcome: 'done' },
}

/** No index knows what is leased: claims are noted beside the table. A key of texts, in buckets. */
export const noted: Specimen = {
  name: 'claims noted beside the table',
  ddl: `
    create table public.parcels (
      shard int not null,
      code text not null,
      sent boolean not null default false,
      free_at timestamptz default now(),
      attempts int not null default 0,
      owner text,
      until timestamptz,
      token bigint not null default 0,
      claim bigint,
      primary key (shard, code)
    ) with (fillfactor = 50);
    create index parcels_free on public.parcels (shard, free_at, code) where free_at is not null;
    create table public.parcel_claims (
      shard int not null,
      id bigint generated always as identity,
      rows text[] not null,
      primary key (shard, id)
    )`,
  table: leaseTable({
    table: 'public.parcels',
    id: 'code',
    bucket: 'shard',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'free_at is not null',
    availableAt: 'free_at',
    order: ['free_at', 'code'],
    onExpiry: 'reap',
    attempts: 'attempts',
    notes: { table: 'public.parcel_claims', column: 'claim' },
    writes: {
      claim: { free_at: 'null' },
      release: { free_at: "now() + $delay_ms * interval '1 millisecond'" },
      reap: { free_at: 'now()' },
    },
    outcomes: { sent: { set: { sent: 'true' } } },
  }),
  bucket: 4,
  insert: `with fresh as (
      insert into public.parcels (shard, code)
      select 4, '"parcel", ' || lpad(n::text, 8, '0') || clock_timestamp() from generate_series(1, $1::int) as n
      returning code)
    select code as k1 from fresh order by code`,
  final: { outcome: 'sent' },
}

/** No index knows what is claimable: triggers write it down in bundles of uuids beside the table. */
export const bundled: Specimen = {
  name: 'claimable rows in bundles beside the table',
  ddl: `
    create table public.postcards (
      code uuid primary key default gen_random_uuid(),
      sent boolean not null default false,
      free_at timestamptz default now(),
      attempts int not null default 0,
      owner text,
      until timestamptz,
      token bigint not null default 0
    ) with (fillfactor = 50);
    create index postcards_leased on public.postcards (code) where owner is not null;
    create table public.postcard_bundles (
      id bigint generated always as identity primary key,
      at timestamptz not null,
      rows uuid[] not null
    );
    create index postcard_bundles_due on public.postcard_bundles (at, id);
    create function public.bundle_postcards() returns trigger language plpgsql as $$
    begin
      insert into public.postcard_bundles (at, rows)
      select free_at, array_agg(code order by place) from (
        select free_at, code, row_number() over () as place from written where free_at is not null
      ) as free group by free_at, place / 50 order by min(place);
      return null;
    end $$;
    create trigger postcards_written after insert on public.postcards referencing new table as written
      for each statement execute function public.bundle_postcards();
    create function public.bundle_postcard() returns trigger language plpgsql as $$
    begin
      insert into public.postcard_bundles (at, rows) values (new.free_at, array[new.code]);
      return null;
    end $$;
    create trigger postcards_freed after update on public.postcards for each row
      when (new.free_at is not null and new.free_at is distinct from old.free_at)
      execute function public.bundle_postcard()`,
  table: leaseTable({
    table: 'public.postcards',
    id: 'code',
    lease: { owner: 'owner', until: 'until', token: 'token' },
    claimable: 'free_at is not null',
    availableAt: 'free_at',
    order: ['free_at', 'code'],
    onExpiry: 'reap',
    attempts: 'attempts',
    bundles: { table: 'public.postcard_bundles' },
    writes: {
      claim: { free_at: 'null' },
      release: { free_at: "now() + $delay_ms * interval '1 millisecond'" },
      reap: { free_at: 'now()' },
    },
    outcomes: { sent: { set: { sent: 'true' } } },
  }),
  insert: `insert into public.postcards (code) select gen_random_uuid() from generate_series(1, $1::int)
    returning code as k1`,
  empty: 'truncate public.postcards, public.postcard_bundles',
  final: { outcome: 'sent' },
}

export const specimens: readonly Specimen[] = [
  events,
  payments,
  chunks,
  tasks,
  odd,
  lines,
  lanes,
  noted,
  bundled,
]

/** Creates the specimen's table and makes it a subject of the conformance suite. */
export function subjectOf(db: Database, specimen: Specimen): LeaseSubject & { create(): Promise<void> } {
  const { table, final, bucket, lanes: keys } = specimen
  const target = `"${table.schema.replaceAll('"', '""')}"."${table.name.replaceAll('"', '""')}"`
  return {
    db,
    table,
    final,
    ...(bucket === undefined ? {} : { bucket }),
    ...(keys === undefined ? {} : { lanes: keys }),
    create: async () => {
      await db.query({ text: specimen.ddl })
    },
    empty: async () => {
      const rows = `delete from ${target} ${bucket === undefined ? '' : `where "${table.bucket}" = ${bucket}`}`
      await db.query({ text: specimen.empty ?? rows })
    },
    insert: async (count) => {
      const { rows } = await db.query<{ k1: string; k2?: string }>({ text: specimen.insert, values: [count] })
      return rows.map(({ k1, k2 }) => (k2 === undefined ? k1 : rowId(k1, k2)))
    },
  }
}
