-- What running workers need besides their lease tables: to be known, to be told, to be woken.

-- A worker says every few seconds that it is there. Room on the page keeps that a HOT update, as long as no index
-- knows what changes: the id, and whether the worker has ended.
create table workers (
  id text primary key,
  host text not null,
  pid int not null,
  version text not null,
  roles text[] not null,
  started_at timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  in_flight int not null default 0,
  session_pid int,
  session_start timestamptz,
  missing_since timestamptz,
  stopped_at timestamptz,
  died_at timestamptz
) with (fillfactor = 50);

create index workers_running on workers (id) where stopped_at is null and died_at is null;

comment on table workers is 'Every worker that runs, and for a day those that have ended.';
comment on column workers.id is 'The unique id that owns leases, and that logs and metrics name.';
comment on column workers.host is 'The machine, or container, it runs on.';
comment on column workers.pid is 'Its process on that host.';
comment on column workers.version is 'The release of Leasehold it runs.';
comment on column workers.roles is 'What it does, for example outbox or reaper.';
comment on column workers.started_at is 'When it first said that it is there.';
comment on column workers.last_seen_at is 'When it last said so.';
comment on column workers.in_flight is 'How many rows it was processing then.';
comment on column workers.session_pid is 'The backend of the session on which it says so. Null behind a pooler that hides sessions: then nobody takes its silence for death, and its leases run out by themselves.';
comment on column workers.session_start is 'When that backend started: with the pid it names one session for ever.';
comment on column workers.missing_since is 'When a reaper first found that session gone; null as soon as the worker is back.';
comment on column workers.stopped_at is 'When it said that it stops.';
comment on column workers.died_at is 'When a reaper declared it dead, because its session was gone for longer than the grace.';

create table settings (
  name text primary key,
  value jsonb not null check (jsonb_typeof(value) = 'object'),
  changed_at timestamptz not null default now(),
  changed_by text not null
);

comment on table settings is 'What workers follow while they run, over what they were started with. A change is announced on the channel leasehold_settings.';
comment on column settings.name is 'Whose settings: the name of a table''s worker, for example outbox.';
comment on column settings.value is 'Setting to value; what is not named here stays as the worker was started.';
comment on column settings.changed_at is 'When they last changed, by the clock of the database.';
comment on column settings.changed_by is 'Who changed them: the name of an API key, or of the account that ran the command.';

create function announce_settings() returns trigger
language plpgsql set search_path from current
as $$
begin
  if tg_op <> 'INSERT' then perform pg_notify('leasehold_settings', old.name); end if;
  -- PostgreSQL folds equal notifications of one transaction into one.
  if tg_op <> 'DELETE' then perform pg_notify('leasehold_settings', new.name); end if;
  return null;
end
$$;

comment on function announce_settings() is 'Announces a change of settings on the channel leasehold_settings, with their name.';

create trigger settings_changed after insert or update or delete on settings
  for each row execute function announce_settings();

comment on trigger settings_changed on settings is 'Workers follow a change made by any means, also by hand.';

-- 1279607123 is "LEAS": the namespace of our advisory locks with two keys.
create function wake(name text) returns void
language plpgsql set search_path from current
as $$
begin
  if lower(current_setting('leasehold.notify', true)) in ('off', 'false', 'no', '0') then return; end if;
  if pg_try_advisory_xact_lock(1279607123, hashtext(name)) then
    perform pg_notify('leasehold_wake', name);
  end if;
end
$$;

comment on function wake(text) is
'Tells the workers of this name that there may be work, when the transaction commits: NOTIFY leasehold_wake, name.
Of many transactions in flight at once only one sends, because PostgreSQL makes transactions with a NOTIFY commit one after the other.
A wake-up is a hint: one that kept silent may commit just after the worker has looked, and one that stays open long keeps the others silent. So a worker looks again shortly after a wake-up, and polls anyway.
set leasehold.notify = ''off'', for a session, a role or a database, sends none.';
