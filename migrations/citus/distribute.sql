-- Distributes the tables with Citus. `leasehold migrate --citus` runs this file once, in a transaction, after the migrations
-- and with search_path set to the schema. docs/decisions/016-citus.md has the reasons.

-- The triggers that remain only refuse rows, or complete them from their own columns: they touch no other table.
set local citus.enable_unsafe_triggers to on;
-- Otherwise Citus would create shards over several connections, which do not see each other's changes.
set local citus.multi_shard_modify_mode to 'sequential';
set local client_min_messages to warning;

-- A NOTIFY on another node reaches no listener, and cannot be committed in two phases. enqueue() and send_webhook() below
-- wake the workers; what others write, and changes of endpoints, are found by polling.
drop trigger outbox_written on outbox;
drop trigger webhook_written on webhook_outbox;
drop trigger webhook_endpoint_changed on webhook_endpoints;

-- Citus decides by the bucket where a row goes, before a trigger could set it. Where a statement names none, the default
-- is evaluated, and says what to do.
drop trigger if exists outbox_bucket_given on outbox;
drop trigger if exists outbox_bucket_missing on outbox;
drop trigger if exists outbox_bucket_replayed on outbox;
drop trigger if exists webhook_outbox_bucket_given on webhook_outbox;
drop trigger if exists webhook_outbox_bucket_missing on webhook_outbox;
drop trigger if exists webhook_outbox_bucket_replayed on webhook_outbox;

create function refuse_missing_bucket() returns smallint
language plpgsql volatile set search_path from current
as $$
begin
  raise exception 'the row has no bucket, and the table is distributed by it'
    using errcode = 'not_null_violation',
      hint = format('Use %1$I.enqueue() or %1$I.send_webhook(), or enqueue or send of the library; or name the bucket, which of an ordering key is %1$I.bucket(ordering_key).', current_schema());
end
$$;

comment on function refuse_missing_bucket() is 'The default of the column bucket: an INSERT has to name it.';

alter table outbox alter column bucket set default refuse_missing_bucket();
alter table webhook_outbox alter column bucket set default refuse_missing_bucket();

-- The number of buckets stays as it is from now on: an ordering key would change its node while it has unfinished rows.
call set_bucket_counts(bucket_count(), bucket_count());

create or replace procedure raise_bucket_count(buckets int)
language plpgsql set search_path from current
as $$
begin
  if buckets <> bucket_count() then
    raise exception 'there are % buckets, and the tables are distributed by them: their number cannot be changed to %', bucket_count(), buckets
      using errcode = 'invalid_parameter_value', hint = 'Choose the number before the tables are distributed.';
  end if;
end
$$;

-- The functions that nodes call for their rows. Citus finds those that tables and triggers name, but not those that these call.
do $$
declare
  called text;
begin
  foreach called in array array[
    'bucket_count()', 'previous_bucket_count()', 'bucket_of(text, int)', 'bucket(text)', 'new_event_id()',
    'check_outbox_event()', 'refuse_missing_bucket()', 'webhook_wanted(text[], text)', 'check_webhook_delivery()'
  ] loop
    perform create_distributed_function(format('%I.%s', current_schema(), called)::regprocedure);
  end loop;
end
$$;

-- Citus has no policies with subqueries: no key of the HTTP API can be limited to a tenant here.
do $$
declare
  policy text;
begin
  for policy in select polname from pg_policy where polrelid = 'webhook_outbox'::regclass and not polpermissive loop
    execute format('alter policy %I on webhook_outbox using (false)', policy);
  end loop;
end
$$;

create table citus_buckets (bucket smallint primary key);

comment on table citus_buckets is 'One row for each bucket, on the node that has the rows of the bucket. Statements over all buckets begin with it, so that each node reads its own.';
comment on column citus_buckets.bucket is 'The bucket.';

select create_distributed_table('citus_buckets', 'bucket', colocate_with => 'none');
select create_distributed_table('outbox', 'bucket', colocate_with => 'citus_buckets');
select create_distributed_table('webhook_outbox', 'bucket', colocate_with => 'citus_buckets');
-- Deliveries are joined with their endpoints, on whatever node they are.
select create_reference_table('webhook_endpoints');

insert into citus_buckets select generate_series(0, bucket_count() - 1);

-- Whoever may read the registry may read the buckets; `leasehold roles` grants the same.
do $$
declare
  reader regrole;
begin
  for reader in
    select distinct privileges.grantee
    from pg_class, aclexplode(relacl) as privileges
    where pg_class.oid = 'workers'::regclass and privileges.privilege_type = 'SELECT' and privileges.grantee <> 0
  loop
    execute format('grant select on citus_buckets to %s', reader);
  end loop;
end
$$;

-- The parts of the id of an event that was given, or generated from its number, are searched on all nodes.
create or replace function find_event(event_id uuid) returns bigint
language plpgsql stable set search_path from current
as $$
#variable_conflict use_column
declare
  found_id bigint;
  number constant bigint := ('x' || right(find_event.event_id::text, 12))::bit(48)::bigint;
  buckets constant smallint[] := array(select generate_series(0, bucket_count() - 1)::smallint);
begin
  if find_event.event_id is null then
    return null;
  end if;
  select o.id into found_id from outbox as o
  where o.event_id = find_event.event_id and o.event_id_given;
  if found_id is null then
    select o.id into found_id from outbox as o
    where o.bucket = any (buckets) and (o.id = number or o.id >= 281474976710656) and o.event_id = find_event.event_id;
  end if;
  return found_id;
end
$$;

-- The bucket of a new event. Those without a key and without an id are spread at random.
create function bucket_of_event(ordering_key text, event_id uuid) returns smallint
language sql volatile parallel safe set search_path from current
as $$
  select bucket(coalesce(ordering_key, event_id::text, gen_random_uuid()::text))
$$;

comment on function bucket_of_event(text, uuid) is 'The bucket of a new event: that of its ordering key, or else of its event_id, or else any.';

create or replace function enqueue(
  event_type text,
  payload jsonb,
  ordering_key text default null,
  headers jsonb default '{}',
  available_at timestamptz default null,
  event_id uuid default null
) returns bigint
language plpgsql set search_path from current
as $$
#variable_conflict use_column
declare
  written bigint := find_event(enqueue.event_id);
  place constant smallint := bucket_of_event(enqueue.ordering_key, enqueue.event_id);
begin
  if written is null then
    insert into outbox (bucket, event_id, event_type, payload, ordering_key, headers, available_at)
    values (place, enqueue.event_id, enqueue.event_type, enqueue.payload, enqueue.ordering_key,
      coalesce(enqueue.headers, '{}'), coalesce(enqueue.available_at, now()))
    on conflict do nothing
    returning id into written;
    perform wake('outbox');
  end if;
  -- Another transaction has just written an event of this id.
  return coalesce(written, find_event(enqueue.event_id));
end
$$;

create or replace function enqueue_event(
  event_id text,
  event_type text,
  ordering_key text,
  payload text,
  headers text,
  available_at text,
  max_attempts text
) returns text
language plpgsql set search_path from current
as $$
#variable_conflict use_column
declare
  answer text;
  known bigint;
  place constant smallint := bucket_of_event(enqueue_event.ordering_key, enqueue_event.event_id::uuid);
begin
  if enqueue_event.event_id is not null then
    known := find_event(enqueue_event.event_id::uuid);
  end if;
  if known is null then
    insert into outbox (bucket, event_id, event_type, ordering_key, payload, headers, available_at, max_attempts)
    values (place, enqueue_event.event_id::uuid, enqueue_event.event_type, enqueue_event.ordering_key, enqueue_event.payload::jsonb,
      enqueue_event.headers::jsonb, coalesce(enqueue_event.available_at::timestamptz, now()), enqueue_event.max_attempts::int)
    on conflict do nothing
    -- Citus refuses functions in RETURNING that are not immutable, such as concat_ws().
    returning id::text || ' ' || event_id::text || ' written' into answer;
    perform wake('outbox');
  end if;
  if answer is null then
    -- Another transaction may just have written an event of this id.
    answer := coalesce(known, find_event(enqueue_event.event_id::uuid)) || ' ' || enqueue_event.event_id || ' found';
  end if;
  return answer || ' ' || pg_backend_pid();
end
$$;

create or replace function enqueue_events(events text) returns table (event text, id text, written boolean)
language plpgsql set search_path from current
as $$
#variable_conflict use_column
declare
  given record;
  known bigint;
  place smallint;
begin
  for given in
    select *
    from json_to_recordset(events::json) as e (
      "position" int, event_id uuid, event_type text, ordering_key text, payload jsonb, headers jsonb,
      available_at timestamptz, max_attempts int
    )
    order by "position"
  loop
    known := find_event(given.event_id);
    if known is not null then
      return query select given.event_id::text, known::text, false;
      continue;
    end if;
    place := bucket_of_event(given.ordering_key, given.event_id);
    return query
      insert into outbox as o (bucket, event_id, event_type, ordering_key, payload, headers, available_at, max_attempts)
      values (place, given.event_id, given.event_type, given.ordering_key, coalesce(given.payload, 'null'), given.headers,
        coalesce(given.available_at, now()), given.max_attempts)
      on conflict do nothing
      returning o.event_id::text, o.id::text, true;
    if not found then
      -- Another transaction has just written an event of this id.
      return query select given.event_id::text, find_event(given.event_id)::text, false;
    end if;
  end loop;
  perform wake('outbox');
end
$$;

create or replace function send_webhooks(events text) returns table (event text, deliveries text)
language plpgsql set search_path from current
as $$
#variable_conflict use_column
declare
  delivery record;
  place smallint;
  written uuid;
  all_written uuid[] := '{}';
begin
  -- One by one: as INSERT … SELECT from a reference table and a function, Citus 13.0.3 wrote nothing, without an error.
  for delivery in
    select given.event_id, endpoint.id as endpoint_id, given.event_type,
      case when endpoint.ordered then given.ordering_key end as ordering_key, given.body::text as body, given.headers,
      given.available_at
    from json_to_recordset(send_webhooks.events::json) as given (
      "position" int, event_id uuid, event_type text, tenant text, ordering_key text, body json, headers jsonb,
      available_at timestamptz
    )
    join webhook_endpoints as endpoint on endpoint.tenant = given.tenant and endpoint.enabled
      and webhook_wanted(endpoint.event_types, given.event_type)
    order by given."position", endpoint.id
  loop
    -- The same event and endpoint are always in one bucket.
    place := bucket(coalesce(delivery.ordering_key, delivery.event_id::text || delivery.endpoint_id::text));
    insert into webhook_outbox as d (bucket, event_id, endpoint_id, event_type, ordering_key, body, headers, next_attempt_at)
    values (place, delivery.event_id, delivery.endpoint_id, delivery.event_type, delivery.ordering_key, delivery.body,
      delivery.headers, coalesce(delivery.available_at, now()))
    on conflict (event_id, endpoint_id, bucket) do nothing
    returning d.event_id into written;
    if written is not null then
      all_written := all_written || written;
    end if;
  end loop;
  if cardinality(all_written) > 0 then
    perform wake('webhooks');
  end if;
  return query
    select given.event_id::text, count(w.event_id)::text
    from json_to_recordset(send_webhooks.events::json) as given (event_id uuid)
    left join unnest(all_written) as w (event_id) on w.event_id = given.event_id
    group by given.event_id;
end
$$;

create or replace function send_webhook(
  event_type text,
  payload jsonb,
  tenant text default '',
  ordering_key text default null,
  headers jsonb default '{}',
  available_at timestamptz default null,
  event_id uuid default null
) returns int
language plpgsql set search_path from current
as $$
#variable_conflict use_column
declare
  size constant int := octet_length(send_webhook.payload::text);
  body constant text := '{"type":' || to_json(send_webhook.event_type)::text
    || ',"timestamp":"' || to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
    || '","data":' || send_webhook.payload::text || '}';
begin
  -- These hold for an event that no endpoint subscribes to as well; the other limits are those of webhook_outbox.
  if body is null then
    raise exception 'an event has a type and a payload, and one of them is null'
      using errcode = 'null_value_not_allowed', hint = 'Give both; a payload without a value is ''null''::jsonb.';
  end if;
  if octet_length(send_webhook.ordering_key) not between 1 and 1024 then
    raise exception 'the ordering_key of a % event has % bytes, and must have 1 to 1024', send_webhook.event_type, octet_length(send_webhook.ordering_key)
      using errcode = 'check_violation', hint = 'Give a shorter text that is not empty, or null for an event without an order.';
  end if;
  if size > 262144 then
    raise exception 'the payload of a % event has % bytes, and at most 262144 are allowed', send_webhook.event_type, size
      using errcode = 'program_limit_exceeded', hint = 'Store large data elsewhere and send a reference to it.';
  end if;
  if send_webhook.payload @? '$.**{101}' then
    raise exception 'the payload of a % event is nested more than 100 levels deep', send_webhook.event_type
      using errcode = 'program_limit_exceeded', hint = 'Flatten the payload: many JSON parsers refuse more.';
  end if;
  if send_webhook.available_at not between '0001-01-01 00:00+00' and '9999-12-31 23:59:59.999999+00' then
    raise exception 'the available_at of a % event is %, and must be in the years 1 to 9999', send_webhook.event_type, send_webhook.available_at
      using errcode = 'check_violation', hint = 'Give the time from which on the event may be delivered.';
  end if;
  return (
    select deliveries::int
    from send_webhooks(json_build_array(json_build_object(
      'position', 0,
      'event_id', coalesce(send_webhook.event_id, new_event_id()),
      'event_type', send_webhook.event_type,
      'tenant', coalesce(send_webhook.tenant, ''),
      'ordering_key', send_webhook.ordering_key,
      'body', body::json,
      'headers', coalesce(send_webhook.headers, '{}'),
      'available_at', send_webhook.available_at
    ))::text)
  );
end
$$;
