import { relay, type RelayOptions } from '../../src/outbox/relay.ts'
import type { Publisher } from '../../src/outbox/publisher.ts'
import type { OutboxEvent } from '../../src/outbox/event.ts'
import type { Database } from '../../src/postgres/database.ts'
import type { Outcome, RuntimeOptions } from '../../src/worker/index.ts'
import { type Running, useRuntimes } from './runtimes.ts'

/** Starts relays in this process. They are stopped after each test. */
export function useRelays(databaseUrl: string) {
  const start = useRuntimes(databaseUrl)
  return async (
    options: Pick<RelayOptions, 'publisher'> & Partial<RelayOptions>,
    more?: Partial<RuntimeOptions>,
  ): Promise<Running> => start([relay({ retention: false, ...options })], more)
}

/** A publisher that records its events and answers as the test says. */
export function recording(
  answer: (event: OutboxEvent) => Outcome | void | Promise<Outcome | void> = () => undefined,
  maxBatch = 1,
): Publisher & { readonly published: OutboxEvent[]; readonly batches: (readonly OutboxEvent[])[] } {
  const published: OutboxEvent[] = []
  const batches: (readonly OutboxEvent[])[] = []
  return {
    name: 'recording',
    maxBatch,
    published,
    batches,
    async publish(events) {
      batches.push(events)
      published.push(...events)
      const outcomes: Outcome[] = []
      for (const event of events) outcomes.push((await answer(event)) ?? { name: 'done', args: {} })
      return outcomes
    },
  }
}

export interface OutboxRecord {
  readonly id: string
  readonly event_id: string
  readonly event_type: string
  readonly ordering_key: string | null
  readonly status: string
  readonly attempts: number
  readonly last_error: string | null
  readonly expiries: number
  readonly parked: boolean
  readonly lock_token: string
  readonly claimed_at: Date | null
  readonly claimed_by: string | null
  readonly locked_until: Date | null
  readonly available_at: Date
  readonly published_at: Date | null
  readonly published_by: string | null
  readonly dead_at: Date | null
}

export async function records(db: Database): Promise<OutboxRecord[]> {
  return (await db.query<OutboxRecord>({ text: 'select * from leasehold.outbox order by id' })).rows
}

/** How many events are in each state. */
export async function statuses(db: Database): Promise<Record<string, number>> {
  const { rows } = await db.query<{ status: string; count: number }>({
    text: 'select status, count(*)::int as count from leasehold.outbox group by status',
  })
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]))
}

/** Writes one event for each key, in this order, with the payloads `{ n: 1 }`, `{ n: 2 }`, … */
export async function write(db: Database, ...keys: readonly (string | null)[]): Promise<void> {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, ordering_key)
      select 'test.happened', jsonb_build_object('n', n), key from unnest($1::text[]) with ordinality as k (key, n) order by n`,
    values: [keys],
  })
}

/** Inserts events; `sql` is the rest of the INSERT statement. */
export async function add(db: Database, sql: string): Promise<void> {
  await db.query({ text: `insert into leasehold.outbox ${sql}` })
}

/** The numbers that `write` gave to these events. */
export function numbers(events: readonly OutboxEvent[]): unknown[] {
  return events.map(({ payload }) => (payload as { n: number }).n)
}
