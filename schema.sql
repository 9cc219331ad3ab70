-- The schema after all migrations, as PostgreSQL sees it. Written by `npm run schema`; a test compares it.

create table leasehold.audit (
  id bigint generated always as identity not null,
  at timestamp with time zone default now() not null,
  principal text not null,
  action text not null,
  target text,
  details jsonb default '{}'::jsonb not null,
  constraint audit_pkey PRIMARY KEY (id)
);

create table leasehold.migrations (
  version integer not null,
  name text not null,
  checksum text not null,
  applied_at timestamp with time zone default now() not null,
  constraint migrations_pkey PRIMARY KEY (version)
);

CREATE INDEX audit_at ON leasehold.audit USING btree (at);

comment on column leasehold.audit.action is 'What was done, for example outbox.replay.';

comment on column leasehold.audit.at is 'When it happened, by the clock of the database.';

comment on column leasehold.audit.details is 'Whatever else explains the entry. Never a secret.';

comment on column leasehold.audit.id is 'Number of the entry, in the order of insertion.';

comment on column leasehold.audit.principal is 'Who did it: the name of an API key, or of the account that ran the command.';

comment on column leasehold.audit.target is 'What it was done to, for example an event id; null when it concerns no single thing.';

comment on column leasehold.migrations.applied_at is 'When it was applied, by the clock of the database.';

comment on column leasehold.migrations.checksum is 'SHA-256 of the file as it was applied, with LF line ends.';

comment on column leasehold.migrations.name is 'The rest of the file''s name.';

comment on column leasehold.migrations.version is 'The number the file starts with.';

comment on table leasehold.audit is 'Every change an operator made, and who made it. Rows are only ever added.';

comment on table leasehold.migrations is 'Which migrations were applied. Written by Leasehold only.';
