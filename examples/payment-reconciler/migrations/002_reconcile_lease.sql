-- A lease for the rows of app.payment_requests, so that several workers can share them.
--
-- The columns may be null and have no default: adding them rewrites nothing, existing rows can be claimed at once,
-- and programs that write to the table need not know of them.
-- They hold the id of a worker with its token, a time and a count. Every statement can be repeated.

-- While an ALTER TABLE waits for its lock, all reads and writes of the table wait as well. This one gives up
-- after 5 s.
SET lock_timeout = '5s';
ALTER TABLE app.payment_requests
  ADD COLUMN IF NOT EXISTS reconcile_lease_owner text,
  ADD COLUMN IF NOT EXISTS reconcile_lease_until timestamptz,
  ADD COLUMN IF NOT EXISTS reconcile_lease_expiries int;
RESET lock_timeout;

-- The indexes are built while the table is in use, and therefore outside a transaction: psql does so unless told
-- otherwise (--single-transaction), migration tools have a switch for it. One that fails leaves an invalid index, which has
-- to be dropped before the next attempt (DROP INDEX CONCURRENTLY).

-- The claimable rows in the order in which they are claimed.
CREATE INDEX CONCURRENTLY IF NOT EXISTS payment_requests_reconcile_lease_claim
  ON app.payment_requests (created_at, id)
  WHERE status in ('pending', 'detected');

-- Those whose lease has expired twice or more, of which a process claims one at a time.
CREATE INDEX CONCURRENTLY IF NOT EXISTS payment_requests_reconcile_lease_suspects
  ON app.payment_requests (created_at, id)
  WHERE (status in ('pending', 'detected')) AND coalesce(reconcile_lease_expiries, 0) >= 2;

-- The leased rows, for the reaper.
CREATE INDEX CONCURRENTLY IF NOT EXISTS payment_requests_reconcile_lease_leased
  ON app.payment_requests (id)
  WHERE reconcile_lease_owner IS NOT NULL;

-- Rows by their status and the end of their lease.
CREATE INDEX CONCURRENTLY IF NOT EXISTS payment_requests_reconcile_lease
  ON app.payment_requests (status, reconcile_lease_until, created_at, id);

-- What to declare. A reconciler takes it as it is. A worker of your own also needs outcomes: how a row is written
-- when it is done or dead, so that it is no longer claimable. No failed attempts are counted or limited until the table
-- has columns for them (`attempts`).
--
--   import { leaseTable } from 'leasehold'
--
--   const table = leaseTable({
--     table: 'app.payment_requests',
--     id: 'id',
--     lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until' },
--     claimable: "status in ('pending', 'detected')",
--     order: ['created_at', 'id'],
--     attempts: { column: false, expiries: 'reconcile_lease_expiries', error: false },
--   })
