-- Creates a job; columns that are not given have defaults. If the matrix has an open job, nothing is written.
insert into leasehold.sync_jobs (definition, matrix_id, params, priority, force, fresh_for)
values ('invoices', 'acme', '{"currency": "EUR"}', 10, false, interval '1 day')
on conflict (definition, matrix_id) where completed_at is null and failed_at is null and not parallel
do nothing
returning id;
