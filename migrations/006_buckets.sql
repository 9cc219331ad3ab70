-- Buckets: how their number is raised. With one bucket there is no trigger, and nothing of this costs anything.

create function has_rows_of_previous_buckets() returns boolean
language sql stable set search_path from current
as $$
  select previous_bucket_count() <> bucket_count() and (
    exists (select from outbox where ordering_key is not null and (status in ('PENDING', 'CLAIMED') or parked)
      and bucket <> bucket(ordering_key))
    or exists (select from webhook_outbox where ordering_key is not null and delivery_status = 'pending'
      and bucket <> bucket(ordering_key)))
$$;

comment on function has_rows_of_previous_buckets() is 'Whether rows of ordering keys are unfinished that are in the bucket they had before the number was raised.';

create procedure set_bucket_counts(previous int, buckets int)
language plpgsql set search_path from current
as $$
begin
  execute format('create or replace function previous_bucket_count() returns int language sql immutable parallel safe return %s', previous);
  execute format('create or replace function bucket_count() returns int language sql immutable parallel safe return %s', buckets);
end
$$;

comment on procedure set_bucket_counts(int, int) is 'Stores the number of buckets. Called by raise_bucket_count().';

create procedure raise_bucket_count(buckets int)
language plpgsql set search_path from current
as $$
begin
  if buckets not between 1 and 1024 then
    raise exception 'the number of buckets is %, and must be from 1 to 1024', buckets using errcode = 'invalid_parameter_value';
  end if;
  if buckets < bucket_count() then
    raise exception 'there are % buckets, and their number cannot be lowered to %: rows of the others would not be found', bucket_count(), buckets
      using errcode = 'invalid_parameter_value', hint = 'Give a number that is at least as large.';
  end if;
  if not has_rows_of_previous_buckets() then
    -- From now on the next rows of all ordering keys are where they belong.
    call set_bucket_counts(bucket_count(), bucket_count());
  elsif buckets > bucket_count() then
    raise exception 'rows are unfinished that were written before the number of buckets was raised to %', bucket_count()
      using errcode = 'object_in_use', hint = format('Raise it once more when they are finished: select %I.has_rows_of_previous_buckets().', current_schema());
  end if;
  if buckets = bucket_count() then
    return;
  end if;
  if bucket_count() = 1 then
    alter table outbox alter column bucket drop default;
    create trigger outbox_bucket before insert on outbox for each row
      when (new.bucket is null) execute function place_outbox_event();
    alter table outbox enable always trigger outbox_bucket;
    alter table webhook_outbox alter column bucket drop default;
    create trigger webhook_outbox_bucket before insert on webhook_outbox for each row
      when (new.bucket is null) execute function place_webhook_delivery();
    alter table webhook_outbox enable always trigger webhook_outbox_bucket;
  end if;
  call set_bucket_counts(bucket_count(), buckets);
end
$$;

comment on procedure raise_bucket_count(int) is 'Raises the number of buckets while producers and workers run. The next row of an ordering key that has unfinished rows is written into their bucket.';
