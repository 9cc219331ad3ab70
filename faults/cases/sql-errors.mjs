/** A sequence is not rolled back, so that it counts what was raised. */
const INJECT = `
create sequence public.injected;
create function public.inject_error() returns trigger language plpgsql as $$
begin
  if random() < 0.04 then
    perform nextval('public.injected');
    if random() < 0.5 then
      raise exception 'deadlock detected (injected)' using errcode = 'deadlock_detected';
    end if;
    raise exception 'could not serialize access (injected)' using errcode = 'serialization_failure';
  end if;
  return null;
end $$;
create trigger inject_error before insert or update on leasehold.outbox
  for each statement execute function public.inject_error()`

export default {
  name: 'sql-errors',
  title: 'statements fail with deadlocks and serialization errors',
  async run(context) {
    await context.withClient(async (client) => client.query(INJECT))
    await context.delay(context.short ? 4_000 : 10_000)
    await context.withClient(async (client) => {
      await client.query('drop trigger inject_error on leasehold.outbox')
      const { rows } = await client.query('select last_value::int as count, is_called from public.injected')
      for (let left = rows[0].is_called ? rows[0].count : 0; left > 0; left -= 1)
        context.fire('40P01 or 40001')
    })
  },
}
