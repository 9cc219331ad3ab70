-- Webhooks: events that are delivered to HTTP endpoints, with one row for each event and endpoint.
-- One row is the whole truth about a delivery. docs/decisions/010-webhooks.md has the reasons.

create table webhook_endpoints (
  id uuid primary key default new_event_id(),
  tenant text not null default '',
  url text not null,
  description text not null default '',
  event_types text[] not null default '{}',
  headers jsonb not null default '{}',
  rate_per_second float8,
  concurrency int not null default 10,
  timeout_ms int not null default 15000,
  ordered boolean not null default false,
  signing text not null default 'v1',
  secret text not null,
  previous_secret text,
  previous_secret_until timestamptz,
  enabled boolean not null default true,
  disabled_reason text,
  disabled_at timestamptz,
  failures int not null default 0,
  failing_since timestamptz,
  open_until timestamptz,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  constraint webhook_endpoints_url_is_http check (url ~ '^https?://' and octet_length(url) <= 2048),
  constraint webhook_endpoints_headers_are_an_object check (jsonb_typeof(headers) = 'object'),
  -- They may be credentials. A value that somebody writes in plain text is refused.
  constraint webhook_endpoints_header_values_are_encrypted
    check (not jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string" || !(@ starts with "enc1."))', silent => true)),
  -- NaN compares as greater than every other number, so that the upper bound refuses it as well.
  constraint webhook_endpoints_rate_is_finite_and_above_zero check (rate_per_second > 0 and rate_per_second < 'infinity'),
  constraint webhook_endpoints_concurrency_in_range check (concurrency between 1 and 10000),
  constraint webhook_endpoints_timeout_in_range check (timeout_ms between 1 and 300000),
  constraint webhook_endpoints_signing_is_known check (signing in ('v1', 'v1a')),
  constraint webhook_endpoints_previous_secret_ends check ((previous_secret is null) = (previous_secret_until is null)),
  constraint webhook_endpoints_disabled_exactly_when_not_enabled check ((disabled_at is null) = enabled)
);

create index webhook_endpoints_tenant on webhook_endpoints (tenant, id);

comment on table webhook_endpoints is 'The endpoints that webhooks are delivered to.';
comment on column webhook_endpoints.id is 'Id of the endpoint.';
comment on column webhook_endpoints.tenant is 'The tenant that owns the endpoint. An event of a tenant is delivered to endpoints of that tenant only. Empty: no tenant.';
comment on column webhook_endpoints.url is 'Deliveries are sent to this URL by POST.';
comment on column webhook_endpoints.description is 'A description for people.';
comment on column webhook_endpoints.event_types is 'The event types the endpoint subscribes to. order.paid is exactly that type, order.* is every type that begins with "order.". Empty: all types.';
comment on column webhook_endpoints.headers is 'Headers that are sent with every delivery: an object of names and encrypted values.';
comment on column webhook_endpoints.rate_per_second is 'How many deliveries may be started per second, by all dispatchers together. Null: no limit.';
comment on column webhook_endpoints.concurrency is 'How many deliveries may be running at once, by all dispatchers together.';
comment on column webhook_endpoints.timeout_ms is 'How many milliseconds a delivery may take, from name resolution to the end of the response.';
comment on column webhook_endpoints.ordered is 'Events with the same ordering key are delivered one at a time, in the order in which they were sent.';
comment on column webhook_endpoints.signing is 'v1: HMAC-SHA256 with a shared secret. v1a: ed25519.';
comment on column webhook_endpoints.secret is 'The secret that deliveries are signed with, encrypted.';
comment on column webhook_endpoints.previous_secret is 'The secret before the last rotation, encrypted. Deliveries carry a second signature with it.';
comment on column webhook_endpoints.previous_secret_until is 'Until when they carry the second signature.';
comment on column webhook_endpoints.enabled is 'Whether events are delivered to the endpoint.';
comment on column webhook_endpoints.disabled_reason is 'Why the endpoint is disabled.';
comment on column webhook_endpoints.disabled_at is 'When the endpoint was disabled. Set exactly while it is disabled.';
comment on column webhook_endpoints.failures is 'How many attempts in a row had failed when the circuit breaker last opened or closed.';
comment on column webhook_endpoints.failing_since is 'When the circuit breaker opened. Null: it is closed.';
comment on column webhook_endpoints.open_until is 'No attempt is made before this time. After it, one delivery is attempted as a probe.';
comment on column webhook_endpoints.created_at is 'When the endpoint was created.';
comment on column webhook_endpoints.updated_at is 'When the endpoint was last changed.';
comment on index webhook_endpoints_tenant is 'The endpoints of a tenant.';

-- Without a SET clause, so that PostgreSQL can inline it.
create function webhook_wanted(event_types text[], event_type text) returns boolean
language sql immutable parallel safe
as $$
  select cardinality(event_types) = 0
    or event_type = any (event_types)
    or exists (select from unnest(event_types) as wanted where wanted like '%*' and starts_with(event_type, left(wanted, -1)))
$$;

comment on function webhook_wanted(text[], text) is 'Whether an endpoint that subscribes to these event types receives an event of this type.';

create table webhook_outbox (
  id bigint generated by default as identity,
  bucket smallint not null default 0,
  event_id uuid not null default new_event_id(),
  endpoint_id uuid not null,
  event_type text not null,
  -- Claims walk from key to key. Byte order is fast to compare and does not change when the operating system is upgraded.
  ordering_key text collate "C",
  body text not null,
  headers jsonb not null default '{}',
  delivery_status text not null default 'pending',
  attempts int not null default 0,
  expiries int not null default 0,
  next_attempt_at timestamptz not null default now(),
  created_at timestamptz not null default now(),
  lease_owner text,
  lease_until timestamptz,
  lease_token bigint not null default 0,
  delivered_at timestamptz,
  failed_at timestamptz,
  last_attempt_at timestamptz,
  last_duration_ms int,
  last_status int,
  last_error_code text,
  last_error text,
  last_response text,
  history jsonb not null default '[]',
  primary key (bucket, id),
  constraint webhook_outbox_once_for_each_endpoint unique (event_id, endpoint_id, bucket)
) with (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_limit = 2000,
  -- For the same reasons as in the outbox.
  vacuum_truncate = off
);

-- Claims have a byte budget. Uncompressed, pg_column_size(body) is the real size and does not read the body.
alter table webhook_outbox alter column body set storage external, alter column headers set storage external;

create index webhook_outbox_pending on webhook_outbox (bucket, endpoint_id, next_attempt_at, id)
  where delivery_status = 'pending' and ordering_key is null and expiries < 2;
create index webhook_outbox_suspects on webhook_outbox (bucket, endpoint_id, next_attempt_at, id)
  where delivery_status = 'pending' and expiries >= 2;
create index webhook_outbox_keys on webhook_outbox (bucket, endpoint_id, ordering_key, id)
  where delivery_status = 'pending' and ordering_key is not null;
create unique index webhook_outbox_in_flight on webhook_outbox (bucket, endpoint_id, ordering_key) include (id)
  where lease_owner is not null;
create index webhook_outbox_failed on webhook_outbox (bucket, failed_at, id) where delivery_status = 'failed';
create index webhook_outbox_failed_by_id on webhook_outbox (bucket, id) where delivery_status = 'failed';

create index webhook_outbox_endpoint on webhook_outbox (endpoint_id, bucket, id);
create index webhook_outbox_failed_of_endpoint on webhook_outbox (endpoint_id, bucket, id) where delivery_status = 'failed';

comment on index webhook_outbox_pending is 'Deliveries without an ordering key, for each endpoint in the order in which they are claimed.';
comment on index webhook_outbox_suspects is 'Deliveries whose lease has expired at least twice: a process begins with one such delivery at a time.';
comment on index webhook_outbox_keys is 'The head of an ordering key of an endpoint is the first entry of that key.';
comment on index webhook_outbox_in_flight is 'At most one delivery of an ordering key is in flight to an endpoint. Null keys are distinct, so that the index holds every delivery in flight, for the reaper.';
comment on index webhook_outbox_failed is 'Failed deliveries by the time of their failure, for operators and retention.';
comment on index webhook_outbox_failed_by_id is 'Failed deliveries by their number, for operators.';
comment on index webhook_outbox_endpoint is 'The deliveries of an endpoint by their number, for lists of an endpoint or a tenant.';
comment on index webhook_outbox_failed_of_endpoint is 'The failed deliveries of an endpoint by their number, for lists of an endpoint or a tenant.';

comment on table webhook_outbox is 'Deliveries: one row for each event and endpoint, written in the transaction of the sender. Dispatchers deliver them at least once.';
comment on column webhook_outbox.id is 'Number of the delivery, in the order of insertion. Within an ordering key of an endpoint it is the order of delivery.';
comment on column webhook_outbox.bucket is 'Distribution column. All deliveries of an ordering key share a bucket.';
comment on column webhook_outbox.event_id is 'The webhook-id, by which receivers recognise the event. It is the same in every attempt.';
comment on column webhook_outbox.endpoint_id is 'The endpoint to which the event is delivered.';
comment on column webhook_outbox.event_type is 'What happened, for example order.paid. 1 to 255 bytes.';
comment on column webhook_outbox.ordering_key is 'Deliveries with the same key and endpoint are made one at a time, in the order of their ids. Null: in any order, and always so where the endpoint was not ordered when the event was sent. At most 1024 bytes.';
comment on column webhook_outbox.body is 'The body in JSON, byte for byte as it is signed and sent. At most 266240 bytes.';
comment on column webhook_outbox.headers is 'An object of headers of the event, for example traceparent. At most 16384 bytes as text.';
comment on column webhook_outbox.delivery_status is 'pending, delivered or failed.';
comment on column webhook_outbox.attempts is 'How many attempts have failed. An expired lease counts as one.';
comment on column webhook_outbox.expiries is 'How many leases of the delivery have expired. From the second on the delivery is a suspect and waits for the backoff.';
comment on column webhook_outbox.next_attempt_at is 'The delivery is not attempted before this time.';
comment on column webhook_outbox.created_at is 'When the event was sent, by the clock of the database.';
comment on column webhook_outbox.lease_owner is 'The worker id of the dispatcher that holds the delivery.';
comment on column webhook_outbox.lease_until is 'When the lease expires.';
comment on column webhook_outbox.lease_token is 'The fencing token. It grows by one with every claim and is never reset.';
comment on column webhook_outbox.delivered_at is 'When the endpoint had answered with a 2xx status. Set exactly while delivered.';
comment on column webhook_outbox.failed_at is 'When the delivery was given up. Set exactly while failed.';
comment on column webhook_outbox.last_attempt_at is 'When the last attempt started.';
comment on column webhook_outbox.last_duration_ms is 'How many milliseconds the last attempt took.';
comment on column webhook_outbox.last_status is 'The HTTP status of the response to the last attempt.';
comment on column webhook_outbox.last_error_code is 'Why the last attempt failed, as a code.';
comment on column webhook_outbox.last_error is 'Why the last attempt failed, as a sentence.';
comment on column webhook_outbox.last_response is 'The beginning of the response to the last attempt.';
comment on column webhook_outbox.history is 'The attempts at the delivery, the newest last: an array of objects with attempt, token, started_at, duration_ms, status, error_code, error, response and recorded_at. The view webhook_attempts shows them as rows.';

-- Where there are several buckets, triggers decide in which one a delivery is, as in the outbox.
create function place_webhook_delivery() returns trigger
language plpgsql set search_path from current
as $$
declare
  given constant smallint := new.bucket;
  previous smallint;
begin
  -- A finished delivery, which a restored dump writes, has no place in the order of its key.
  if given is not null and new.delivery_status <> 'pending' then
    return new;
  end if;
  if new.ordering_key is null then
    -- The same event and endpoint are always in one bucket, so that an event that is sent twice is delivered once.
    new.bucket := coalesce(given, bucket(new.event_id::text || new.endpoint_id::text));
  else
    new.bucket := bucket(new.ordering_key);
    if previous_bucket_count() <> bucket_count() then
      previous := bucket_of(new.ordering_key, previous_bucket_count());
      if previous <> new.bucket then
        -- One lock for all endpoints: an event may be sent to thousands of them.
        perform pg_advisory_xact_lock(1279806532, hashtext(tg_table_schema || '.webhook_outbox:' || new.ordering_key));
        -- The next delivery of a key follows those that are unfinished.
        if exists (select from webhook_outbox as d where d.bucket = previous and d.endpoint_id = new.endpoint_id
          and d.ordering_key = new.ordering_key and d.delivery_status = 'pending')
        then
          new.bucket := previous;
        end if;
      end if;
    end if;
    if tg_op = 'INSERT' and given not in (new.bucket, bucket(new.ordering_key)) then
      raise exception 'the bucket of a delivery of a % event with the ordering_key % is %, and must be %', new.event_type, to_json(new.ordering_key), given, new.bucket
        using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name, column = 'bucket',
          hint = format('Leave bucket out, or write %I.bucket(ordering_key).', tg_table_schema);
    end if;
  end if;
  if tg_op = 'INSERT' then
    -- A delivery that exists is found where it was written, however many buckets there were.
    new.bucket := coalesce(
      (select d.bucket from webhook_outbox as d
        where d.event_id = new.event_id and d.endpoint_id = new.endpoint_id order by d.bucket limit 1),
      new.bucket);
  end if;
  return new;
end
$$;

comment on function place_webhook_delivery() is 'Places a delivery that is written or replayed: by its ordering key, or else by its event and endpoint. Refuses another bucket for an ordering key.';

create view webhook_attempts with (security_invoker = true) as
  select
    attempt.number as id,
    delivery.bucket,
    delivery.id as delivery_id,
    delivery.endpoint_id,
    (attempt.entry ->> 'attempt')::int as attempt,
    (attempt.entry ->> 'token')::bigint as lease_token,
    (attempt.entry ->> 'started_at')::timestamptz as started_at,
    (attempt.entry ->> 'duration_ms')::int as duration_ms,
    (attempt.entry ->> 'status')::int as status,
    attempt.entry ->> 'error_code' as error_code,
    attempt.entry ->> 'error' as error,
    attempt.entry ->> 'response' as response,
    (attempt.entry ->> 'recorded_at')::timestamptz as recorded_at
  from webhook_outbox as delivery
  cross join lateral jsonb_array_elements(delivery.history) with ordinality as attempt (entry, number);

comment on view webhook_attempts is 'Every attempt at a delivery, from webhook_outbox.history.';
comment on column webhook_attempts.id is 'Number of the attempt within the history of the delivery, from 1.';
comment on column webhook_attempts.bucket is 'The bucket of the delivery.';
comment on column webhook_attempts.delivery_id is 'The delivery that was attempted.';
comment on column webhook_attempts.endpoint_id is 'The endpoint of the delivery.';
comment on column webhook_attempts.attempt is 'Number of the attempt since the delivery was sent or last replayed, from 1.';
comment on column webhook_attempts.lease_token is 'The fencing token under which the attempt was made.';
comment on column webhook_attempts.started_at is 'When the attempt started. Null: the lease expired, and it is not known whether an attempt was made.';
comment on column webhook_attempts.duration_ms is 'How many milliseconds the attempt took.';
comment on column webhook_attempts.status is 'The HTTP status of the response.';
comment on column webhook_attempts.error_code is 'Why the attempt failed, as a code. Null: it succeeded.';
comment on column webhook_attempts.error is 'Why the attempt failed, as a sentence.';
comment on column webhook_attempts.response is 'The beginning of the response.';
comment on column webhook_attempts.recorded_at is 'When the attempt was recorded.';

-- What a delivery must be, for everyone who writes to the table: the state machine, the fields that belong to each state, and
-- the limits of what a sender gives, so that a plain INSERT is as safe as send_webhook(). One function, for the reasons of
-- check_outbox_event(). Deliveries in every state can be inserted, because a restored dump does that; a sender cannot do so,
-- because leasehold_producer may only insert into the columns that are a sender's to set.
-- The body is larger than the payload by its envelope: the event type and a time, for which 4096 bytes are allowed.
create function check_webhook_delivery() returns trigger
language plpgsql set search_path from current
as $$
declare
  is_replica boolean;
  broken record;
begin
  if tg_op = 'UPDATE' and current_setting('session_replication_role') <> 'replica' then
    if new.lease_token < old.lease_token then
      raise exception 'the lease_token of delivery % never goes down: % cannot follow %', old.id, new.lease_token, old.lease_token
        using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name, column = 'lease_token',
          hint = 'Do not write lease_token; a claim raises it by one.';
    end if;
    if (case old.delivery_status
        when 'pending' then new.delivery_status in ('pending', 'delivered', 'failed')
        else new.delivery_status in (old.delivery_status, 'pending')
      end) is not true
    then
      raise exception 'delivery % cannot go from % to %', old.id, old.delivery_status, new.delivery_status
        using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name, column = 'delivery_status',
          detail = 'Legal are pending → delivered, pending → failed, delivered → pending, failed → pending.',
          hint = 'A finished delivery returns to pending by leasehold webhooks replay only.';
    end if;
  end if;

  if (case new.delivery_status
        when 'pending' then num_nonnulls(new.delivered_at, new.failed_at) = 0 and (new.lease_owner is null) = (new.lease_until is null)
        when 'delivered' then num_nonnulls(new.lease_owner, new.lease_until, new.failed_at) = 0 and new.delivered_at is not null
        when 'failed' then num_nonnulls(new.lease_owner, new.lease_until, new.delivered_at) = 0 and new.failed_at is not null
      end
    and new.attempts between 0 and 1000000
    and new.expiries between 0 and 1000000
    and new.lease_token >= 0
    and new.bucket between 0 and bucket_count() - 1
    and jsonb_typeof(new.headers) = 'object'
    and jsonb_typeof(new.history) = 'array'
    and (tg_op = 'UPDATE' or (
      octet_length(new.event_type) between 1 and 255
      and octet_length(new.ordering_key) between 1 and 1024
      and octet_length(new.body) <= 266240
      and octet_length(new.headers::text) <= 16384
      and not new.headers @? '$.**{101}'
      and new.next_attempt_at between '0001-01-01 00:00+00' and '9999-12-31 23:59:59.999999+00'
      and new.created_at between '0001-01-01 00:00+00' and '9999-12-31 23:59:59.999999+00'
      -- The envelope is one level. The body is a text, which is parsed only if it has enough brackets: for 10 KB the two
      -- replacements take 15 microseconds, parsing takes 120.
      and case when 2 * octet_length(new.body) - octet_length(replace(new.body, '{', '')) - octet_length(replace(new.body, '[', '')) > 101
        then not new.body::jsonb @? '$.**{102}' end is not false
    ) is not false)                   -- null where a column is null: whether it may be is not decided here
  ) then
    return new;
  end if;

  is_replica := current_setting('session_replication_role') = 'replica';
  select * into broken from (values
    (new.delivery_status in ('pending', 'delivered', 'failed'),
      'webhook_outbox_status_is_known', 'delivery_status', new.delivery_status, 'must be pending, delivered or failed'),
    ((new.delivered_at is not null) = (new.delivery_status = 'delivered'),
      'webhook_outbox_delivered_at_exactly_when_delivered', 'delivered_at', new.delivered_at::text, 'must be set exactly while the delivery is delivered'),
    ((new.failed_at is not null) = (new.delivery_status = 'failed'),
      'webhook_outbox_failed_at_exactly_when_failed', 'failed_at', new.failed_at::text, 'must be set exactly while the delivery is failed'),
    (new.delivery_status = 'pending' or num_nonnulls(new.lease_owner, new.lease_until) = 0,
      'webhook_outbox_leased_only_when_pending', 'lease_owner', new.lease_owner, 'must be null, like lease_until, unless the delivery is pending'),
    ((new.lease_owner is null) = (new.lease_until is null),
      'webhook_outbox_lease_is_whole', 'lease_owner', new.lease_owner, 'must be set exactly when lease_until is'),
    (new.attempts between 0 and 1000000, 'webhook_outbox_attempts_in_range', 'attempts', new.attempts::text, 'must be from 0 to 1000000'),
    (new.expiries between 0 and 1000000, 'webhook_outbox_expiries_in_range', 'expiries', new.expiries::text, 'must be from 0 to 1000000'),
    (new.lease_token >= 0, 'webhook_outbox_lease_token_is_not_negative', 'lease_token', new.lease_token::text, 'must be at least 0'),
    (new.bucket between 0 and bucket_count() - 1,
      'webhook_outbox_bucket_is_served', 'bucket', new.bucket::text, format('must be from 0 to %s', bucket_count() - 1)),
    (jsonb_typeof(new.headers) = 'object', 'webhook_outbox_headers_are_an_object', 'headers', 'of type ' || jsonb_typeof(new.headers), 'must be an object'),
    (jsonb_typeof(new.history) = 'array', 'webhook_outbox_history_is_an_array', 'history', 'of type ' || jsonb_typeof(new.history), 'must be an array')
  ) as rule (is_met, name, field, given, must)
  where is_met is false limit 1;
  if found then
    raise exception 'the % of delivery % is %, and %', broken.field, new.id, coalesce(broken.given, 'null'), broken.must
      using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name, column = broken.field, constraint = broken.name,
        hint = format('The delivery is %s. Let the dispatcher, or a command of leasehold, change its state: they set the fields that belong to it.', new.delivery_status);
  end if;
  if is_replica or tg_op = 'UPDATE' then
    return new;
  end if;

  select * into broken from (values
    (octet_length(new.event_type) between 1 and 255, 'event_type', 'check_violation',
      format('the event_type has %s bytes, and must have 1 to 255', octet_length(new.event_type)),
      'Name what happened, for example order.paid.'),
    (octet_length(new.ordering_key) between 1 and 1024, 'ordering_key', 'check_violation',
      format('the ordering_key of a %s event has %s bytes, and must have 1 to 1024', new.event_type, octet_length(new.ordering_key)),
      'Give a shorter text that is not empty, or null for an event without an order.'),
    (octet_length(new.body) <= 266240, 'body', 'program_limit_exceeded',
      format('the body of a %s event has %s bytes, and at most 266240 are allowed', new.event_type, octet_length(new.body)),
      'Store large data elsewhere and send a reference to it.'),
    (octet_length(new.headers::text) <= 16384, 'headers', 'program_limit_exceeded',
      format('the headers of a %s event have %s bytes, and at most 16384 are allowed', new.event_type, octet_length(new.headers::text)),
      'Headers are sent as HTTP headers. Put data into the payload.'),
    (not new.headers @? '$.**{101}', 'headers', 'program_limit_exceeded',
      format('the headers of a %s event are nested more than 100 levels deep', new.event_type),
      'Headers are an object of texts. Put data into the payload.'),
    (new.next_attempt_at between '0001-01-01 00:00+00' and '9999-12-31 23:59:59.999999+00', 'next_attempt_at', 'check_violation',
      format('the next_attempt_at of a %s event is %s, and must be in the years 1 to 9999', new.event_type, new.next_attempt_at),
      'Give the time from which on the event may be delivered.'),
    (new.created_at between '0001-01-01 00:00+00' and '9999-12-31 23:59:59.999999+00', 'created_at', 'check_violation',
      format('the created_at of a %s event is %s, and must be in the years 1 to 9999', new.event_type, new.created_at),
      'Insert the delivery without created_at.'),
    (case when 2 * octet_length(new.body) - octet_length(replace(new.body, '{', '')) - octet_length(replace(new.body, '[', '')) > 101
        then not new.body::jsonb @? '$.**{102}' end, 'body', 'program_limit_exceeded',
      format('the body of a %s event is nested more than 101 levels deep', new.event_type),
      'Flatten the payload: many JSON parsers refuse more.')
  ) as bound (is_met, field, code, problem, remedy)
  where is_met is false limit 1;
  if found then
    raise exception '%', broken.problem
      using errcode = broken.code, schema = tg_table_schema, table = tg_table_name, column = broken.field, hint = broken.remedy;
  end if;
  return new;                         -- a column is null that must not be: the table refuses that
end
$$;

comment on function check_webhook_delivery() is 'Refuses a delivery that is outside a limit, whose fields do not belong to its state, or that cannot go from its state to the new one. It names the field, its value and the remedy.';

-- It fires after the triggers that place a delivery in a bucket: triggers fire in the order of their names.
create trigger webhook_outbox_checked before insert or update on webhook_outbox for each row execute function check_webhook_delivery();
-- In a session that applies changes of another database too, such as one of logical replication.
alter table webhook_outbox enable always trigger webhook_outbox_checked;

comment on trigger webhook_outbox_checked on webhook_outbox is 'Refuses what a delivery must not be, whatever program writes it.';

create trigger webhook_written after insert on webhook_outbox for each statement execute function wake_workers('webhooks');

comment on trigger webhook_written on webhook_outbox is 'Wakes the dispatchers, whatever statement inserts the deliveries.';

create trigger webhook_endpoint_changed after insert or update or delete on webhook_endpoints
  for each statement execute function wake_workers('webhooks');

comment on trigger webhook_endpoint_changed on webhook_endpoints is 'Wakes the dispatchers when endpoints change.';

create function keep_headers_within_origin() returns trigger
language plpgsql set search_path from current
as $$
begin
  if substring(new.url from '^[^/]*//[^/?#]*') is distinct from substring(old.url from '^[^/]*//[^/?#]*')
    and new.headers = old.headers
  then
    new.headers := '{}';
  end if;
  return new;
end
$$;

comment on function keep_headers_within_origin() is 'Removes the headers of an endpoint when its URL gets another scheme, host or port and its headers are not changed with it.';

create trigger webhook_endpoint_moved before update of url on webhook_endpoints
  for each row execute function keep_headers_within_origin();

comment on trigger webhook_endpoint_moved on webhook_endpoints is 'Headers may be credentials. Whoever changes the URL must not send them to another server without knowing them.';

-- A worker erases the previous secret when its rotation is complete, and a dispatcher reads all secrets. Neither may write
-- one: an old ciphertext of the endpoint, put back here, would let whoever has that secret sign again.
create function refuse_previous_secret() returns trigger
language plpgsql set search_path from current
as $$
begin
  if not pg_catalog.has_column_privilege(current_user, tg_relid, 'secret', 'update') then
    raise insufficient_privilege using
      message = format('permission denied for column previous_secret of table %s: %s may only set it to null', tg_table_name, current_user);
  end if;
  return new;
end
$$;

comment on function refuse_previous_secret() is 'Refuses to write the previous secret of an endpoint, or to let it live longer, for a role that may not change its secret.';

create trigger webhook_previous_secret before update of previous_secret, previous_secret_until on webhook_endpoints
  for each row
  when (new.previous_secret is not null and (new.previous_secret, new.previous_secret_until) is distinct from (old.previous_secret, old.previous_secret_until))
  execute function refuse_previous_secret();

comment on trigger webhook_previous_secret on webhook_endpoints is 'Workers and dispatchers may only erase the previous secret.';

create function send_webhook(
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
  wanted constant uuid := coalesce(send_webhook.event_id, new_event_id());
  written int;
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
  insert into webhook_outbox (event_id, endpoint_id, event_type, ordering_key, body, headers, next_attempt_at)
  select wanted, e.id, send_webhook.event_type, case when e.ordered then send_webhook.ordering_key end, body,
    coalesce(send_webhook.headers, '{}'), coalesce(send_webhook.available_at, now())
  from webhook_endpoints as e
  where e.tenant = coalesce(send_webhook.tenant, '') and e.enabled and webhook_wanted(e.event_types, send_webhook.event_type)
  order by e.id
  on conflict (event_id, endpoint_id, bucket) do nothing;
  get diagnostics written = row_count;
  return written;
end
$$;

comment on function send_webhook(text, jsonb, text, text, jsonb, timestamptz, uuid) is
'Writes a delivery for every enabled endpoint of the tenant that subscribes to the event type, in the transaction of the caller, and returns their number. An event_id that was sent before is the same event: an endpoint receives it once.';

-- What createWebhooks() calls: the events in a JSON text, one argument whatever their number. Subscriptions are evaluated once
-- for each tenant and type, not for each event: for 5,000 events of one type, webhook_wanted is called once for each endpoint.
-- body is declared as json, which preserves the text to the byte. Ids are assigned in the order of position, so that the
-- deliveries of an ordering key are in the order in which they were sent. The answer has a row for every event, even without
-- subscribed endpoints, so that a driver that returns no rows is noticed.
create function send_webhooks(events text) returns table (event text, deliveries text)
language plpgsql set search_path from current
as $$
#variable_conflict use_column
begin
  return query
    with given as materialized (
      select e."position", e.event_id, e.event_type, e.tenant, e.ordering_key, e.body::text as body, e.headers,
        coalesce(e.available_at, now()) as next_attempt_at
      from json_to_recordset(send_webhooks.events::json) as e (
        "position" int, event_id uuid, event_type text, tenant text, ordering_key text, body json, headers jsonb,
        available_at timestamptz
      )
    ),
    subscribed as materialized (
      select kind.tenant, kind.event_type, endpoint.id as endpoint_id, endpoint.ordered
      from (select distinct tenant, event_type from given) as kind
      join webhook_endpoints as endpoint on endpoint.tenant = kind.tenant and endpoint.enabled
        and webhook_wanted(endpoint.event_types, kind.event_type)
    ),
    written as (
      insert into webhook_outbox as d (event_id, endpoint_id, event_type, ordering_key, body, headers, next_attempt_at)
      select given.event_id, subscribed.endpoint_id, given.event_type,
        case when subscribed.ordered then given.ordering_key end, given.body, given.headers, given.next_attempt_at
      from given join subscribed on subscribed.tenant = given.tenant and subscribed.event_type = given.event_type
      order by given."position", subscribed.endpoint_id
      on conflict (event_id, endpoint_id, bucket) do nothing   -- the same event was sent before
      returning d.event_id
    )
    select given.event_id::text, count(written.event_id)::text
    from given left join written on written.event_id = given.event_id
    group by given.event_id;
end
$$;

comment on function send_webhooks(text) is 'Writes the deliveries of events in the transaction of the caller, and answers with their number for each event. Called by createWebhooks().';
