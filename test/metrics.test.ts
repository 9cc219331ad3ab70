/** `/metrics` of real processes with all four applications, scraped during a run and compared with the tables. */
import { readFile } from 'node:fs/promises'
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { createOutbox } from '../src/outbox/index.ts'
import { openDatabase } from '../src/postgres/index.ts'
import { createSync } from '../src/sync/index.ts'
import { createWebhooks } from '../src/webhooks/index.ts'
import { createApplicationTables } from './support/all-applications.ts'
import { useConfigFiles } from './support/config-files.ts'
import { openSession, useDatabase } from './support/database.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { type Proxy, startProxy } from './support/proxy.ts'
import { useReceivers } from './support/receiver.ts'
import { addEndpoint, SECRET_KEY } from './support/webhook-endpoints.ts'

const { spawnNode } = useProcesses()
const { directoryWith } = useConfigFiles()
const receiver = useReceivers()
const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())

const POLL = { timeout: 120_000, interval: 50 }

const NO_CLAIMS = 1_000

beforeAll(async () => {
  await createApplicationTables(db)
  await db.query({
    text: `
-- The token of a row grows by one with every claim. With a known beginning it counts them.
alter table leasehold.outbox alter lock_token set default ${NO_CLAIMS};
alter table leasehold.webhook_outbox alter lease_token set default ${NO_CLAIMS};
alter table leasehold.sync_jobs alter lock_token set default ${NO_CLAIMS};
alter table leasehold.sync_checkpoints alter lock_token set default ${NO_CLAIMS};
create table public.letters (
  id bigint generated always as identity primary key,
  due_at timestamptz not null default now(),
  sent_at timestamptz,
  lease_owner text, lease_until timestamptz, lease_token bigint
);
create index letters_open on public.letters (due_at, id) where sent_at is null;
create index letters_leased on public.letters (id) where lease_owner is not null;
-- A row that no statement can change.
create function public.refuse() returns trigger language plpgsql as $$
begin
  if old.status = 'pending' and old.id = 1 then raise exception 'payment 1 is cursed'; end if;
  return new;
end $$;
create trigger refuse before update on public.payments for each row execute function public.refuse();`,
  })
})

interface Working {
  readonly process: TestProcess
  readonly http: string
  readonly id: string
}

const WORKERS = 'outbox,webhooks,sync,reconcile'

async function work(
  url: string,
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<Working> {
  const config = new URL('fixtures/metrics.config.mjs', import.meta.url).href
  const cwd = await directoryWith(`export { default } from '${config}'`)
  const process = spawnNode('dist/cli/main.js', ['work', ...args], {
    cwd,
    env: { DATABASE_URL: url, LEASEHOLD_PORT: '', LEASEHOLD_SECRET_KEY: SECRET_KEY, ...env },
  })
  onTestFinished(async () => void (await process.kill('SIGKILL')))
  await process.line((line) => line.includes('Ctrl-C'))
  const shown = async (name: string): Promise<string> =>
    (await process.line((line) => line.startsWith(`  ${name}`))).slice(13).trim()
  return { process, http: await shown('HTTP'), id: await shown('Worker id') }
}

/** The samples of an answer, as `name{labels}` → value. */
type Samples = ReadonlyMap<string, number>

async function scrape({ http }: Working): Promise<Samples> {
  const text = await (await fetch(`${http}/metrics`)).text()
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return new Map(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
  )
}

/** The sum of the series of this metric that have all of these labels. */
function sum(samples: Samples, name: string, labels: Readonly<Record<string, string>> = {}): number {
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`)
  const found = [...samples].filter(
    ([key]) => key.split('{')[0] === name && wanted.every((pair) => key.includes(pair)),
  )
  return found.reduce((total, [, value]) => total + value, 0)
}

async function read<Row extends object>(text: string): Promise<Row> {
  const { rows } = await db.query<Row>({ text })
  if (rows[0] === undefined) throw new Error(`no row: ${text}`)
  return rows[0]
}

const OUTBOX = { table: 'leasehold.outbox' }
const DELIVERIES = { table: 'leasehold.webhook_outbox' }
const CHUNKS = { table: 'leasehold.sync_checkpoints' }
const JOBS = { table: 'leasehold.sync_jobs' }
const PAYMENTS = { table: 'public.payments' }

const { enqueue } = createOutbox()

function events(type: string, count: number): { readonly type: string; readonly payload: { n: number } }[] {
  return Array.from({ length: count }, (_, i) => ({ type, payload: { n: i + 1 } }))
}

/** Until every row that can be finished is, and nothing is in flight. */
async function finished(working: Working): Promise<void> {
  await vi.waitFor(async () => {
    const open = await read(`select
  (select count(*)::int from leasehold.outbox where status in ('PENDING', 'CLAIMED') and not parked
    and ordering_key is null) as outbox,
  (select count(*)::int from leasehold.webhook_outbox where delivery_status = 'pending'
    and ordering_key is null) as webhooks,
  (select count(*)::int from leasehold.sync_jobs where completed_at is null) as sync,
  (select count(*)::int from public.payments where status = 'pending' and id <> 1) as reconcile`)
    expect(open).toEqual({ outbox: 0, webhooks: 0, sync: 0, reconcile: 0 })
    expect(sum(await scrape(working), 'leasehold_in_flight_rows')).toBe(0)
  }, POLL)
}

/** Scrapes until stopped, and fails if a counter or a histogram of the process ever decreases. */
function watchCounters(working: Working): { stop(): Promise<number> } {
  let previous: Samples = new Map()
  let scrapes = 0
  const over = new AbortController()
  async function watch(): Promise<void> {
    while (!over.signal.aborted) {
      const samples = await scrape(working)
      for (const [key, value] of previous) {
        if (/_(?:total|bucket|count|sum)\{/.test(key))
          expect(samples.get(key), key).toBeGreaterThanOrEqual(value)
      }
      previous = samples
      scrapes += 1
    }
  }
  const problem = watch().then(
    () => undefined,
    (error: unknown) => error,
  )
  return {
    async stop() {
      over.abort()
      const found = await problem
      if (found !== undefined) throw found
      return scrapes
    },
  }
}

/** The database disappears while a row is being processed: heartbeats fail, and its lease is lost. */
async function outage(proxy: Proxy, working: Working): Promise<void> {
  await proxy.refuse()
  proxy.cut()
  await vi.waitFor(async () => {
    const samples = await scrape(working)
    expect(sum(samples, 'leasehold_lost_leases_total', OUTBOX)).toBe(2)
    expect(sum(samples, 'leasehold_scrape_errors')).toBeGreaterThan(0)
  }, POLL)
  await proxy.accept()
  // Nobody waits for the end of the lease.
  await db.query({ text: `update leasehold.outbox set locked_until = now() where status = 'CLAIMED'` })
}

it('RULE-020-023, RULE-020-032, RULE-020-052: every documented metric is in /metrics of a run, and agrees with the tables', async () => {
  const hook = await receiver(({ path }) =>
    path.endsWith('/gone') ? 410 : path.endsWith('/down') ? 500 : 204,
  )
  const flaky = await receiver(() => (flaky.received.length === 1 ? 503 : 204))
  await addEndpoint(db, `${hook.url}/ok`, { event_types: ['plain'] })
  await addEndpoint(db, `${hook.url}/gone`, { event_types: ['gone'] })
  await addEndpoint(db, `${hook.url}/down`, { event_types: ['ordered'], ordered: true })
  await addEndpoint(db, flaky.url, { event_types: ['flaky'] })
  await db.query({ text: 'insert into public.letters (due_at) select now() from generate_series(1, 7)' })

  // A process that holds five events, and dies.
  const doomed = await work(database.url, ['--only', 'outbox'], { HOLDS_EVENTS: 'yes' })
  await db.transaction(async (tx) => {
    await enqueue(
      tx,
      events('held', 5).map((event) => ({ ...event, payload: { ...event.payload, by: 'doomed' } })),
    )
  })
  for (let n = 1; n <= 5; n += 1) await doomed.process.line((line) => line === `holding ${n}`)
  const ofDoomed = await scrape(doomed)
  expect(sum(ofDoomed, 'leasehold_in_flight_rows', { worker: doomed.id })).toBe(5)
  expect(sum(ofDoomed, 'leasehold_claimed_rows_total', { ...OUTBOX, worker: doomed.id })).toBe(5)

  const proxy = await startProxy(database.url)
  onTestFinished(async () => proxy.close())
  const working = await work(proxy.url, ['--only', `${WORKERS},reaper`])
  const watch = watchCounters(working)
  await doomed.process.kill('SIGKILL')

  // An old snapshot, which some session holds.
  const session = await openSession(database.url)
  await session.query('begin isolation level repeatable read')
  await session.query('select 1')

  await db.transaction(async (tx) => {
    await enqueue(tx, [
      ...events('plain', 40),
      ...events('fails', 6),
      ...events('hopeless', 3),
      ...events('saturated', 1),
      { type: 'hopeless', payload: {}, orderingKey: 'parked' },
      { type: 'plain', payload: {}, orderingKey: 'parked' },
    ])
    const { send } = createWebhooks()
    for (let n = 1; n <= 12; n += 1) await send(tx, { type: 'plain', payload: { n } })
    await send(tx, { type: 'gone', payload: {} })
    await send(tx, { type: 'flaky', payload: {} })
    for (let n = 1; n <= 2; n += 1) await send(tx, { type: 'ordered', payload: { n }, orderingKey: 'k' })
    await createSync().enqueue(tx, 'numbers', { matrixId: 'm', params: { chunks: 5 } })
    await tx.query({ text: 'insert into public.payments default values' })
    await tx.query({
      text: "insert into public.payments (status) select 'pending' from generate_series(1, 8)",
    })
  })
  await finished(working)

  // A row that another session takes from under its worker.
  await enqueue(db, { type: 'held', payload: { n: 'taken' } })
  await working.process.line((line) => line === 'holding taken')
  await vi.waitFor(async () => {
    expect(sum(await scrape(working), 'leasehold_renewed_rows_total', OUTBOX)).toBeGreaterThan(0)
  }, POLL)
  const holding = await scrape(working)
  const { leased } = await read<{ leased: number }>(
    `select count(*)::int as leased from leasehold.outbox where claimed_by = '${working.id}'`,
  )
  expect(sum(holding, 'leasehold_in_flight_rows', { worker: working.id })).toBe(leased)
  expect(leased).toBe(1)
  await db.query({
    text: `update leasehold.outbox set status = 'PENDING', claimed_by = null, claimed_at = null, locked_until = null
      where claimed_by = $1`,
    values: [working.id],
  })
  await finished(working)

  // A row that its worker loses, because the database is away. The other rows are finished.
  await enqueue(db, { type: 'held', payload: { n: 'away' } })
  await working.process.line((line) => line === 'holding away')
  const scrapes = await watch.stop()
  expect(scrapes).toBeGreaterThan(1)
  await outage(proxy, working)
  await finished(working)

  // What the tables say, against what the counters say.
  const samples = await scrape(working)
  const settled = (of: Readonly<Record<string, string>>, outcome?: string): number =>
    sum(samples, 'leasehold_settled_rows_total', outcome === undefined ? of : { ...of, outcome })
  const count = (name: string, of: Readonly<Record<string, string>> = {}): number => sum(samples, name, of)

  const outbox = await read<
    Record<'published' | 'dead' | 'attempts' | 'tokens' | 'latency' | 'age', number>
  >(`
select count(*) filter (where status = 'PUBLISHED')::int as published,
  count(*) filter (where status = 'DEAD')::int as dead,
  sum(attempts)::int as attempts, sum(lock_token - ${NO_CLAIMS})::int as tokens,
  sum(extract(epoch from published_at - created_at))::float8 as latency,
  sum(extract(epoch from now() - created_at)) filter (where status = 'PUBLISHED')::float8 as age
from leasehold.outbox`)
  expect(outbox).toMatchObject({ published: 5 + 40 + 6 + 1 + 2, dead: 4 })
  expect(settled(OUTBOX, 'done')).toBe(outbox.published)
  expect(settled(OUTBOX, 'dead')).toBe(outbox.dead)
  expect(count('leasehold_dead_rows_total', OUTBOX)).toBe(outbox.dead)
  // The five of the process that died, and the one that was lost with the database.
  expect(count('reaper_recovered_count_total', { ...OUTBOX, outcome: 'retry' })).toBe(5 + 1)
  expect(count('reaper_recovered_count_total', { ...OUTBOX, outcome: 'dead' })).toBe(0)
  expect(count('reaper_stale_duration_seconds_count', OUTBOX)).toBe(5 + 1)
  expect(
    count('leasehold_handler_failures_total', OUTBOX) + count('reaper_recovered_count_total', OUTBOX),
  ).toBe(outbox.attempts)
  expect(count('leasehold_claimed_rows_total', OUTBOX) + 5).toBe(outbox.tokens)
  expect(count('leasehold_fenced_off_rows_total', OUTBOX)).toBe(2)
  // As a rule the first was taken, and a heartbeat of the second failed. The reason is what is noticed first.
  const lost = Object.fromEntries(
    ['taken', 'heartbeatFailed', 'untrusted'].map((reason) => [
      reason,
      count('leasehold_lost_leases_total', { ...OUTBOX, reason }),
    ]),
  )
  expect(
    Object.values(lost).reduce((total, one) => total + one, 0),
    JSON.stringify(lost),
  ).toBe(2)
  expect(count('leasehold_lost_leases_total', OUTBOX)).toBe(2)
  expect(count('leasehold_released_rows_total', OUTBOX)).toBeGreaterThanOrEqual(1)
  expect(count('leasehold_claimed_rows_total', OUTBOX)).toBe(
    settled(OUTBOX) +
      count('leasehold_released_rows_total', OUTBOX) +
      count('leasehold_fenced_off_rows_total', OUTBOX),
  )
  expect(count('leasehold_heartbeat_failures_total', OUTBOX)).toBeGreaterThan(0)
  expect(count('leasehold_database_failures_total')).toBeGreaterThan(0)

  const latency = 'leasehold_end_to_end_latency_seconds'
  expect(count(`${latency}_count`, OUTBOX)).toBe(outbox.published)
  expect(count(`${latency}_bucket`, { ...OUTBOX, le: '+Inf' })).toBe(outbox.published)
  // Dates have milliseconds, and the latency is never shorter than what the table says.
  expect(count(`${latency}_sum`, OUTBOX)).toBeGreaterThan(outbox.latency - outbox.published * 0.002)
  expect(count(`${latency}_sum`, OUTBOX)).toBeLessThan(outbox.age)

  const deliveries = await read<Record<'delivered' | 'failed' | 'attempts' | 'claims' | 'latency', number>>(`
select count(*) filter (where delivery_status = 'delivered')::int as delivered,
  count(*) filter (where delivery_status = 'failed')::int as failed,
  sum(jsonb_array_length(history))::int as attempts, sum(lease_token - ${NO_CLAIMS})::int as claims,
  sum(extract(epoch from delivered_at - created_at))::float8 as latency
from leasehold.webhook_outbox`)
  expect(deliveries).toMatchObject({ delivered: 12 + 1, failed: 1 })
  expect(settled(DELIVERIES, 'done')).toBe(deliveries.delivered)
  expect(settled(DELIVERIES, 'dead')).toBe(deliveries.failed)
  expect(count('leasehold_dead_rows_total', DELIVERIES)).toBe(deliveries.failed)
  expect(settled(DELIVERIES)).toBe(deliveries.attempts)
  expect(count('leasehold_claimed_rows_total', DELIVERIES)).toBe(deliveries.claims)
  expect(count('leasehold_handler_failures_total', DELIVERIES)).toBe(
    deliveries.attempts - deliveries.delivered,
  )
  expect(count(`${latency}_count`, DELIVERIES)).toBe(deliveries.delivered)
  expect(count(`${latency}_sum`, DELIVERIES)).toBeGreaterThan(
    deliveries.latency - deliveries.delivered * 0.002,
  )

  const sync = await read<Record<'chunks' | 'jobs' | 'chunkClaims' | 'jobClaims', number>>(`select
  (select count(*)::int from leasehold.sync_checkpoints where completed_at is not null) as chunks,
  (select count(*)::int from leasehold.sync_jobs where completed_at is not null) as jobs,
  (select sum(lock_token - ${NO_CLAIMS})::int from leasehold.sync_checkpoints) as "chunkClaims",
  (select sum(lock_token - ${NO_CLAIMS})::int from leasehold.sync_jobs) as "jobClaims"`)
  expect(sync).toMatchObject({ chunks: 5, jobs: 1 })
  expect(settled(CHUNKS, 'done')).toBe(sync.chunks)
  expect(settled(JOBS, 'done')).toBe(sync.jobs)
  expect(count('leasehold_claimed_rows_total', CHUNKS)).toBe(sync.chunkClaims)
  expect(count('leasehold_claimed_rows_total', JOBS)).toBe(sync.jobClaims)
  expect(count('leasehold_handler_failures_total', CHUNKS)).toBe(1)
  expect(count(`${latency}_count`, JOBS)).toBe(sync.jobs)
  expect(count(`${latency}_count`, CHUNKS)).toBe(0)

  const { paid } = await read<{ paid: number }>(
    "select count(*)::int as paid from public.payments where status = 'paid'",
  )
  expect(paid).toBe(8)
  expect(settled(PAYMENTS, 'pending->paid')).toBe(paid)
  expect(count('leasehold_data_errors_total', { ...PAYMENTS, verb: 'claim' })).toBeGreaterThan(0)

  const workers = await read<{ died: number; alive: number }>(
    'select count(died_at)::int as died, (count(*) - count(died_at))::int as alive from leasehold.workers',
  )
  expect(workers).toEqual({ died: 1, alive: 1 })
  expect(count('leasehold_worker_processes_died_total', { worker: working.id })).toBe(workers.died)
  expect(count('leasehold_worker_process_info', { worker: working.id })).toBe(1)

  // Gauges that are read from the database: their answers are reused for some seconds.
  await vi.waitFor(async () => {
    const now = await scrape(working)
    expect(sum(now, 'leasehold_scrape_errors')).toBe(0)
    expect(sum(now, 'leasehold_worker_processes', { state: 'alive' })).toBe(1)
    expect(sum(now, 'leasehold_worker_processes', { state: 'dead' })).toBe(1)
    expect(sum(now, 'leasehold_pending_rows', { table: 'public.letters' })).toBe(7)
    expect(sum(now, 'leasehold_pending_rows', OUTBOX)).toBe(0)
    expect(sum(now, 'leasehold_oldest_pending_age_seconds', { table: 'public.letters' })).toBeGreaterThan(0)
    expect(sum(now, 'leasehold_held_up_keys', { ...OUTBOX, state: 'parked' })).toBe(1)
    expect(sum(now, 'leasehold_held_up_keys', { ...DELIVERIES, state: 'blocked' })).toBe(1)
    expect(sum(now, 'leasehold_oldest_snapshot_age_seconds')).toBeGreaterThan(0)
    for (const of of [OUTBOX, DELIVERIES, JOBS, CHUNKS, PAYMENTS, { table: 'public.letters' }])
      expect(sum(now, 'leasehold_reaper_alive', of)).toBe(1)
  }, POLL)
  const { oldest } = await read<{ oldest: number }>(
    `select extract(epoch from now() - min(due_at))::float8 as oldest from public.letters`,
  )
  const last = await scrape(working)
  expect(sum(last, 'leasehold_oldest_pending_age_seconds', { table: 'public.letters' })).toBeLessThan(
    oldest + 1,
  )

  // Every metric of the page has a sample, and those of a worker process its id.
  const page = await readFile(new URL('../docs/reference/metrics.md', import.meta.url), 'utf8')
  const documented = [...page.matchAll(/^\| `(leasehold_\w+)` \| (\w+) \| (.*?) \|/gm)]
  const keys = [...last.keys()]
  for (const [, name = '', kind, labels = ''] of documented) {
    const shown = kind === 'histogram' ? `${name}_bucket` : name
    const series = keys.filter((key) => key.split('{')[0] === shown)
    expect(series, name).not.toEqual([])
    const ofWorker = series.filter((key) => key.includes(`worker="${working.id}"`))
    expect(ofWorker, name).toEqual(labels.includes('`worker`') ? series : [])
  }

  await session.query('rollback')
  expect(await working.process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
})
