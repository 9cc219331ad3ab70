-- Claiming an event becomes a HOT update, too: no index mentions what it changes. What can be claimed is found by bundles
-- of ids beside the outbox. docs/decisions/014-bundles.md says how, and why nothing is lost.

-- Stop the relays of the release before this one first: the index is gone that they look along.
create table outbox_bundles (
  bucket smallint not null default 0,
  id bigint generated always as identity,
  at timestamptz not null,
  rows bigint[] not null,
  primary key (bucket, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

create index outbox_bundles_due on outbox_bundles (bucket, at, id);

comment on table outbox_bundles is 'Events that may be claimed, in bundles, so that relays find them. Written by triggers of the outbox and by relays; leave it alone.';
comment on column outbox_bundles.bucket is 'The bucket of its events.';
comment on column outbox_bundles.id is 'Number of the bundle.';
comment on column outbox_bundles.at is 'When the first of its events is due, or earlier.';
comment on column outbox_bundles.rows is 'The ids of the events. The outbox says whether they can be claimed; what can be claimed is in a bundle.';

-- Who may claim events may take bundles, and who may read events may read which can be claimed.
do $$
declare
  granted record;
begin
  for granted in
    select distinct case when acl.grantee = 0 then 'public' else quote_ident(r.rolname) end as grantee,
      case acl.privilege_type when 'UPDATE' then 'select, insert, update, delete' else 'select' end as privileges
    from pg_class as c cross join lateral aclexplode(c.relacl) as acl
    left join pg_roles as r on r.oid = acl.grantee
    where c.oid = 'outbox'::regclass and acl.privilege_type in ('SELECT', 'UPDATE') and acl.grantee <> c.relowner
  loop
    execute format('grant %s on outbox_bundles to %s', granted.privileges, granted.grantee);
  end loop;
end
$$;

-- Nobody writes to the outbox between the look and the triggers; and as strongly as DROP INDEX needs it, because who asks
-- for more later may wait in a circle with others.
lock table outbox in access exclusive mode;

-- 200 to a bundle: a longer array would be compressed, which takes longer than writing it.
insert into outbox_bundles (bucket, at, rows)
select bucket, min(available_at), array_agg(id)
from outbox
where available_at is not null and not behind
group by bucket, greatest(available_at, now()), id / 200
order by min(available_at), min(id);

drop index outbox_pending;

-- A claimed event is larger than a new one: so much room is needed for all of a page at once.
alter table outbox set (fillfactor = 40);

-- Whoever may write events writes bundles of them, as the owner of this function.
create function bundle_outbox() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
  insert into outbox_bundles (bucket, at, rows)
  select bucket, min(available_at), array_agg(id)
  from written
  where not behind
  -- Neighbours that are due already need not agree on since when.
  group by bucket, greatest(available_at, now()), id / 200
  order by min(available_at), min(id);
  perform wake('outbox');
  return null;
end
$$;

comment on function bundle_outbox() is 'Writes new events into bundles, and tells the relays that there may be something to publish.';

drop trigger outbox_written on outbox;
drop function wake_outbox();

create trigger outbox_written after insert on outbox referencing new table as written
  for each statement execute function bundle_outbox();

comment on trigger outbox_written on outbox is 'Relays find and hear of new events however they were written.';

create function empty_outbox_bundles() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
  truncate outbox_bundles;
  return null;
end
$$;

comment on function empty_outbox_bundles() is 'Without events there are no bundles.';

create trigger outbox_emptied after truncate on outbox for each statement execute function empty_outbox_bundles();

comment on trigger outbox_emptied on outbox is 'Without events there are no bundles.';

create or replace function check_outbox_transition() returns trigger
language plpgsql security definer set search_path from current
as $$
begin
  if new.lock_token >= old.lock_token then
    if old.status = 'PENDING' and new.status = 'CLAIMED' and new.lock_token > old.lock_token then
      -- By hand, or by a relay of an older release: a claim without a note is given one.
      insert into outbox_claims (bucket, rows) values (new.bucket, array[new.id]) returning id into new.claim_id;
      return new;
    end if;
    if new.status = 'PENDING' then
      -- It can be claimed, and could not before, or not then.
      insert into outbox_bundles (bucket, at, rows)
      select new.bucket, new.available_at, array[new.id] where new.available_at is not null;
      return new;
    end if;
    if old.status = 'CLAIMED' and new.status = 'CLAIMED' then
      raise exception 'event % is in flight: its id and its bucket stay', old.id
        using errcode = 'check_violation', table = tg_table_name, schema = tg_table_schema,
          hint = 'Wait until it is published, or dead.';
    end if;
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

comment on function check_outbox_transition() is 'Refuses a change of state that is not one of the six legal ones, and says which they are. Notes a claim that has no note, and writes an event that becomes claimable into a bundle.';

drop trigger outbox_transition on outbox;

-- LIFE-02. Only the WHEN clause costs anything when an event is claimed, renewed or published.
create trigger outbox_transition before update on outbox for each row
  when (
    case old.status
      when 'CLAIMED' then new.status in ('PUBLISHED', 'DEAD')
        or (new.status = 'CLAIMED' and new.id = old.id and new.bucket = old.bucket)
      when 'PENDING' then (
          new.status = 'PENDING' and (
            new.behind
            or (not old.behind and new.available_at = old.available_at and new.id = old.id and new.bucket = old.bucket)
          )
        )
        or (new.status = 'CLAIMED' and new.lock_token > old.lock_token and new.claim_id is distinct from old.claim_id)
      else new.status = old.status
    end is not true
    or new.lock_token < old.lock_token
  )
  execute function check_outbox_transition();

comment on trigger outbox_transition on outbox is 'The state machine, for everyone who writes to the table; and the bundles of what can be claimed.';

-- They write as their owner, so nobody is to make triggers of them for tables of his own.
revoke execute on function bundle_outbox(), empty_outbox_bundles(), check_outbox_transition() from public;
