import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { useReceivers } from '../../test/support/receiver.ts'
import { addEndpoint, SECRET_KEY } from '../../test/support/webhook-endpoints.ts'
import { insertJobs, jobStates, type Job, WORK_DDL, WORK_TABLE } from '../../test/support/work-table.ts'
import { leaseTable } from '../lease/declaration.ts'
import { enqueue } from '../outbox/enqueue/enqueue.ts'
import { handlers } from '../outbox/publishers/handlers.ts'
import { webhooksPublisher } from '../outbox/publishers/webhooks.ts'
import { relay } from '../outbox/relay.ts'
import { openDatabase } from '../postgres/database.ts'
import { reconciler } from '../reconcile/reconciler.ts'
import { createSync } from '../sync/sync.ts'
import { dispatcher } from '../webhooks/dispatcher/dispatcher.ts'
import { LOOPBACK } from '../webhooks/network/policy.ts'
import type { Handler } from '../worker/worker.ts'
import {
  drain as drainOnce,
  type Drained,
  type DrainOptions,
  expireLeases,
  holdLease,
  outboxEvents,
  type RowChoice,
} from './index.ts'

useQuietProcess()
const { url } = useDatabase()
const db = { ...openDatabase({ url }), url }
const startReceiver = useReceivers()

// A retry that no test waits for, however slow the machine is.
const table = leaseTable({ ...WORK_TABLE, retry: { firstMs: 3_600_000, longestMs: 3_600_000 } })
const jobsOnly: RowChoice = { table }

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  await db.query({
    text: `create table public.invoices (
      id bigint generated always as identity primary key, status text not null default 'open',
      created_at timestamptz not null default now(), lease_owner text, lease_until timestamptz, lease_token bigint);
    create index on public.invoices (status, lease_until, created_at, id)`,
  })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.invoices, leasehold.outbox restart identity' })
})
afterAll(async () => db.close())

/** With more patience than a machine under load may need. */
async function drain(on: typeof db, options: DrainOptions): Promise<Drained> {
  return drainOnce(on, { timeoutMs: 60_000, ...options })
}

function worker(handle: Handler<Job>) {
  return { name: 'jobs', table, handle }
}

describe('drain', () => {
  it('processes everything that is due, and nothing that is due later', async () => {
    await insertJobs(db, 25)
    await db.query({ text: `update public.jobs set available_at = now() + interval '1 hour' where id = 7` })
    const seen: string[] = []
    const drained = await drain(db, { workers: [worker(async ({ row }) => void seen.push(row.id))] })
    expect(drained).toEqual({
      settled: 24,
      failed: 0,
      dead: 0,
      outcomes: { done: 24 },
      failures: [],
      unfinished: 1,
    })
    expect(seen).toHaveLength(24)
    expect(seen).not.toContain('7')
  })

  it('reports the error of a handler, and leaves the retry for later', async () => {
    await insertJobs(db, 2)
    const error = new Error('no such account')
    const workers = [
      worker(async ({ row }) => {
        if (row.id === '1') throw error
      }),
    ]
    const drained = await drain(db, { workers })
    expect(drained).toMatchObject({ settled: 1, failed: 1, dead: 0, unfinished: 1 })
    expect(drained.failures).toEqual([{ table: 'public.jobs', id: '1', attempt: 1, outcome: 'retry', error }])
    expect(await drain(db, { workers })).toMatchObject({ settled: 0, failed: 0, unfinished: 1 })
  })

  it('tries a failed row at once with retries "now", also one that failed before, until it is done or dead', async () => {
    await insertJobs(db, 3)
    const workers = [
      worker(async ({ row, attempt }) => {
        if (row.id === '1' || (row.id === '2' && attempt < 4)) throw new Error('not yet')
      }),
    ]
    await drain(db, { workers })
    const drained = await drain(db, { workers, retries: 'now' })
    // Of five attempts the first was made before. The second row succeeds with its fourth.
    expect(drained).toMatchObject({ settled: 1, failed: 6, dead: 1, unfinished: 0 })
    expect(drained.outcomes).toEqual({ retry: 5, dead: 1, done: 1 })
    expect(await jobStates(db)).toEqual({ DONE: 2, DEAD: 1 })
  })

  it('rejects instead of trying a row for ever that fails for ever', async () => {
    await insertJobs(db, 1)
    await db.query({ text: 'update public.jobs set max_attempts = 1000' })
    const workers = [
      worker(async () => {
        throw new Error('poison')
      }),
    ]
    await expect(drain(db, { workers, retries: 'now', maxAttempts: 3 })).rejects.toMatchObject({
      code: 'DRAIN_INCOMPLETE',
      message: expect.stringMatching(
        /^The row 1 of public\.jobs was tried 3 times and is still due\. The last error: poison\. .* raise maxAttempts\.$/,
      ),
      cause: { message: 'poison' },
    })
  })

  it('rejects when a handler does not return, and releases its row', async () => {
    await insertJobs(db, 1)
    const workers = [
      worker(async ({ signal }) => {
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        signal.throwIfAborted()
      }),
    ]
    await expect(drain(db, { workers, timeoutMs: 2_000 })).rejects.toThrow(
      /^Nothing has happened for 2000 ms\. Rows in flight: 1\. .* raise timeoutMs\.$/,
    )
    expect(await jobStates(db)).toEqual({ PENDING: 1 })
  })

  it('rejects when each row writes another one', async () => {
    await insertJobs(db, 1)
    const workers = [worker(async () => void (await insertJobs(db, 1)))]
    await expect(drain(db, { workers, maxRows: 20 })).rejects.toThrow(
      'More than 20 rows were claimed, the last of them from public.jobs.',
    )
  })

  it('takes back expired leases first', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const held = await holdLease(db, { table, id })
    const tokens: bigint[] = []
    const workers = [worker(async ({ token }) => void tokens.push(token))]
    expect(await drain(db, { workers })).toMatchObject({ settled: 0, unfinished: 1 })
    expect(await expireLeases(db, jobsOnly)).toBe(1)
    expect(await drain(db, { workers })).toMatchObject({ settled: 1, unfinished: 0 })
    expect(tokens).toEqual([held.lease.token + 1n])
  })

  it('follows an event through the relay to the receiver of its webhook', async () => {
    const receiver = await startReceiver()
    await addEndpoint(db, receiver.url)
    await db.transaction(async (tx) => enqueue(tx, { type: 'order.paid', payload: { order: 7 } }))
    const drained = await drain(db, {
      workers: [
        relay({ publisher: webhooksPublisher({ db }) }),
        dispatcher({ secretKey: SECRET_KEY, network: { allow: LOOPBACK } }),
      ],
    })
    expect(drained).toMatchObject({ outcomes: { done: 2 }, unfinished: 0 })
    expect(receiver.received.map(({ path }) => path)).toEqual(['/hook'])
    expect(await outboxEvents(db, { status: 'PUBLISHED' })).toMatchObject([
      { type: 'order.paid', payload: { order: 7 }, attempts: 0 },
    ])
    expect(await outboxEvents(db, { type: 'order.shipped' })).toEqual([])
  })

  it('publishes the events of an ordering key one after the other', async () => {
    const published: unknown[] = []
    const workers = [
      relay({
        publisher: handlers<{ counted: number }>({
          counted: async ({ payload }) => void published.push(payload),
        }),
      }),
    ]
    for (let n = 1; n <= 5; n += 1)
      await db.transaction(async (tx) =>
        enqueue(tx, { type: 'counted', payload: n, orderingKey: n % 2 === 0 ? 'even' : 'odd' }),
      )
    expect(await drain(db, { workers })).toMatchObject({ settled: 5, unfinished: 0 })
    expect(new Set(published)).toEqual(new Set([1, 2, 3, 4, 5]))
    expect(published.filter((n) => Number(n) % 2 === 1)).toEqual([1, 3, 5])
  })

  it('plans a sync job, syncs its chunks and completes the job', async () => {
    const sync = createSync()
    const synced: string[] = []
    const months = sync.define<{ month: string }>('months', {
      plan: async () => ['2026-01', '2026-02'].map((month) => ({ month })),
      syncChunk: async ({ query: { month } }, { attempt }) => {
        if (month === '2026-02' && attempt === 1) throw new Error('try later')
        synced.push(month)
        return { rows: 1 }
      },
    })
    await db.transaction(async (tx) => months.enqueue(tx, { matrixId: 'acme' }))
    const drained = await drain(db, { workers: sync.runner(), retries: 'now' })
    expect(drained).toMatchObject({ failed: 1, dead: 0, unfinished: 0 })
    expect(synced).toEqual(['2026-01', '2026-02'])
  })

  it('observes each open row of a reconciler once for each status', async () => {
    await db.query({ text: `insert into public.invoices (status) values ('open'), ('open')` })
    const workers = [
      reconciler<{ id: string; status: string }, 'open' | 'paid'>({
        table: leaseTable({
          table: 'public.invoices',
          claimable: "status = 'open'",
          order: ['created_at', 'id'],
        }),
        transitions: { open: ['paid'], paid: [] },
        observe: async ({ id }) => (id === '1' ? 'paid' : undefined),
      }),
    ]
    expect((await drain(db, { workers })).outcomes).toEqual({ 'open->paid': 1, open: 1 })
  })
})
