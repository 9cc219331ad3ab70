-- What every part of Leasehold stands on. Objects are named without a schema: the migration runs with
-- search_path set to the schema that was chosen.

create table audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default now(),
  principal text not null,
  action text not null,
  target text,
  details jsonb not null default '{}'
);

-- The audit is read newest first and by period.
create index audit_at on audit (at);

comment on table audit is 'Every change an operator made, and who made it. Rows are only ever added.';
comment on column audit.id is 'Number of the entry, in the order of insertion.';
comment on column audit.at is 'When it happened, by the clock of the database.';
comment on column audit.principal is 'Who did it: the name of an API key, or of the account that ran the command.';
comment on column audit.action is 'What was done, for example outbox.replay.';
comment on column audit.target is 'What it was done to, for example an event id; null when it concerns no single thing.';
comment on column audit.details is 'Whatever else explains the entry. Never a secret.';
