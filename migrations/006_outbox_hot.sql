-- Settling an event becomes a HOT update: no index mentions anything that it changes, and its page has room for the
-- new version. docs/decisions/013-notes-of-claims.md says how, and why nothing is lost.

-- Rewrites the table, as adding a stored column does: with millions of events, choose a quiet moment. Stop the relays of
-- the release before this one first: they look for indexes that are no longer there.
alter table outbox
  add column indexed_status text generated always as (
    case when ordering_key is not null or status = 'DEAD' then status end
  ) stored,
  add column claim_id bigint;

comment on column outbox.indexed_status is 'The status, where an index needs it: of events with an ordering key, and of dead ones.';
comment on column outbox.claim_id is 'The note of its last claim, in outbox_claims. Written by claims; leave it alone.';

-- Half of a page for the events as they are written, half for what becomes of them.
alter table outbox set (fillfactor = 50);
alter index outbox_pkey set (fillfactor = 50);
alter index outbox_event_id_unique set (fillfactor = 50);

drop index outbox_claimed;
drop index outbox_in_flight;
drop index outbox_lines;
drop index outbox_dead;

-- At most one event of a key is in flight, whatever anybody does.
create unique index outbox_in_flight on outbox (bucket, ordering_key)
  where indexed_status = 'CLAIMED' and ordering_key is not null;

-- Who stands where in the line of a key: what is in flight first, then by id.
create index outbox_lines on outbox (bucket, ordering_key, (indexed_status <> 'CLAIMED'), id)
  where ordering_key is not null and (indexed_status in ('PENDING', 'CLAIMED') or parked);

-- Dead events are few and looked for often: by operators, by replay, by retention.
create index outbox_dead on outbox (bucket, id) where indexed_status = 'DEAD';

create table outbox_claims (
  bucket smallint not null default 0,
  id bigint generated always as identity,
  rows bigint[] not null,
  primary key (bucket, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

comment on table outbox_claims is 'A note of each claim, so that the reaper finds what is in flight. Written by relays; leave it alone.';
comment on column outbox_claims.bucket is 'The bucket of its events.';
comment on column outbox_claims.id is 'Number of the claim; outbox.claim_id names it.';
comment on column outbox_claims.rows is 'The ids of the events that were claimed. The note goes once none of them is in flight.';

-- Who may claim events may note that.
do $$
declare
  granted record;
begin
  for granted in
    select distinct case when acl.grantee = 0 then 'public' else quote_ident(r.rolname) end as grantee
    from pg_class as c cross join lateral aclexplode(c.relacl) as acl
    left join pg_roles as r on r.oid = acl.grantee
    where c.oid = 'outbox'::regclass and acl.privilege_type = 'UPDATE' and acl.grantee <> c.relowner
  loop
    execute format('grant select, insert, update, delete on outbox_claims to %s', granted.grantee);
  end loop;
end
$$;

insert into outbox_claims (bucket, rows)
select bucket, array_agg(id) from outbox where status = 'CLAIMED' group by bucket;

create function check_outbox_transition() returns trigger
language plpgsql set search_path from current
as $$
begin
  if old.status = 'PENDING' and new.status = 'CLAIMED' and new.lock_token > old.lock_token then
    -- By hand, or by a relay of an older release: a claim without a note is given one.
    insert into outbox_claims (bucket, rows) values (new.bucket, array[new.id]) returning id into new.claim_id;
    return new;
  end if;
  if old.status = 'CLAIMED' and new.status = 'CLAIMED' and new.lock_token >= old.lock_token then
    raise exception 'event % is in flight: its id and its bucket stay', old.id
      using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema,
        hint = 'Wait until it is published, or dead.';
  end if;
  if old.status = new.status or new.lock_token < old.lock_token or (old.status = 'PENDING' and new.status = 'CLAIMED') then
    raise exception 'the lock_token of event % grows with every claim and never goes down: % cannot follow %', old.id, new.lock_token, old.lock_token
      using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema,
        hint = 'Leave lock_token alone; a claim raises it by one.';
  end if;
  raise exception 'event % cannot go from % to %', old.id, old.status, new.status
    using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema,
      detail = 'Legal are PENDING → CLAIMED, CLAIMED → PUBLISHED, CLAIMED → PENDING, CLAIMED → DEAD, PUBLISHED → PENDING, DEAD → PENDING.',
      hint = case when old.status = 'PENDING' then 'An event is claimed before it is published or given up; leasehold outbox unblock gives up one that keeps failing.'
        when old.status = 'CLAIMED' then 'Leave it to the relay that holds it.'
        else 'A finished event goes back to PENDING by replay only: leasehold outbox replay.' end;
end
$$;

comment on function check_outbox_transition() is 'Refuses a change of state that is not one of the six legal ones, and says which they are. Notes a claim that has no note.';

drop trigger outbox_transition on outbox;

-- LIFE-02. Only the WHEN clause costs anything on the way of a legal change.
create trigger outbox_transition before update on outbox for each row
  when (
    case old.status
      when 'CLAIMED' then new.status in ('PUBLISHED', 'PENDING', 'DEAD')
        or (new.status = 'CLAIMED' and new.id = old.id and new.bucket = old.bucket)
      when 'PENDING' then new.status = 'PENDING'
        or (new.status = 'CLAIMED' and new.lock_token > old.lock_token and new.claim_id is distinct from old.claim_id)
      else new.status in (old.status, 'PENDING')
    end is not true
    or new.lock_token < old.lock_token
  )
  execute function check_outbox_transition();

comment on trigger outbox_transition on outbox is 'The state machine, for everyone who writes to the table.';

create or replace function refuse_outbox_transition() returns trigger
language plpgsql set search_path from current
as $$
begin
  if new.status <> 'PENDING' then
    raise exception 'an event begins as PENDING, not as %', new.status
      using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema, hint = 'Insert it without a status.';
  elsif new.lock_token <> 0 then
    raise exception 'an event begins with the lock_token 0, not with %', new.lock_token
      using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema, hint = 'Insert it without a lock_token.';
  elsif new.event_type = '' or octet_length(new.event_type) > 255 then
    raise exception 'the event_type has % bytes, and must have 1 to 255', octet_length(new.event_type)
      using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema, hint = 'Name what happened, for example order.paid.';
  elsif new.ordering_key = '' then
    raise exception 'the ordering_key is empty'
      using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema, hint = 'Give a text, or null for an event that stands in no order.';
  end if;
  raise exception 'available_at and created_at are moments, not %', case when isfinite(new.available_at) then new.created_at else new.available_at end
    using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema, hint = 'Give a finite timestamp.';
end
$$;

alter function refuse_outbox_transition() rename to refuse_outbox_beginning;

comment on function refuse_outbox_beginning() is 'Refuses an event that does not begin as PENDING, with the token 0, a type, and finite moments.';

-- The same, but a statement that calls it takes it in: with a setting of its own, a function is called for every event,
-- and that was a third of what writing one costs. All that it names is in pg_catalog.
create or replace function new_event_id() returns uuid
language sql volatile parallel safe
as $$
  -- Version 7: milliseconds first, so that new ids are neighbours in their index.
  select pg_catalog.encode(
    pg_catalog.set_bit(pg_catalog.set_bit(
      overlay(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) placing
        substring(pg_catalog.int8send((extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000)::pg_catalog.int8) from 3)
        from 1 for 6),
      52, 1), 53, 1), 'hex')::pg_catalog.uuid
$$;
