/** A lease table for tests of the worker, similar to the outbox, and a table that records the runs of the handler. */
import type { LeaseTableDeclaration } from '../../src/lease/index.ts'
import type { Database } from '../../src/postgres/database.ts'

export const WORK_DDL = `
  create table public.jobs (
    id bigint generated always as identity primary key,
    kind text not null default 'plain',
    status text not null default 'PENDING',
    attempts int not null default 0,
    max_attempts int not null default 5,
    expiries int not null default 0,
    last_error text,
    available_at timestamptz default now(),
    claimed_by text,
    locked_until timestamptz,
    lock_token bigint not null default 0
  );
  create index jobs_pending on public.jobs (available_at, id) where available_at is not null and expiries < 2;
  create index jobs_suspects on public.jobs (available_at, id) where available_at is not null and expiries >= 2;
  create index jobs_claimed on public.jobs (id) where status = 'CLAIMED';
  create table public.runs (job bigint not null, token bigint not null, worker text not null, at timestamptz not null default clock_timestamp())`

/** Plain data, so that a test can pass it to another process. */
export const WORK_TABLE = {
  table: 'public.jobs',
  lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
  claimable: 'available_at is not null',
  availableAt: 'available_at',
  onExpiry: 'reap',
  leased: "status = 'CLAIMED'",
  attempts: { max: 'max_attempts' },
  writes: {
    claim: { status: "'CLAIMED'", available_at: 'null' },
    release: { status: "'PENDING'", available_at: "now() + $delay_ms * interval '1 millisecond'" },
  },
  outcomes: {
    done: { status: "'DONE'" },
    dead: { status: "'DEAD'" },
  },
  expired: { error: "'the lease expired'" },
} as const satisfies LeaseTableDeclaration

export interface Job {
  readonly id: string
  readonly kind: string
  readonly status: string
  readonly attempts: number
  readonly last_error: string | null
  readonly claimed_by: string | null
  readonly lock_token: string
}

export async function insertJobs(db: Database, count: number, kind = 'plain'): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: 'insert into public.jobs (kind) select $2 from generate_series(1, $1::int) returning id',
    values: [count, kind],
  })
  return rows.map(({ id }) => id)
}

export async function jobs(db: Database): Promise<Job[]> {
  return (await db.query<Job>({ text: 'select * from public.jobs order by id' })).rows
}

/** How many jobs are in each state. */
export async function jobStates(db: Database): Promise<Record<string, number>> {
  const { rows } = await db.query<{ status: string; count: number }>({
    text: 'select status, count(*)::int as count from public.jobs group by status',
  })
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
}

/** The first job, for tests that have one. */
export async function onlyJob(db: Database): Promise<Job | undefined> {
  return (await jobs(db))[0]
}

/** In how many seconds the only job is due. */
export async function dueInSeconds(db: Database): Promise<number> {
  const { rows } = await db.query<{ seconds: number }>({
    text: 'select extract(epoch from available_at - now())::float8 as seconds from public.jobs',
  })
  return rows[0]?.seconds ?? Number.NaN
}
