-- Buckets: how their number is raised. With one bucket there is no trigger, and nothing of this costs anything.

-- Each part walks one partial index. ORDER BY keeps the planner on it, whatever it expects to find.
create function has_rows_of_previous_buckets() returns boolean
language sql stable set search_path from current
as $$
  select previous_bucket_count() <> bucket_count() and (
    (select true from outbox
      where bucket < previous_bucket_count() and ordering_key is not null and (status = 'PENDING' or parked)
        and bucket <> bucket(ordering_key)
      order by bucket, ordering_key, id limit 1) is not null
    or (select true from outbox
      where bucket < previous_bucket_count() and ordering_key is not null and status = 'CLAIMED'
        and bucket <> bucket(ordering_key)
      order by bucket, ordering_key limit 1) is not null
    or (select true from webhook_outbox
      where bucket < previous_bucket_count() and ordering_key is not null and delivery_status = 'pending'
        and bucket <> bucket(ordering_key)
      order by bucket, endpoint_id, ordering_key, id limit 1) is not null)
$$;

comment on function has_rows_of_previous_buckets() is 'Whether rows of ordering keys are unfinished that are in the bucket they had before the number was raised.';

create procedure set_bucket_counts(previous int, buckets int)
language plpgsql set search_path from current
as $$
begin
  execute format('create or replace function previous_bucket_count() returns int language sql stable strict parallel safe return %s', previous);
  execute format('create or replace function bucket_count() returns int language sql stable strict parallel safe return %s', buckets);
end
$$;

comment on procedure set_bucket_counts(int, int) is 'Stores the number of buckets. Called by raise_bucket_count().';

-- Triggers fire in the order of their names: the one for a given bucket does not see what the one for a missing bucket sets.
-- "always" is in a session that applies changes of another database too. A given bucket is not questioned there.
create procedure create_bucket_triggers()
language plpgsql set search_path from current
as $$
begin
  alter table outbox alter column bucket drop default;
  create trigger outbox_bucket_given before insert on outbox for each row
    when (new.bucket is not null) execute function place_outbox_event();
  create trigger outbox_bucket_missing before insert on outbox for each row
    when (new.bucket is null) execute function place_outbox_event();
  alter table outbox enable always trigger outbox_bucket_missing;
  create trigger outbox_bucket_replayed before update of status on outbox for each row
    when (new.status = 'PENDING' and old.status in ('PUBLISHED', 'DEAD') and new.ordering_key is not null)
    execute function place_outbox_event();

  alter table webhook_outbox alter column bucket drop default;
  create trigger webhook_outbox_bucket_given before insert on webhook_outbox for each row
    when (new.bucket is not null) execute function place_webhook_delivery();
  create trigger webhook_outbox_bucket_missing before insert on webhook_outbox for each row
    when (new.bucket is null) execute function place_webhook_delivery();
  alter table webhook_outbox enable always trigger webhook_outbox_bucket_missing;
  create trigger webhook_outbox_bucket_replayed before update of delivery_status on webhook_outbox for each row
    when (new.delivery_status = 'pending' and old.delivery_status <> 'pending' and new.ordering_key is not null)
    execute function place_webhook_delivery();
end
$$;

comment on procedure create_bucket_triggers() is 'Lets triggers place rows, instead of the default of their column. Called by raise_bucket_count().';

create procedure raise_bucket_count(buckets int)
language plpgsql set search_path from current
as $$
declare
  -- Rows may arrive that another server has placed by the number before.
  is_replica constant boolean := exists (
    select from pg_subscription_rel where srrelid in ('outbox'::regclass, 'webhook_outbox'::regclass));
  is_locked boolean;
begin
  if (buckets between 1 and 1024) is not true then
    raise exception 'the number of buckets is %, and must be from 1 to 1024', buckets using errcode = 'invalid_parameter_value';
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'the isolation level is %, in which rows that were written while the call waited for a lock are not seen', current_setting('transaction_isolation')
      using errcode = 'invalid_transaction_state', hint = 'Raise the number of buckets in a READ COMMITTED transaction.';
  end if;
  -- First without a lock, so that a call that changes nothing stops nobody; then once more while no writer is open. One that
  -- was open across the change could commit a row of a key to its old bucket after others had written to the new one.
  foreach is_locked in array array[false, true] loop
    if buckets < bucket_count() then
      raise exception 'there are % buckets, and their number cannot be lowered to %: rows of the others would not be found', bucket_count(), buckets
        using errcode = 'invalid_parameter_value', hint = 'Give a number that is at least as large.';
    end if;
    if has_rows_of_previous_buckets() then
      exit when buckets = bucket_count();
      raise exception 'rows are unfinished that were written before the number of buckets was raised to %', bucket_count()
        using errcode = 'object_in_use', hint = format('Raise it once more when they are finished: select %I.has_rows_of_previous_buckets().', current_schema());
    end if;
    exit when buckets = bucket_count() and (buckets = previous_bucket_count() or is_replica);
    if is_locked then
      if bucket_count() = 1 then
        call create_bucket_triggers();
      end if;
      if buckets > bucket_count() then
        call set_bucket_counts(bucket_count(), buckets);
      end if;
      -- The number before is forgotten when the next rows of all keys are where they belong, which may be at once.
      if not is_replica and not has_rows_of_previous_buckets() then
        call set_bucket_counts(buckets, buckets);
      end if;
    elsif bucket_count() = 1 then
      -- What the triggers need. To take a stronger lock later could deadlock with somebody who has read and wants to write.
      lock table outbox, webhook_outbox in access exclusive mode;
    else
      lock table outbox, webhook_outbox in share row exclusive mode;
    end if;
  end loop;
end
$$;

comment on procedure raise_bucket_count(int) is 'Raises the number of buckets while producers and workers run. The next row of an ordering key that has unfinished rows is written into their bucket.';
