-- The core: what every application of Leasehold uses. Objects are named without a schema; the migration runs with
-- search_path set to the schema that was chosen.

-- How many buckets the tables have. "leasehold migrate --buckets" replaces the first two functions: a function without a
-- table costs nothing where it is called, and every session knows of the new number in its next statement. They are stable
-- and strict, so that PostgreSQL inlines all four: a call takes 2 µs instead of 20, and a plan is made anew when the number
-- changes. Of immutable functions it would keep bucket('some key') in a plan as it was.
create function bucket_count() returns int
language sql stable strict parallel safe
return 1;

create function previous_bucket_count() returns int
language sql stable strict parallel safe
return 1;

-- SHA-256 is the same in every version of PostgreSQL and in every language; hashtext() is not.
create function bucket_of(placed_by text, buckets int) returns smallint
language sql stable strict parallel safe
return (('x' || pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(placed_by, 'UTF8')), 'hex'), 7))::bit(28)::int
  operator(pg_catalog.%) buckets)::smallint;

create function bucket(ordering_key text) returns smallint
language sql stable strict parallel safe
return bucket_of(ordering_key, bucket_count());

comment on function bucket_count() is 'How many buckets the tables have. Changed by "leasehold migrate --buckets".';
comment on function previous_bucket_count() is 'How many they had before the number was raised, as long as rows of ordering keys may be unfinished that were written before.';
comment on function bucket_of(text, int) is 'The bucket of a text among so many buckets.';
comment on function bucket(text) is 'The bucket of an ordering key.';

create table audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default now(),
  principal text not null,
  action text not null,
  target text,
  details jsonb not null default '{}'
);

create index audit_at on audit (at);

comment on table audit is 'Every change that an operator made, and who made it. Entries are added, and removed when they are old; none younger than 30 days is removed.';
comment on column audit.id is 'Number of the entry, in the order of insertion.';
comment on column audit.at is 'When the change was made, by the clock of the database.';
comment on column audit.principal is 'Who made it: the name of an API key, or of the account that ran the command.';
comment on column audit.action is 'What was done, for example outbox.replay.';
comment on column audit.target is 'The object that was changed, for example an event id. Null where the change concerns more than one object.';
comment on column audit.details is 'Further details as JSON. Never a secret.';
comment on index audit_at is 'The audit is read newest first and by period.';

-- Retention runs with the privileges of a worker. Without this, every worker could remove what an operator did.
create function refuse_young_audit() returns trigger
language plpgsql set search_path from current
as $$
begin
  if old.at > now() - interval '30 days' then
    raise restrict_violation using
      message = format('entry %s of the audit was made at %s and cannot be deleted for 30 days', old.id, old.at),
      hint = 'Set auditRetentionMs to 30 days (2592000000) or more.';
  end if;
  return old;
end
$$;

comment on function refuse_young_audit() is 'Refuses to delete entries of the audit that are younger than 30 days.';

create trigger audit_retained before delete on audit
  for each row execute function refuse_young_audit();

comment on trigger audit_retained on audit is 'Whoever may delete old entries can delete no young ones.';

create table workers (
  id text primary key,
  host text not null,
  pid int not null,
  version text not null,
  roles text[] not null,
  declared jsonb not null default '{}',
  reaps text[] not null default '{}',
  serves jsonb not null default '{}',
  started_at timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  in_flight int not null default 0,
  paused jsonb not null default '[]',
  counters jsonb not null default '{"uptimeMs": 0, "tables": {}}',
  session_pid int,
  session_start timestamptz,
  missing_since timestamptz,
  stopped_at timestamptz,
  died_at timestamptz
) with (
  -- A presence replaces the whole row. Half of each page is left for the new versions, which PostgreSQL removes as they age.
  fillfactor = 50
);

-- No index mentions last_seen_at, in_flight, paused or counters, so that a heartbeat is a HOT update.
create index workers_running on workers (id) where stopped_at is null and died_at is null;

comment on table workers is 'The registry of worker processes: those that run, and for one day those that have ended.';
comment on column workers.id is 'The unique worker id, as it appears in leases, logs and metrics.';
comment on column workers.host is 'The machine or container on which the process runs.';
comment on column workers.pid is 'The process id on that host.';
comment on column workers.version is 'The release of Leasehold that the process runs.';
comment on column workers.roles is 'What the process does, for example outbox or reaper.';
comment on column workers.declared is 'The settings that its workers were started with, by the name of the worker. A change of settings is checked against them.';
comment on column workers.reaps is 'The tables whose expired leases the process takes back, for example leasehold.outbox.';
comment on column workers.serves is 'The table that each of its workers processes and the role of the worker, by the name of the worker: objects with table and role.';
comment on column workers.started_at is 'When the process registered.';
comment on column workers.last_seen_at is 'When the process last reported itself.';
comment on column workers.in_flight is 'How many rows it had in flight at that moment.';
comment on column workers.paused is 'Which of its workers did not claim at that moment, since when and why: an array of objects with worker, table, reason, since and error.';
comment on column workers.counters is 'What the process has done since it started: an object with uptimeMs, for how long it has counted, and tables, an object of counts by the name of the table: claims, claimed, done, retried, dead, failed, fencedOff, recovered, renewed, outcomes, latency and lastError.';
comment on column workers.session_pid is 'The backend of the session with which it reports itself. Null where a connection pooler hides the session; the process is then never declared dead early, and its leases end by expiry.';
comment on column workers.session_start is 'When that backend started. Together with session_pid it identifies one session.';
comment on column workers.missing_since is 'When a reaper first found the session closed. Null as soon as the process reports itself.';
comment on column workers.stopped_at is 'When the process reported a regular shutdown.';
comment on column workers.died_at is 'When a reaper declared the process dead: its session was closed for longer than the grace period, or its supervisor saw it end.';
comment on index workers_running is 'The processes that have not ended, for the reaper.';

create table settings (
  name text primary key,
  value jsonb not null,
  changed_at timestamptz not null default now(),
  changed_by text not null,
  constraint settings_value_is_an_object check (jsonb_typeof(value) = 'object')
);

comment on table settings is 'Settings that workers follow while they run, in addition to those they were started with. A change is announced on the channel leasehold_settings.';
comment on column settings.name is 'The name of the worker to which the settings apply, for example outbox.';
comment on column settings.value is 'An object of settings and their values. A setting that is not in it has the value the worker was started with.';
comment on column settings.changed_at is 'When the settings were last changed, by the clock of the database.';
comment on column settings.changed_by is 'Who changed them: the name of an API key, or of the account that ran the command.';

-- Where a listener does not read on, the queue of NOTIFY grows, and when it is full, every transaction with a NOTIFY fails
-- at its COMMIT. Any login can bring that about. A notification is only a hint, so none is sent before it comes to that.
create function notify_workers(channel text, payload text) returns void
language plpgsql set search_path from current
as $$
begin
  if pg_notification_queue_usage() < 0.25 then perform pg_notify(channel, payload); end if;
end
$$;

comment on function notify_workers(text, text) is 'Sends a notification, unless a quarter of the queue of NOTIFY is in use: workers also poll, and nothing may fail because the queue is full.';

create function announce_settings() returns trigger
language plpgsql set search_path from current
as $$
begin
  if tg_op <> 'INSERT' then perform notify_workers('leasehold_settings', old.name); end if;
  -- PostgreSQL sends equal notifications of one transaction only once.
  if tg_op <> 'DELETE' then perform notify_workers('leasehold_settings', new.name); end if;
  return null;
end
$$;

comment on function announce_settings() is 'Announces a change of settings on the channel leasehold_settings, with the name of the settings.';

create trigger settings_changed after insert or update or delete on settings
  for each row execute function announce_settings();

comment on trigger settings_changed on settings is 'Running workers follow every change, whatever program makes it.';

-- PostgreSQL commits transactions with a NOTIFY one after the other: with 32 producers, a NOTIFY in each left a quarter
-- of the throughput (docs/decisions/014-wake-ups.md). So concurrent transactions share one notification, by a lock that
-- is tried and never waited for. It belongs to 50 ms of time: whoever holds one, for however long, suppresses the wake-ups
-- of that time only. A session that takes the locks of future periods on purpose can suppress those as well, until the
-- lock table is full. Workers also poll, so a wake-up that is not sent delays rows and loses none.
create function may_wake(name text) returns boolean
language sql volatile
return (pg_catalog.lower(pg_catalog.current_setting('leasehold.notify', true)) in ('off', 'false', 'no', '0')) is not true
  and pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('leasehold wake ' || name,
    (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 20)::bigint))
  and pg_catalog.pg_notification_queue_usage() < 0.25;

comment on function may_wake(text) is 'Whether a transaction that calls wake() sends the notification. A function without a SET clause, so that PostgreSQL inlines it.';

create function wake(name text) returns void
language plpgsql set search_path from current
as $$
begin
  -- SYNC-12: sync does without advisory locks. There are few jobs, and one wake-up for each batch of chunks.
  if name in ('sync', 'sync-jobs') then
    if (lower(current_setting('leasehold.notify', true)) in ('off', 'false', 'no', '0')) is not true then
      perform notify_workers('leasehold_wake', name);
    end if;
  elsif may_wake(name) then
    perform pg_notify('leasehold_wake', name);
  end if;
end
$$;

comment on function wake(text) is
'Tells the workers of this name, when the transaction commits, that there may be rows to claim: NOTIFY leasehold_wake, name.
Of several concurrent transactions that call it within 50 ms, only one sends the notification, because PostgreSQL commits transactions with a NOTIFY one after the other.
A wake-up is only a hint. A transaction that sent none may commit just after the worker has claimed. A worker therefore claims a second time shortly after a wake-up, and it polls in any case.
SET leasehold.notify = ''off'', for a session, a role or a database, turns wake-ups off.';

create function wake_workers() returns trigger
language plpgsql set search_path from current
as $$
begin
  if may_wake(tg_argv[0]) then
    perform pg_notify('leasehold_wake', tg_argv[0]);
  end if;
  return null;
end
$$;

comment on function wake_workers() is 'Wakes the workers that the trigger names, as wake() does: their table was written to.';
