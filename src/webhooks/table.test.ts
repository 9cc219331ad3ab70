import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { type DeliveryRecord, deliveries } from '../../test/support/running-dispatcher.ts'
import { inspectTable } from '../lease/inspect.ts'
import { openLeaseStore, type LeaseStore } from '../lease/index.ts'
import { leaseStatements } from '../lease/sql.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from '../testing/index.ts'
import { type WebhookOutcome, webhookTable } from './table.ts'
import { DELIVERY_STATUSES, type DeliveryStatus, TRANSITIONS } from './transitions.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const ENDPOINTS = ['00000000-0000-7000-8000-00000000000a', '00000000-0000-7000-8000-00000000000b'] as const
const LEASE = { limit: 1, leaseMs: 60_000 }
const LANES = ENDPOINTS.map((key) => ({ key, room: 10 }))
const DONE = { duration_ms: 1, status: 200, code: null, error: null, response: 'thank you' }
const FAILED = { duration_ms: 1, status: 500, code: 'http500', error: 'answered with HTTP 500', response: '' }

beforeEach(async () => db.query({ text: 'truncate leasehold.webhook_outbox restart identity cascade' }))
afterAll(async () => db.close())

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

async function storeOf(owner: string, maxAttempts?: number): Promise<LeaseStore> {
  return openLeaseStore(db, webhookTable({ maxAttempts }), { owner, bucket: 0 })
}

async function attempts(): Promise<unknown[]> {
  const text =
    'select attempt, lease_token, status, error_code, started_at is null as unknown from leasehold.webhook_attempts order by id'
  return (await db.query({ text })).rows
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
    const store = await storeOf('d')
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

describe('a renewal', () => {
  it('WH-FR-002-AC1: constrains id, lease_owner and delivery_status, in the statement itself', async () => {
    const table = webhookTable()
    const inspection = await inspectTable(db, table)
    if (!('shape' in inspection)) throw new Error('the table is not there')
    const { text } = leaseStatements(table, inspection.shape).renew
    const chosen = /free as materialized \((?<query>.*?)for no key update skip locked/s.exec(text)?.groups?.[
      'query'
    ]
    expect(chosen).toMatch(/t\."id"/)
    expect(chosen).toMatch(/t\."lease_owner"/)
    expect(chosen).toMatch(/t\."lease_token"/)
    expect(chosen).toContain("delivery_status = 'pending'")
    expect(chosen).toContain('t."lease_until" > now()')
    // Only what was chosen by that is written to.
    expect(text).toMatch(
      /update "leasehold"\."webhook_outbox" as t\s+set "lease_until" = greatest\([^;]*free/,
    )
  })

  it.each([
    ['another dispatcher has it', "lease_owner = 'thief'"],
    ['it was claimed again under the same name', 'lease_token = lease_token + 1'],
    ['it is over', "lease_until = now() - interval '1 second'"],
    ['it was cancelled', FIELDS.failed],
    ['it was delivered by hand', FIELDS.delivered],
  ])('WH-FR-002-AC1: changes nothing when %s', async (_, set) => {
    await write(1)
    const store = await storeOf('d')
    const { claimed } = await store.claim({ ...LEASE, lanes: LANES })
    await change(set)
    const before = await only()
    const leases = claimed.map(({ lease }) => lease)
    const renewal = await store.renew(leases, 600_000)
    expect(renewal).toMatchObject({ renewed: [], lost: leases })
    expect(await only()).toEqual(before)
  })

  it('WH-FR-001-AC2: moves lease_until forward, never back', async () => {
    await write(1)
    const store = await storeOf('d')
    const { claimed } = await store.claim({ ...LEASE, lanes: LANES })
    const leases = claimed.map(({ lease }) => lease)
    const { lease_until: first } = await only()
    await store.renew(leases, 600_000)
    const { lease_until: second } = await only()
    expect(second?.getTime()).toBeGreaterThan(first?.getTime() ?? Infinity)
    await store.renew(leases, 1_000)
    expect((await only()).lease_until).toEqual(second)
  })
})

describe('WH-FR-002-AC3: delivered, retry, failed and postponed check ownership', () => {
  const OUTCOMES: Readonly<Record<WebhookOutcome, Readonly<Record<string, unknown>>>> = {
    done: DONE,
    retry: { ...FAILED, delay_ms: 5_000 },
    dead: FAILED,
    postponed: { delay_ms: 5_000 },
  }

  it.each(Object.entries(OUTCOMES))(
    '%s from a dispatcher that has lost it changes nothing',
    async (outcome, args) => {
      await write(1)
      const [slow, quick] = [await storeOf('slow'), await storeOf('quick')]
      const lost = (await slow.claim({ ...LEASE, lanes: LANES })).claimed.map(({ lease }) => lease)
      await change("lease_until = now() - interval '1 second'")
      const { claimed } = await quick.claim({ ...LEASE, lanes: LANES })
      const before = await only()
      expect(before).toMatchObject({ lease_owner: 'quick', lease_token: '2', attempts: 1 })
      expect(await slow.settle(outcome, lost, { args: [args] })).toMatchObject({ ended: [], fencedOff: lost })
      expect(await only()).toEqual(before)
      const mine = claimed.map(({ lease }) => lease)
      expect(await quick.settle(outcome, mine, { args: [args] })).toMatchObject({
        ended: mine,
        fencedOff: [],
      })
    },
  )
})

describe('WH-FR-004-AC2: a lease that is over', () => {
  it('is claimable at once, by anybody, and its attempt is kept', async () => {
    await write(1)
    await (await storeOf('dead')).claim({ ...LEASE, lanes: LANES })
    await change("lease_until = now() - interval '1 second'")
    const store = await storeOf('other')
    const { claimed } = await store.claim({ ...LEASE, lanes: LANES })
    expect(await only()).toMatchObject({ lease_owner: 'other', lease_token: '2', attempts: 1 })
    const leases = claimed.map(({ lease }) => lease)
    await store.settle('done', leases, { args: [DONE] })
    expect(await attempts()).toEqual([
      { attempt: 1, lease_token: '1', status: null, error_code: 'leaseExpired', unknown: true },
      { attempt: 2, lease_token: '2', status: 200, error_code: null, unknown: false },
    ])
  })

  it.each([
    [1, 'failed'],
    [2, 'pending'],
  ])(
    'WH-FR-004-AC3: with %i attempts at most, a delivery whose dispatcher died is %s',
    async (most, status) => {
      await write(1)
      const store = await storeOf('dead', most)
      await store.claim({ ...LEASE, lanes: LANES })
      await change("lease_until = now() - interval '1 second'")
      expect(await store.reap()).toHaveLength(1)
      expect(await only()).toMatchObject({
        delivery_status: status,
        attempts: 1,
        lease_owner: null,
        lease_until: null,
        last_error_code: 'leaseExpired',
      })
      expect(await attempts()).toMatchObject([{ attempt: 1, error_code: 'leaseExpired', unknown: true }])
    },
  )

  it('WH-FR-004-AC3: of a last attempt is not claimed once more: it is left to the reaper', async () => {
    await write(1)
    const store = await storeOf('dead', 1)
    await store.claim({ ...LEASE, lanes: LANES })
    await change("lease_until = now() - interval '1 second'")
    expect((await store.claim({ ...LEASE, lanes: LANES })).claimed).toEqual([])
    expect(await store.reap()).toHaveLength(1)
    expect((await only()).delivery_status).toBe('failed')
  })
})
