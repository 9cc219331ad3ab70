import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { type DeliveryRecord, deliveries } from '../../test/support/running-dispatcher.ts'
import { openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from '../testing/index.ts'
import { webhookTable } from './table.ts'
import { DELIVERY_STATUSES, type DeliveryStatus, TRANSITIONS } from './transitions.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const ENDPOINTS = ['00000000-0000-7000-8000-00000000000a', '00000000-0000-7000-8000-00000000000b'] as const
const LEASE = { limit: 1, leaseMs: 60_000 }
const LANES = ENDPOINTS.map((key) => ({ key, room: 10 }))
const DONE = { duration_ms: 1, status: 200, code: null, error: null, response: 'thank you' }

beforeEach(async () => db.query({ text: 'truncate leasehold.webhook_outbox restart identity cascade' }))
afterAll(async () => db.close())
// Statistics of a moment in which the table was empty would be those by which a batch of 10,000 is planned.
beforeAll(async () =>
  db.query({ text: 'alter table leasehold.webhook_outbox set (autovacuum_enabled = off)' }),
)

/** Writes deliveries, half of them for each endpoint, and returns their ids. */
async function write(count: number, line = 'null::text'): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, line)
      select ($2::uuid[])[1 + (n * 2 > $1::int and $1 > 1)::int], 'test.happened', '{}', ${line}
      from generate_series(1, $1::int) as n returning id`,
    values: [count, ENDPOINTS],
  })
  return rows.map(({ id }) => id)
}

async function change(set: string): Promise<void> {
  await db.query({ text: `update leasehold.webhook_outbox set ${set}` })
}

async function only(): Promise<DeliveryRecord> {
  const [row] = await deliveries(db)
  if (row === undefined) throw new Error('there is no delivery')
  return row
}

describe('D5, D6: webhook_outbox is a lease table like any other', () => {
  const cases = leaseConformance({
    db,
    table: webhookTable(),
    lanes: ENDPOINTS,
    empty: async () => {
      await db.query({ text: 'truncate leasehold.webhook_outbox cascade' })
    },
    insert: async (count) => write(count, "case when n % 2 = 0 then 'line ' || n end"),
    final: { outcome: 'done', args: DONE },
    bucket: 0,
  })
  it.each(cases.map(({ name, run }) => [name, run] as const))('%s', async (_, run) => {
    await expect(run()).resolves.toBeUndefined()
  })
})

/** The fields of a state, whatever state they come from. */
const FIELDS: Readonly<Record<DeliveryStatus, string>> = {
  pending: "delivery_status = 'pending', delivered_at = null, failed_at = null",
  delivered:
    "delivery_status = 'delivered', delivered_at = now(), failed_at = null, lease_owner = null, lease_until = null",
  failed:
    "delivery_status = 'failed', failed_at = now(), delivered_at = null, lease_owner = null, lease_until = null",
}

async function deliveryIn(status: DeliveryStatus): Promise<void> {
  await write(1)
  if (status !== 'pending') await change(FIELDS[status])
}

describe('WH-FR-004-AC3: the database refuses what the state machine does not know', () => {
  const pairs = DELIVERY_STATUSES.flatMap((from) =>
    DELIVERY_STATUSES.filter((to) => to !== from).map((to) => [from, to] as const),
  )
  const isLegal = ([from, to]: readonly [DeliveryStatus, DeliveryStatus]): boolean =>
    TRANSITIONS[from][to] !== undefined
  const LEGAL = pairs.filter(isLegal).map(([from, to]) => `${from} → ${to}`)

  it.each(pairs.filter(isLegal))('%s → %s can happen', async (from, to) => {
    await deliveryIn(from)
    await change(FIELDS[to])
    expect((await only()).delivery_status).toBe(to)
  })

  it.each(pairs.filter((pair) => !isLegal(pair)))('%s → %s cannot', async (from, to) => {
    await deliveryIn(from)
    await expect(change(FIELDS[to])).rejects.toMatchObject({
      message: `delivery 1 cannot go from ${from} to ${to}`,
      code: '23514',
      detail: `Legal are ${LEGAL.join(', ')}.`,
    })
    expect((await only()).delivery_status).toBe(from)
  })

  it.each(DELIVERY_STATUSES)('%s that stays what it is may be written to', async (status) => {
    await deliveryIn(status)
    await change(`${FIELDS[status]}, last_error = 'seen by a person'`)
    expect(await only()).toMatchObject({ delivery_status: status, last_error: 'seen by a person' })
  })

  it('there are three states, and no other', async () => {
    await deliveryIn('pending')
    await expect(change("delivery_status = 'sending'")).rejects.toThrow('cannot go from pending to sending')
    await expect(change('delivery_status = null')).rejects.toThrow(/null|cannot go/)
  })

  it.each([
    ['delivery_status, delivered_at', "'delivered', now()", 'not as delivered with 0'],
    ['delivery_status, failed_at', "'failed', now()", 'not as failed with 0'],
    ['lease_token', '7', 'not as pending with 7'],
  ])('a delivery does not begin with %s = %s', async (columns, values, message) => {
    const text = `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ${columns})
      values ('${ENDPOINTS[0]}', 'test.happened', '{}', ${values})`
    await expect(db.query({ text })).rejects.toThrow(message)
    expect(await deliveries(db)).toEqual([])
  })

  it('D3: a token never goes down, not by a requeue either, and grows by one with every claim', async () => {
    await deliveryIn('pending')
    const store = await openLeaseStore(db, webhookTable(), { owner: 'd', bucket: 0 })
    for (const token of ['1', '2', '3']) {
      const { claimed } = await store.claim({ ...LEASE, lanes: LANES })
      expect((await only()).lease_token).toBe(token)
      await store.release(claimed.map(({ lease }) => lease))
    }
    await expect(change('lease_token = 2')).rejects.toThrow('never goes down: 2 cannot follow 3')
    await change(FIELDS.failed)
    await expect(change(`${FIELDS.pending}, lease_token = 0`)).rejects.toThrow('never goes down')
  })
})

describe('WH-FR-004-AC1: the fields of a state are there exactly in that state', () => {
  it.each([
    ['pending', 'delivered_at = now()', 'webhook_outbox_delivered_at_exactly_when_delivered'],
    ['pending', 'failed_at = now()', 'webhook_outbox_failed_at_exactly_when_failed'],
    ['pending', "lease_owner = 'me'", 'webhook_outbox_lease_is_whole'],
    ['pending', 'lease_until = now()', 'webhook_outbox_lease_is_whole'],
    ['pending', 'behind = true', 'webhook_outbox_behind_only_when_pending'],
    ['pending', "headers = '[]'", 'webhook_outbox_headers_are_an_object'],
    ['pending', "event_type = ''", 'webhook_outbox_event_type_has_a_size'],
    ['delivered', 'delivered_at = null', 'webhook_outbox_delivered_at_exactly_when_delivered'],
    ['delivered', "lease_owner = 'me', lease_until = now()", 'webhook_outbox_leased_only_when_pending'],
    ['failed', 'failed_at = null', 'webhook_outbox_failed_at_exactly_when_failed'],
    ['failed', "lease_owner = 'me', lease_until = now()", 'webhook_outbox_leased_only_when_pending'],
  ] as const)('%s with %s is refused', async (status, set, constraint) => {
    await deliveryIn(status)
    await expect(change(set)).rejects.toMatchObject({ constraint })
  })

  it('two deliveries of a line cannot be in flight at once, whoever writes it', async () => {
    await write(2, "'line'")
    await expect(change("lease_owner = 'd', lease_until = now()")).rejects.toMatchObject({
      constraint: 'webhook_outbox_in_flight',
    })
  })
})
