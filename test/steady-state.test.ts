/**
 * Tables that are written to for ever have a size that does not depend on how long. Events and deliveries are written,
 * finished and deleted in rounds, with a VACUUM where autovacuum would come. What the same cost at full speed, with
 * autovacuum, is in `docs/operations/scale.md`.
 */
import { afterAll, describe, expect, it } from 'vitest'
import { type ClaimRequest, type LeaseStore, type LeaseTable, openLeaseStore } from '../src/lease/index.ts'
import { applyRetention as applyOutboxRetention } from '../src/outbox/admin/retention.ts'
import { outboxTable } from '../src/outbox/table.ts'
import { openDatabase } from '../src/postgres/database.ts'
import { applyRetention as applyWebhookRetention } from '../src/webhooks/admin/retention.ts'
import { webhookTable } from '../src/webhooks/table.ts'
import { useDatabase } from './support/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url, queryTimeoutMs: 300_000 })
afterAll(async () => db.close())

const ROWS = 200
/** How many rounds a row is retained. By the settings of the tables, autovacuum comes at least as often as every round. */
const RETAINED = 25
/** What retention and VACUUM have left behind has been used again after so many rounds. */
const FIRST_ROUNDS = 2 * RETAINED
const ROUNDS = 4 * RETAINED
/** Which pages are used again is not the same in every run. */
const TOLERANCE = 1.1
/** A page of an index is reused only when no transaction of the server, of any database, is older: small indexes vary by a few. */
const PAGES = 3 * 8_192
const BATCH = 100
const ENDPOINT = '00000000-0000-7000-8000-00000000000a'
const KEY = "case when n % 2 = 0 then 'key ' || n % 100 end"

interface Case {
  readonly table: LeaseTable
  readonly name: string
  readonly insert: string
  readonly request: Pick<ClaimRequest, 'groups'>
  readonly args: Readonly<Record<string, unknown>>
  /** Deletes what was finished longer ago, and returns how much it was. */
  readonly retain: (keepMs: number) => Promise<number>
}

const CASES: readonly Case[] = [
  {
    table: outboxTable(),
    name: 'leasehold.outbox',
    insert: `(event_type, payload, ordering_key)
      select 'test.happened', jsonb_build_object('n', n, 'text', repeat('x', 150)), ${KEY}`,
    request: {},
    args: {},
    retain: async (publishedMs) => (await applyOutboxRetention(db, { publishedMs, pauseMs: 0 })).published,
  },
  {
    table: webhookTable(),
    name: 'leasehold.webhook_outbox',
    insert: `(endpoint_id, event_type, body, ordering_key)
      select '${ENDPOINT}', 'test.happened', repeat('x', 150), ${KEY}`,
    request: { groups: [{ group: ENDPOINT, room: BATCH }] },
    args: { duration_ms: 1, status: 200, code: null, error: null, response: 'thank you' },
    retain: async (deliveredMs) => (await applyWebhookRetention(db, { deliveredMs, pauseMs: 0 })).delivered,
  },
]

async function one<Row extends object>(text: string, values: unknown[] = []): Promise<Row> {
  const { rows } = await db.query<Row>({ text, values })
  if (rows[0] === undefined) throw new Error(`no row: ${text}`)
  return rows[0]
}

describe.each(CASES)('$name', ({ table, name, insert, request, args, retain }) => {
  /** Bytes of the table and of each of its indexes. */
  async function sizes(): Promise<readonly (readonly [string, number])[]> {
    const { rows } = await db.query<{ relation: string; bytes: number }>({
      text: `select oid::regclass::text as relation, pg_relation_size(oid)::float8 as bytes from pg_class
        where oid = '${name}'::regclass or oid in (select indexrelid from pg_index where indrelid = '${name}'::regclass)`,
    })
    return rows.map(({ relation, bytes }) => [relation, bytes] as const)
  }

  /** Claims and finishes everything that waits, a batch at a time, as a worker does. */
  async function finishAll(store: LeaseStore): Promise<number> {
    let finished = 0
    for (;;) {
      const { claimed } = await store.claim({ limit: BATCH, leaseMs: 600_000, ...request })
      if (claimed.length === 0) return finished
      const leases = claimed.map(({ lease }) => lease)
      const { ended } = await store.settle('done', leases, { args: leases.map(() => args) })
      finished += ended.length
    }
  }

  it('the table and its indexes stay as large as they are after the first rounds, and pages of finished rows are at least 85 % full', async () => {
    await db.query({ text: `alter table ${name} set (autovacuum_enabled = off)` })
    const store = await openLeaseStore(db, table, { owner: 'test' })
    const history = new Map<string, number[]>()
    const ends: string[] = []
    let deleted = 0
    for (let round = 0; round < ROUNDS; round += 1) {
      await db.query({ text: `insert into ${name} ${insert} from generate_series(1, ${ROWS}) as n` })
      expect(await finishAll(store)).toBe(ROWS)
      ends.push((await one<{ now: string }>('select clock_timestamp()::text as now')).now)
      const oldest = ends[round - RETAINED]
      if (oldest !== undefined) {
        const age = 'select extract(epoch from clock_timestamp() - $1::timestamptz)::float8 * 1000 as ms'
        deleted += await retain((await one<{ ms: number }>(age, [oldest])).ms)
      }
      await db.query({ text: `vacuum ${name}` })
      for (const [relation, bytes] of await sizes())
        history.set(relation, [...(history.get(relation) ?? []), bytes])
    }
    // A busy machine may be a little late, and delete more.
    expect(deleted).toBeGreaterThanOrEqual((ROUNDS - RETAINED) * ROWS)

    const grown = [...history].filter(
      ([, bytes]) => Math.max(...bytes) > TOLERANCE * Math.max(...bytes.slice(0, FIRST_ROUNDS)) + PAGES,
    )
    expect(grown).toEqual([])
    // The share of the pages with rows that rows take up, with their line pointers.
    const { fill } = await one<{ fill: number }>(
      `select sum(ceil(pg_column_size(t) / 8.0) * 8 + 4) / count(distinct (t.ctid::text::point)[0]) / (8192 - 24)::float8 as fill
       from ${name} as t`,
    )
    expect(fill).toBeGreaterThanOrEqual(0.85)
  })
})
