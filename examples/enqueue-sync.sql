-- A job, from SQL: what is not given is the default. One that is open already is in the way, and nothing is written.
insert into leasehold.sync_jobs (definition, matrix_id, params, priority, force, fresh_for)
values ('invoices', 'acme', '{"currency": "EUR"}', 10, false, interval '1 day')
on conflict (definition, matrix_id) where completed_at is null and failed_at is null and not parallel
do nothing
returning id;
