-- The roles, and everything that is granted to them. docs/operations/roles.md describes them.
--
-- This file can be repeated at any time, with search_path set to the schema; `leasehold roles` does that. It creates what
-- is missing, and grants. Roles belong to the server and not to a database: each database and schema grants to the same
-- seven roles, unless leasehold.role_prefix names others.
--
-- An administrator may run this on a schema of somebody else, who could have put a function or an operator into it that fits
-- a call here better than PostgreSQL's own. So the search_path is pg_catalog, except for GRANT, which calls nothing.
--
-- Where the migrating role may not create roles, they and the grants to them are skipped. An administrator then runs what
-- `leasehold roles --print` prints.
do $$
declare
  home constant name := pg_catalog.current_schema();
  prefix text;
  role text;
  statement text;
  granted record;
  grants text[];
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  prefix := coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), 'leasehold');
  foreach role in array array['producer', 'worker', 'dispatcher', 'reader', 'operator', 'tenant', 'api'] loop
    role := prefix || '_' || role;
    continue when exists (select from pg_roles where rolname = role);
    begin
      -- The policies of the tenant would also limit a role that inherits from it.
      execute pg_catalog.format('create role %I nologin %s', role, case when role = prefix || '_api' then 'noinherit' else '' end);
    exception
      -- Databases of one server may be migrated at the same time.
      when duplicate_object or unique_violation then null;
      when insufficient_privilege then
        raise notice 'the role % does not exist and was not created: %', role, sqlerrm
          using hint = 'An administrator can run what `leasehold roles --print` prints.';
    end;
  end loop;

  select coalesce(array_agg(format('grant %s to %I', privilege, rolname)), '{}') into grants
  from (
    select rolname, privilege
    from (values
      -- producer: an application that writes events, deliveries and jobs. It sets the columns that are a producer's to set,
      -- and reads what ON CONFLICT, RETURNING and the search for an existing row need: never a payload.
      ('producer', format('usage on schema %I', home)),
      ('producer', 'execute on function bucket_count(), previous_bucket_count(), bucket_of(text, int), bucket(text), wake(text), may_wake(text), notify_workers(text, text), new_event_id(), find_event(uuid), enqueue(text, jsonb, text, jsonb, timestamptz, uuid), enqueue_event(text, text, text, text, text, text, text), enqueue_events(text)'),
      ('producer', 'insert (bucket, event_id, event_type, ordering_key, payload, headers, available_at, max_attempts) on outbox'),
      ('producer', 'select (bucket, id, event_id, event_id_given, ordering_key, status, parked) on outbox'),
      ('producer', 'execute on function webhook_wanted(text[], text), send_webhook(text, jsonb, text, text, jsonb, timestamptz, uuid), send_webhooks(text)'),
      ('producer', 'select (id, tenant, enabled, event_types, ordered) on webhook_endpoints'),
      ('producer', 'insert (bucket, event_id, endpoint_id, event_type, ordering_key, body, headers, next_attempt_at) on webhook_outbox'),
      ('producer', 'select (bucket, event_id, endpoint_id, ordering_key, delivery_status) on webhook_outbox'),
      ('producer', 'insert (definition, matrix_id, params, priority, force, fresh_for, parallel) on sync_jobs'),
      ('producer', 'select (id, definition, matrix_id, parallel, completed_at, failed_at) on sync_jobs'),
      -- once(): an application that receives events remembers those it has processed.
      ('producer', 'select, insert (consumer, event_id), delete on inbox'),

      -- worker: a process that runs workers or the reaper. It claims, settles, reaps and removes rows; what a producer has
      -- written stays as it is.
      ('worker', format('usage on schema %I', home)),
      ('worker', 'execute on function bucket_count(), previous_bucket_count(), bucket_of(text, int), bucket(text), wake(text), may_wake(text), notify_workers(text, text), new_event_id()'),
      ('worker', 'select, insert, update, delete on workers'),
      ('worker', 'select on settings'),
      -- Retention of the audit. A worker reads no entry; the table refuses to delete those younger than 30 days.
      ('worker', 'select (id, at), delete on audit'),
      ('worker', 'select, delete on outbox'),
      ('worker', 'update (status, attempts, expiries, available_at, claimed_at, claimed_by, locked_until, lock_token, published_at, dead_at, last_error, parked, published_by, history) on outbox'),
      -- Retention locks the entries that it removes, for which PostgreSQL wants the right to update one column.
      ('worker', 'select, insert (consumer, event_id), update (processed_at), delete on inbox'),
      -- A relay can publish to webhooks, and then sends as a producer does. It sees no URL, no header and no secret.
      -- A process that reaps erases secrets whose rotation is complete, without reading them.
      ('worker', 'select (id, tenant, enabled, event_types, ordered, previous_secret_until) on webhook_endpoints'),
      ('worker', 'update (previous_secret, previous_secret_until) on webhook_endpoints'),
      ('worker', 'execute on function webhook_wanted(text[], text), send_webhook(text, jsonb, text, text, jsonb, timestamptz, uuid), send_webhooks(text)'),
      ('worker', 'insert (bucket, event_id, endpoint_id, event_type, ordering_key, body, headers, next_attempt_at) on webhook_outbox'),
      ('worker', 'select, delete on webhook_outbox'),
      ('worker', 'update (delivery_status, attempts, expiries, next_attempt_at, lease_owner, lease_until, lease_token, delivered_at, failed_at, last_attempt_at, last_duration_ms, last_status, last_error_code, last_error, last_response, history) on webhook_outbox'),
      ('worker', 'execute on function sync_state(timestamptz, timestamptz, timestamptz), sync_reserve(text, int, float8, int, float8)'),
      -- Jobs are enqueued by a producer. A runner plans them: it writes their chunks.
      ('worker', 'select, delete on sync_jobs'),
      ('worker', 'update (planned_at, next_check_at, attempts, expiries, completed_at, failed_at, error_message, locked_until, locked_by, lock_token) on sync_jobs'),
      ('worker', 'select, insert, update, delete on sync_checkpoints, sync_job_chunks, sync_sources'),
      ('worker', 'select on sync_job_states, sync_checkpoint_states'),

      -- dispatcher: a worker that delivers webhooks as well. Only this one reads the secrets by which deliveries are signed.
      ('dispatcher', 'select on webhook_endpoints'),
      -- The circuit breaker, and an endpoint that answers 410.
      ('dispatcher', 'update (enabled, disabled_reason, disabled_at, failures, failing_since, open_until, updated_at) on webhook_endpoints'),

      -- reader: monitoring and support. It reads everything but the secrets of endpoints.
      ('reader', format('usage on schema %I', home)),
      ('reader', 'execute on function bucket_count(), previous_bucket_count(), bucket_of(text, int), bucket(text), find_event(uuid), webhook_wanted(text[], text), sync_state(timestamptz, timestamptz, timestamptz)'),
      ('reader', 'select on audit, workers, settings, outbox, inbox, webhook_outbox, webhook_attempts'),
      -- The values of headers are encrypted; their names are listed.
      ('reader', 'select (id, tenant, url, description, event_types, headers, rate_per_second, concurrency, timeout_ms, ordered, signing, previous_secret_until, enabled, disabled_reason, disabled_at, failures, failing_since, open_until, created_at, updated_at) on webhook_endpoints'),
      ('reader', 'select on sync_jobs, sync_checkpoints, sync_job_chunks, sync_sources, sync_job_states, sync_checkpoint_states'),

      -- operator: what a reader can do, and replay, cancel, unblock, settings and endpoints. Every change is in the audit,
      -- to which an operator can only add.
      ('operator', format('usage on schema %I', home)),
      ('operator', 'execute on function bucket_count(), previous_bucket_count(), bucket_of(text, int), bucket(text), wake(text), may_wake(text), notify_workers(text, text), new_event_id(), find_event(uuid), webhook_wanted(text[], text), sync_state(timestamptz, timestamptz, timestamptz)'),
      ('operator', 'select on audit, workers, settings, outbox, inbox, webhook_outbox, webhook_attempts'),
      ('operator', 'insert (principal, action, target, details) on audit'),
      ('operator', 'insert, update, delete on settings'),
      ('operator', 'update (status, attempts, expiries, available_at, claimed_at, claimed_by, locked_until, lock_token, published_at, dead_at, last_error, parked, published_by, history) on outbox'),
      -- Rotating a secret reads the encrypted one.
      ('operator', 'select, insert, update, delete on webhook_endpoints'),
      ('operator', 'update (delivery_status, attempts, expiries, next_attempt_at, lease_owner, lease_until, delivered_at, failed_at, last_error_code, last_error) on webhook_outbox'),
      -- Test events. Whoever can rotate a secret could sign an event without this, too.
      ('operator', 'insert (bucket, event_id, endpoint_id, event_type, body) on webhook_outbox'),
      ('operator', 'select on sync_jobs, sync_checkpoints, sync_job_chunks, sync_sources, sync_job_states, sync_checkpoint_states'),
      ('operator', 'update (attempts, expiries, next_check_at, completed_at, failed_at, error_message, locked_by, locked_until, planned_at) on sync_jobs'),
      ('operator', 'update (needed, attempts, expiries, next_attempt_at, failed_at, error_message) on sync_checkpoints'),

      -- tenant: a key of the HTTP API that is limited to one tenant. It sees and changes the endpoints and deliveries of the
      -- tenant that leasehold.tenant names, and its own entries of the audit; policies below see to that.
      ('tenant', format('usage on schema %I', home)),
      ('tenant', 'execute on function bucket_count(), previous_bucket_count(), bucket_of(text, int), bucket(text), wake(text), may_wake(text), notify_workers(text, text), new_event_id(), webhook_wanted(text[], text)'),
      ('tenant', 'select, insert, update, delete on webhook_endpoints'),
      ('tenant', 'select on webhook_outbox, webhook_attempts, audit'),
      ('tenant', 'update (delivery_status, attempts, expiries, next_attempt_at, lease_owner, lease_until, delivered_at, failed_at, last_error_code, last_error) on webhook_outbox'),
      -- Test events, to its own endpoints.
      ('tenant', 'insert (bucket, event_id, endpoint_id, event_type, body) on webhook_outbox'),
      ('tenant', 'insert (principal, action, target, details) on audit'),

      -- api: the login role of the HTTP API. It reads what a reader does, knows the keys, and acts as reader, operator,
      -- producer or tenant, whichever a request needs.
      ('api', format('usage on schema %I', home)),
      ('api', 'select, insert, update (last_used_at, revoked_at, revoked_by) on api_keys'),
      ('api', 'select, insert, delete on api_sessions, api_portal_links'),
      ('api', 'select, insert, update, delete on api_requests'),
      ('api', 'insert (principal, action, target, details) on audit')
    ) as wanted (kind, privilege)
    join pg_roles on rolname = prefix || '_' || kind
      or (kind = 'worker' and rolname = prefix || '_dispatcher')
      -- The API reads for itself as well, for its checks and metrics. It does not inherit that.
      or (kind = 'reader' and rolname = prefix || '_api')
    union all
    -- Which migrations were applied. The table exists where Leasehold runs the migrations itself.
    select rolname, 'select on migrations'
    from pg_roles
    where rolname in (prefix || '_worker', prefix || '_dispatcher', prefix || '_reader', prefix || '_operator', prefix || '_tenant', prefix || '_api')
      and to_regclass(format('%I.migrations', home)) is not null
    union all
    -- Where Citus distributes the tables.
    select rolname, 'select on citus_buckets'
    from pg_roles
    where rolname in (prefix || '_worker', prefix || '_dispatcher', prefix || '_reader', prefix || '_operator', prefix || '_api')
      and to_regclass(format('%I.citus_buckets', home)) is not null
  ) as wanted;
  perform set_config('search_path', format('%I, pg_temp', home), true);
  foreach statement in array grants loop
    execute statement;
  end loop;
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

  for granted in
    select member.rolname as role, given.rolname as privilege
    from pg_roles as member, pg_roles as given
    where member.rolname = prefix || '_api'
      and given.rolname = any (array[prefix || '_reader', prefix || '_operator', prefix || '_producer', prefix || '_tenant'])
      and not exists (select from pg_auth_members as m where m.roleid = given.oid and m.member = member.oid)
    union all
    -- Which sessions hold old snapshots is shown to these only. Only a superuser can grant it.
    select member.rolname, 'pg_read_all_stats'
    from pg_roles as member, pg_roles as self
    where member.rolname in (prefix || '_reader', prefix || '_operator', prefix || '_api') and self.rolname = current_user and self.rolsuper
      and not pg_has_role(member.oid, 'pg_read_all_stats', 'usage')
    union all
    -- Whoever created the roles, and is no superuser, can then serve the HTTP API as well.
    select self.rolname, given.rolname
    from pg_roles as self, pg_roles as given
    where self.rolname = current_user and not self.rolsuper and given.rolname = prefix || '_api'
      and not pg_has_role(self.oid, given.oid, 'usage')
  loop
    begin
      execute format('grant %I to %I', granted.privilege, granted.role);
    exception when insufficient_privilege then
      raise notice '% was not granted to %: %', granted.privilege, granted.role, sqlerrm
        using hint = 'An administrator can run what `leasehold roles --print` prints.';
    end;
  end loop;

  role := prefix || '_tenant';
  if exists (select from pg_roles where rolname = role)
    and pg_has_role(current_user, (select relowner from pg_class where oid = format('%I.webhook_outbox', home)::regclass), 'usage') then
    -- The role of each prefix has policies of its own, which have its name.
    execute format('drop policy if exists %I on %I.webhook_endpoints', role, home);
    execute format('drop policy if exists %I on %I.webhook_outbox', role, home);
    execute format('drop policy if exists %I on %I.audit', role, home);
    execute format('create policy %1$I on %2$I.webhook_endpoints as restrictive to %1$I
      using (tenant = nullif(current_setting(''leasehold.tenant''), ''''))', role, home);
    -- Citus has no policies with subqueries. There, no key is limited to a tenant.
    execute format('create policy %1$I on %2$I.webhook_outbox as restrictive to %1$I using (%3$s)', role, home,
      case when to_regclass(format('%I.citus_buckets', home)) is null then format('endpoint_id in (select id from %I.webhook_endpoints)', home) else 'false' end);
    -- It also sees what others have added to the bulk changes that it asked for: that one was cancelled.
    execute format('create policy %1$I on %2$I.audit as restrictive to %1$I
      using (principal = current_setting(''leasehold.principal'')
        or details -> ''background'' ->> ''by'' = current_setting(''leasehold.principal''))
      with check (principal = current_setting(''leasehold.principal''))', role, home);
  end if;
  perform set_config('search_path', format('%I, pg_temp', home), true);
end
$$;
