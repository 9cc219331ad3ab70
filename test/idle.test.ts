/** What a process sends to the server while there is nothing to do. Statements are counted by the server. */
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { handlers } from '../src/outbox/publishers/handlers.ts'
import { relay } from '../src/outbox/relay.ts'
import { leaseTable } from '../src/lease/index.ts'
import { type Database, openDatabase } from '../src/postgres/database.ts'
import { migrate } from '../src/postgres/migrate.ts'
import { reconciler } from '../src/reconcile/index.ts'
import { createSync } from '../src/sync/index.ts'
import { dispatcher } from '../src/webhooks/index.ts'
import { Events, startRuntime, type WorkDeclaration } from '../src/worker/index.ts'
import { startServer, type TestServer } from './support/server.ts'
import { SECRET_KEY } from './support/webhook-endpoints.ts'

let server: TestServer
let db: Database

beforeAll(async () => {
  server = await startServer({ settings: { shared_preload_libraries: 'pg_stat_statements' } })
  db = openDatabase({ url: server.url })
  await migrate(db)
  await db.query({ text: 'create extension pg_stat_statements' })
})
afterAll(async () => {
  await db?.close()
  await server?.remove()
})

/** How many statements with this text in them were sent since the last reset; without a text, of all but the test's. */
async function sent(text = ''): Promise<number> {
  const { rows } = await db.query<{ calls: number }>({
    text: `select coalesce(sum(calls), 0)::float8 as calls from pg_stat_statements
      where query !~ 'pg_stat_statements' and strpos(query, $1) > 0`,
    values: [text],
  })
  return rows[0]?.calls ?? 0
}

/** Nothing reports when the server has counted a statement, so this polls. */
async function untilSent(text: string, count: number): Promise<void> {
  await vi.waitFor(async () => expect(await sent(text)).toBeGreaterThanOrEqual(count), {
    timeout: 120_000,
    interval: 20,
  })
}

async function reset(): Promise<void> {
  await db.query({ text: 'select pg_stat_statements_reset()' })
}

const PRESENCE = 'insert into leasehold.workers as w'
const PRESENCE_S = 5
const MAKE_DUE = 'update leasehold.sync_jobs as j set next_check_at = now() from changed'

/** Resolves when the process listens. */
async function start(workers: readonly WorkDeclaration<never>[]): Promise<void> {
  const events = new Events()
  const listening = events.next('listening')
  const runtime = await startRuntime({
    databaseUrl: server.url,
    log: false,
    events,
    workers,
  })
  onTestFinished(async () => void (await runtime.stop()))
  await listening
}

const PAYMENTS = `
  create table public.payments (
    id bigint generated always as identity primary key,
    status text not null default 'pending',
    created_at timestamptz not null default now(),
    lease_owner text,
    lease_until timestamptz,
    lease_token bigint,
    lease_expiries int
  );
  create index payments_open on public.payments (created_at, id) where status = 'pending';
  create index payments_suspects on public.payments (created_at, id)
    where status = 'pending' and coalesce(lease_expiries, 0) >= 2;
  create index payments_leased on public.payments (id) where lease_owner is not null`

it('an idle process with all four applications sends at most three statements a second', async () => {
  await db.query({ text: PAYMENTS })
  const sync = createSync()
  sync.define('invoices', { plan: () => [], syncChunk: async () => Promise.resolve({ rows: 0 }) })
  await start([
    relay({ publisher: handlers({ happened: async () => undefined }) }),
    dispatcher({ secretKey: SECRET_KEY }),
    ...sync.runner(),
    reconciler({
      table: leaseTable({
        table: 'public.payments',
        claimable: "status = 'pending'",
        order: ['created_at', 'id'],
        attempts: { column: false, expiries: 'lease_expiries', error: false },
      }),
      transitions: { pending: ['paid'], paid: [] },
      observe: async () => Promise.resolve(undefined),
    }),
  ])
  // The statements of its start are over.
  await untilSent(PRESENCE, 2)
  await reset()
  // Its presence is the clock, which runs slow together with all else on a busy machine.
  const presences = 4
  await untilSent(PRESENCE, presences)
  // At the beginning and the end of this time, more of its intervals may end than on average.
  expect(await sent()).toBeLessThanOrEqual(3 * PRESENCE_S * presences + 5)
})

it('a runner that was idle asks for the end of a job every checkEveryMs, as long as the job waits', async () => {
  const sync = createSync()
  let finish = (): void => undefined
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  sync.define('invoices', {
    plan: () => ['all of them'],
    syncChunk: async () => {
      await finished
      return { rows: 1 }
    },
  })
  await reset()
  await start(sync.runner({ checkEveryMs: 10 }))
  await untilSent(PRESENCE, 2)
  expect(await sent(MAKE_DUE)).toBeLessThanOrEqual(5)
  const { jobId } = await sync.enqueue(db, 'invoices', { matrixId: 'm' })
  await untilSent(MAKE_DUE, 100)
  finish()
  await vi.waitFor(async () => {
    const { rows } = await db.query({
      text: 'select completed_at is not null as ended from leasehold.sync_jobs where id = $1',
      values: [jobId],
    })
    expect(rows).toEqual([{ ended: true }])
  }, 120_000)
})
