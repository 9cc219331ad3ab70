import { afterAll, beforeEach, expect, it, onTestFinished, vi } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { recording, useRelays } from '../../../test/support/running-relay.ts'
import { collect } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { leaseTable } from '../../lease/index.ts'
import { createOutbox } from '../../outbox/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { HandlerContext } from '../context.ts'
import { type EventOf, Events } from '../events.ts'
import { retry, settleAs } from './outcome.ts'

const { url } = useDatabase()
const startRelay = useRelays(url)
const start = useRuntimes(url)
const db = openDatabase({ url })
const { enqueue } = createOutbox()
afterAll(async () => db.close())
beforeEach(async () => {
  vi.useRealTimers()
  await db.query({ text: 'truncate leasehold.outbox' })
})

/** A Date has milliseconds, which are cut off: of the end of the lease, and of when the row was written. */
const ROUNDING_MS = 2

/** From `created_at` to `published_at`, by the database. */
async function storedLatencies(): Promise<number[]> {
  const { rows } = await db.query<{ ms: number }>({
    text: 'select extract(epoch from published_at - created_at)::float8 * 1000 as ms from leasehold.outbox order by id',
  })
  return rows.map(({ ms }) => ms)
}

function total(events: readonly { readonly durationMs: number }[]): number {
  return events.reduce((sum, { durationMs }) => sum + durationMs, 0)
}

/** Publishes one event, and returns what was measured and the durations of its statements. */
async function publishOne(answer: () => ReturnType<typeof retry> | undefined) {
  const events = new Events()
  const claims: EventOf<'claimed'>[] = []
  events.on('claimed', (claim) => claims.push(claim))
  const settlements = collect(events, 'settled', (all) => all.at(-1)?.outcome === 'done')
  await startRelay({ publisher: recording(answer) }, { events })
  await enqueue(db, { type: 'order.paid', payload: {} })
  const all = await settlements
  return { claims, all, measured: all.flatMap(({ latenciesMs = [] }) => latenciesMs) }
}

it('the latency of an event is what created_at and published_at say, and at most the durations of its claim and its settlement more', async () => {
  const { claims, all, measured } = await publishOne(() => undefined)
  const [stored = Number.NaN] = await storedLatencies()
  expect(measured).toHaveLength(1)
  expect(measured[0]).toBeGreaterThanOrEqual(stored - ROUNDING_MS)
  expect(measured[0]).toBeLessThanOrEqual(stored + total(claims) + total(all) + ROUNDING_MS)
})

it('the latency includes failed attempts, and is measured once', async () => {
  let attempts = 0
  const { claims, all, measured } = await publishOne(() => {
    attempts += 1
    return attempts < 3 ? retry({ delayMs: 30 }) : undefined
  })
  const [stored = Number.NaN] = await storedLatencies()
  expect(all.map(({ outcome }) => outcome)).toEqual(['retry', 'retry', 'done'])
  expect(stored).toBeGreaterThan(60)
  expect(measured).toHaveLength(1)
  expect(measured[0]).toBeGreaterThanOrEqual(stored - ROUNDING_MS)
  expect(measured[0]).toBeLessThanOrEqual(stored + total(claims) + total(all) + ROUNDING_MS)
})

it('the latency does not depend on the clock of the host', async () => {
  vi.useFakeTimers({ toFake: ['Date'], now: new Date('2001-01-01T00:00:00Z') })
  onTestFinished(() => void vi.useRealTimers())
  const { claims, all, measured } = await publishOne(() => undefined)
  const [stored = Number.NaN] = await storedLatencies()
  expect(measured[0]).toBeGreaterThanOrEqual(stored - ROUNDING_MS)
  expect(measured[0]).toBeLessThanOrEqual(stored + total(claims) + total(all) + ROUNDING_MS)
})

it('a table of your own is measured if it declares createdAt, also where the handler settles in its own transaction; rows without a time are not', async () => {
  await db.query({
    text: `
create table public.letters (
  id int primary key, written_at timestamptz, due_at timestamptz not null default now(), sent_at timestamptz,
  lease_owner text, lease_until timestamptz, lease_token bigint
);
create index on public.letters (due_at, id) where sent_at is null;
create index on public.letters (id) where lease_owner is not null;
insert into public.letters (id, written_at) values
  (1, now() - interval '1 hour'), (2, now() - interval '2 hours'), (3, null), (4, now() + interval '1 day'),
  (5, 'infinity'), (6, now() - interval '3 hours')`,
  })
  const table = leaseTable({
    table: 'public.letters',
    claimable: 'sent_at is null',
    availableAt: 'due_at',
    createdAt: 'written_at',
    outcomes: { done: { sent_at: 'now()' }, dead: { sent_at: 'now()' }, returned: { sent_at: 'now()' } },
  })
  const events = new Events()
  const ids = new Set<string>()
  const settlements = collect(events, 'settled', (all) => {
    for (const id of all.at(-1)?.ids ?? []) ids.add(id)
    return ids.size === 6
  })
  const handle = async (context: HandlerContext<{ id: number }>) => {
    if (context.row.id === 2) await db.transaction(async (tx) => context.settleIn(tx))
    return context.row.id === 6 ? settleAs('returned') : undefined
  }
  await start([{ name: 'letters', table, handle }], { events })
  const all = await settlements
  const hours = all
    .flatMap(({ latenciesMs = [] }) => latenciesMs)
    .map((ms) => Math.floor(ms / 3_600_000))
    .toSorted((a, b) => a - b)
  expect(hours).toEqual([0, 1, 2])
  expect(all.filter(({ outcome }) => outcome === 'returned').map(({ latenciesMs }) => latenciesMs)).toEqual([
    undefined,
  ])
})
