-- A lease for the rows of public.jobs, so that several workers can share them.
--
-- The columns may be null and have no default: adding them rewrites nothing, existing rows can be claimed at once,
-- and programs that write to the table need not know of them.
-- They hold the id of a worker, a time, a token and a count. Every statement can be repeated.

-- While an ALTER TABLE waits for its lock, all reads and writes of the table wait as well. This one gives up
-- after 5 s.
SET lock_timeout = '5s';
ALTER TABLE public.jobs
  ADD COLUMN IF NOT EXISTS lease_owner text,
  ADD COLUMN IF NOT EXISTS lease_until timestamptz,
  ADD COLUMN IF NOT EXISTS lease_token bigint,
  ADD COLUMN IF NOT EXISTS lease_expiries int;
RESET lock_timeout;

-- The indexes are built while the table is in use, and therefore outside a transaction: psql does so unless told
-- otherwise (--single-transaction), migration tools have a switch for it. One that fails leaves an invalid index, which has
-- to be dropped before the next attempt (DROP INDEX CONCURRENTLY).

-- The claimable rows in the order in which they are claimed.
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_lease_claim
  ON public.jobs (id)
  WHERE status = 'waiting';

-- Those whose lease has expired twice or more, of which a process claims one at a time.
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_lease_suspects
  ON public.jobs (id)
  WHERE (status = 'waiting') AND coalesce(lease_expiries, 0) >= 2;

-- The leased rows, for the reaper.
CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_lease_leased
  ON public.jobs (id)
  WHERE lease_owner IS NOT NULL;

-- What to declare. A reconciler takes it as it is. A worker of your own also needs outcomes: how a row is written
-- when it is done or dead, so that it is no longer claimable. No failed attempts are counted or limited until the table
-- has columns for them (`attempts`).
--
--   import { leaseTable } from 'leasehold'
--
--   const table = leaseTable({
--     table: 'public.jobs',
--     id: 'id',
--     lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
--     claimable: "status = 'waiting'",
--     order: ['id'],
--     attempts: { column: false, expiries: 'lease_expiries', error: false },
--   })
