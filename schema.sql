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

create table leasehold.settings (
  name text not null,
  value jsonb not null,
  changed_at timestamp with time zone default now() not null,
  changed_by text not null,
  constraint settings_pkey PRIMARY KEY (name),
  constraint settings_value_check CHECK ((jsonb_typeof(value) = 'object'::text))
);

create table leasehold.workers (
  id text not null,
  host text not null,
  pid integer not null,
  version text not null,
  roles text[] not null,
  started_at timestamp with time zone default now() not null,
  last_seen_at timestamp with time zone default now() not null,
  in_flight integer default 0 not null,
  session_pid integer,
  session_start timestamp with time zone,
  missing_since timestamp with time zone,
  stopped_at timestamp with time zone,
  died_at timestamp with time zone,
  constraint workers_pkey PRIMARY KEY (id)
) with (fillfactor=50);

CREATE INDEX audit_at ON leasehold.audit USING btree (at);

CREATE INDEX workers_running ON leasehold.workers USING btree (id) WHERE ((stopped_at IS NULL) AND (died_at IS NULL));

CREATE OR REPLACE FUNCTION leasehold.announce_settings()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'leasehold'
AS $function$
begin
  if tg_op <> 'INSERT' then perform pg_notify('leasehold_settings', old.name); end if;
  -- PostgreSQL folds equal notifications of one transaction into one.
  if tg_op <> 'DELETE' then perform pg_notify('leasehold_settings', new.name); end if;
  return null;
end
$function$;

CREATE OR REPLACE FUNCTION leasehold.wake(name text)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'leasehold'
AS $function$
begin
  if lower(current_setting('leasehold.notify', true)) in ('off', 'false', 'no', '0') then return; end if;
  if pg_try_advisory_xact_lock(1279607123, hashtext(name)) then
    perform pg_notify('leasehold_wake', name);
  end if;
end
$function$;

CREATE TRIGGER settings_changed AFTER INSERT OR DELETE OR UPDATE ON leasehold.settings FOR EACH ROW EXECUTE FUNCTION leasehold.announce_settings();

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

comment on column leasehold.settings.changed_at is 'When they last changed, by the clock of the database.';

comment on column leasehold.settings.changed_by is 'Who changed them: the name of an API key, or of the account that ran the command.';

comment on column leasehold.settings.name is 'Whose settings: the name of a table''s worker, for example outbox.';

comment on column leasehold.settings.value is 'Setting to value; what is not named here stays as the worker was started.';

comment on column leasehold.workers.died_at is 'When a reaper declared it dead, because its session was gone for longer than the grace.';

comment on column leasehold.workers.host is 'The machine, or container, it runs on.';

comment on column leasehold.workers.id is 'The unique id that owns leases, and that logs and metrics name.';

comment on column leasehold.workers.in_flight is 'How many rows it was processing then.';

comment on column leasehold.workers.last_seen_at is 'When it last said so.';

comment on column leasehold.workers.missing_since is 'When a reaper first found that session gone; null as soon as the worker is back.';

comment on column leasehold.workers.pid is 'Its process on that host.';

comment on column leasehold.workers.roles is 'What it does, for example outbox or reaper.';

comment on column leasehold.workers.session_pid is 'The backend of the session on which it says so. Null behind a pooler that hides sessions: then nobody takes its silence for death, and its leases run out by themselves.';

comment on column leasehold.workers.session_start is 'When that backend started: with the pid it names one session for ever.';

comment on column leasehold.workers.started_at is 'When it first said that it is there.';

comment on column leasehold.workers.stopped_at is 'When it said that it stops.';

comment on column leasehold.workers.version is 'The release of Leasehold it runs.';

comment on function leasehold.announce_settings() is 'Announces a change of settings on the channel leasehold_settings, with their name.';

comment on function leasehold.wake(pg_catalog.text) is 'Tells the workers of this name that there may be work, when the transaction commits: NOTIFY leasehold_wake, name.
Of many transactions in flight at once only one sends, because PostgreSQL makes transactions with a NOTIFY commit one after the other.
A wake-up is a hint: one that kept silent may commit just after the worker has looked, and one that stays open long keeps the others silent. So a worker looks again shortly after a wake-up, and polls anyway.
set leasehold.notify = ''off'', for a session, a role or a database, sends none.';

comment on table leasehold.audit is 'Every change an operator made, and who made it. Rows are only ever added.';

comment on table leasehold.migrations is 'Which migrations were applied. Written by Leasehold only.';

comment on table leasehold.settings is 'What workers follow while they run, over what they were started with. A change is announced on the channel leasehold_settings.';

comment on table leasehold.workers is 'Every worker that runs, and for a day those that have ended.';

comment on trigger settings_changed on leasehold.settings is 'Workers follow a change made by any means, also by hand.';
