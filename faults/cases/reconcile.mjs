import { until } from '../until.mjs'

const ROWS = { short: 200, whole: 800 }

const TABLES = `
create table public.payments (
  id bigint generated always as identity primary key,
  status text not null default 'pending',
  created_at timestamptz not null default now(),
  lease_owner text, lease_until timestamptz, lease_token bigint, lease_expiries int
);
create index payments_open on public.payments (created_at, id) where status = 'pending';
create index payments_suspects on public.payments (created_at, id)
  where status = 'pending' and coalesce(lease_expiries, 0) >= 2;
create index payments_leased on public.payments (id) where lease_owner is not null;
create table public.effects (n bigint not null, worker text not null)`

const OUTCOMES = `select 'payment ' || id as of, case status when 'paid' then 'COMPLETED' else status end as state,
  (select count(*)::int from public.effects where n = id) as effects from public.payments order by id`

export default {
  name: 'reconcile',
  title: 'reconcilers are killed and stopped past their leases while they apply transitions',
  produces: false,
  worker: { script: 'reconciler.mjs', observeMs: [20, 200] },
  async prepare(context) {
    await context.withClient(async (client) => {
      await client.query(TABLES)
      await client.query('insert into public.payments (status) select $2 from generate_series(1, $1::int)', [
        context.short ? ROWS.short : ROWS.whole,
        'pending',
      ])
    })
  },
  times: 4,
  async step(context) {
    const { leaseMs, reaperIntervalMs } = context.timing
    const zombie = context.anyWorker()
    zombie.signal('SIGSTOP')
    const victim = context.workers.find((worker) => worker !== zombie)
    await victim.kill('SIGKILL')
    await context.delay(leaseMs + reaperIntervalMs + context.random.between(0, 300))
    zombie.signal('SIGCONT')
    context.fire('SIGKILL and SIGSTOP', { victim: victim.id, zombie: zombie.id })
    await context.startWorker()
  },
  async finish(context) {
    const read = async () => context.withClient(async (client) => (await client.query(OUTCOMES)).rows)
    for (const line of await read()) context.history.write({ type: 'outcome', ...line })
  },
  async drained(context) {
    await until('the last payment', async () =>
      context.withClient(
        async (client) =>
          (await client.query("select from public.payments where status = 'pending' limit 1")).rowCount === 0,
      ),
    )
  },
}
