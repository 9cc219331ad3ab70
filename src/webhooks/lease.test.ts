import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { type DeliveryRecord, deliveries } from '../../test/support/running-dispatcher.ts'
import { inspectTable } from '../lease/inspect.ts'
import { openLeaseStore, type LeaseStore } from '../lease/index.ts'
import { leaseStatements } from '../lease/statements.ts'
import { openDatabase } from '../postgres/database.ts'
import { DEFAULT_SCHEDULE } from './schedule.ts'
import { type WebhookOutcome, webhookTable } from './table.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const ENDPOINT = '00000000-0000-7000-8000-00000000000a'
const CLAIM = { limit: 1, leaseMs: 60_000, groups: [{ group: ENDPOINT, room: 10 }] }
const DONE = { duration_ms: 1, status: 200, code: null, error: null, response: 'thank you' }
const FAILED = { duration_ms: 1, status: 500, code: 'http500', error: 'answered with HTTP 500', response: '' }
const EXPIRED = "lease_until = now() - interval '1 second'"

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.webhook_outbox restart identity' })
  await db.query({
    text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body) values ($1, 'test.happened', '{}')`,
    values: [ENDPOINT],
  })
})
afterAll(async () => db.close())

async function change(set: string): Promise<void> {
  await db.query({ text: `update leasehold.webhook_outbox set ${set}` })
}

async function only(): Promise<DeliveryRecord> {
  const [row] = await deliveries(db)
  if (row === undefined) throw new Error('there is no delivery')
  return row
}

async function storeOf(owner: string, schedule?: readonly number[]): Promise<LeaseStore> {
  return openLeaseStore(db, webhookTable({ schedule }), { owner, bucket: 0 })
}

async function attempts(): Promise<unknown[]> {
  const text =
    'select attempt, lease_token, status, error_code, started_at is null as unknown from leasehold.webhook_attempts order by id'
  return (await db.query({ text })).rows
}

it('a dispatcher starts whatever the statistics say of a few deliveries', async () => {
  await db.query({
    text: `truncate leasehold.webhook_outbox restart identity;
      insert into leasehold.webhook_outbox (endpoint_id, event_type, body)
        select format('00000000-0000-7000-8000-00000000000%s', e)::uuid, 'test.happened', '{}'
        from generate_series(1, 4) as e, generate_series(1, 6);
      update leasehold.webhook_outbox
        set delivery_status = 'failed', failed_at = now() where id = 1;
      update leasehold.webhook_outbox set delivery_status = 'delivered', delivered_at = now() where id > 1;
      analyze leasehold.webhook_outbox`,
  })
  await expect(storeOf('d')).resolves.toBeDefined()
})

describe('a renewal', () => {
  it('WH-FR-002-AC1: the renewal statement itself checks id, lease_owner, lease_token and delivery_status', async () => {
    const table = webhookTable()
    const inspection = await inspectTable(db, table)
    if (!('shape' in inspection)) throw new Error('the table is not there')
    const { text } = leaseStatements(table, inspection.shape).renew.change
    const chosen = /ours as materialized \((?<query>.*?)for no key update skip locked/s.exec(text)?.groups?.[
      'query'
    ]
    expect(chosen).toContain('t.id = any (array(select id from held))')
    expect(chosen).toContain('t.lease_owner = $')
    expect(chosen).toContain('(t.id, t.lease_token) in (select id, held_token from held)')
    expect(chosen).toContain("delivery_status = 'pending'")
    expect(chosen).toContain('t.lease_until > now()')
    // Only those rows are updated.
    expect(text).toMatch(/update leasehold\.webhook_outbox as t\s+set lease_until = greatest\([^;]*from ours/)
  })

  it.each([
    ['another dispatcher holds it', "lease_owner = 'thief'"],
    ['the same owner has claimed it a second time', 'lease_token = lease_token + 1'],
    ['its lease has expired', EXPIRED],
    [
      'it was cancelled',
      "delivery_status = 'failed', failed_at = now(), lease_owner = null, lease_until = null",
    ],
    [
      'it was delivered by hand',
      "delivery_status = 'delivered', delivered_at = now(), lease_owner = null, lease_until = null",
    ],
  ])('WH-FR-002-AC1: a renewal changes nothing when %s', async (_, set) => {
    const store = await storeOf('d')
    const { claimed } = await store.claim(CLAIM)
    await change(set)
    const before = await only()
    const leases = claimed.map(({ lease }) => lease)
    const renewal = await store.renew(leases, 600_000)
    expect(renewal).toMatchObject({ renewed: [], lost: leases })
    expect(await only()).toEqual(before)
  })

  it('WH-NFR-001: a renewal changes no indexed column, so it is a HOT update', async () => {
    const { rows } = await db.query({
      text: `select indexname from pg_indexes where schemaname = 'leasehold' and tablename = 'webhook_outbox'
        and indexdef like '%lease_until%'`,
    })
    expect(rows).toEqual([])
    // One connection, so that the statistics are those of this session.
    const alone = openDatabase({ url, maxConnections: 1 })
    onTestFinished(async () => alone.close())
    const updates = async (): Promise<{ all: number; hot: number }> => {
      await alone.query({ text: 'select pg_stat_force_next_flush()' })
      const text = `select pg_stat_get_tuples_updated(oid)::int as all, pg_stat_get_tuples_hot_updated(oid)::int as hot
from pg_class where oid = 'leasehold.webhook_outbox'::regclass`
      return (await alone.query<{ all: number; hot: number }>({ text })).rows[0] ?? { all: -1, hot: -1 }
    }
    const store = await openLeaseStore(alone, webhookTable(), { owner: 'd', bucket: 0 })
    const { claimed } = await store.claim(CLAIM)
    const before = await updates()
    for (let n = 1; n <= 20; n += 1)
      await store.renew(
        claimed.map(({ lease }) => lease),
        600_000 + n,
      )
    const after = await updates()
    expect([after.all - before.all, after.hot - before.hot]).toEqual([20, 20])
  })

  it('WH-FR-001-AC2: a renewal moves lease_until forward, never back', async () => {
    const store = await storeOf('d')
    const { claimed } = await store.claim(CLAIM)
    const leases = claimed.map(({ lease }) => lease)
    const { lease_until: first } = await only()
    await store.renew(leases, 600_000)
    const { lease_until: second } = await only()
    expect(second?.getTime()).toBeGreaterThan(first?.getTime() ?? Infinity)
    await store.renew(leases, 1_000)
    expect((await only()).lease_until).toEqual(second)
  })
})

describe('WH-FR-002-AC3: every outcome is fenced', () => {
  const OUTCOMES: Readonly<Record<WebhookOutcome, Readonly<Record<string, unknown>>>> = {
    done: DONE,
    retry: { ...FAILED, delay_ms: 5_000 },
    dead: FAILED,
    postponed: { delay_ms: 5_000 },
  }

  it.each(Object.entries(OUTCOMES))(
    'the outcome %s changes nothing when its dispatcher has lost the lease',
    async (outcome, args) => {
      const [slow, quick] = [await storeOf('slow'), await storeOf('quick')]
      const lost = (await slow.claim(CLAIM)).claimed.map(({ lease }) => lease)
      await change(EXPIRED)
      const { claimed } = await quick.claim(CLAIM)
      const before = await only()
      expect(before).toMatchObject({ lease_owner: 'quick', lease_token: A_TOKEN, attempts: 1 })
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

describe('WH-FR-004-AC2: an expired lease', () => {
  it('a delivery whose lease has expired is claimable at once by any dispatcher, and its history has the attempt', async () => {
    await (await storeOf('dead')).claim(CLAIM)
    await change(EXPIRED)
    const store = await storeOf('other')
    const { claimed } = await store.claim(CLAIM)
    expect(await only()).toMatchObject({ lease_owner: 'other', lease_token: A_TOKEN, attempts: 1 })
    const leases = claimed.map(({ lease }) => lease)
    await store.settle('done', leases, { args: [DONE] })
    expect(await attempts()).toEqual([
      { attempt: 1, lease_token: A_TOKEN, status: null, error_code: 'leaseExpired', unknown: true },
      { attempt: 2, lease_token: A_TOKEN, status: 200, error_code: null, unknown: false },
    ])
  })

  it.each([
    [[], 'failed'],
    [[0], 'pending'],
  ])(
    'WH-FR-004-AC3: with the schedule %j, a delivery whose dispatcher died is %s',
    async (schedule, status) => {
      const store = await storeOf('dead', schedule)
      await store.claim(CLAIM)
      await change(EXPIRED)
      expect(await store.reap()).toHaveLength(1)
      expect(await only()).toMatchObject({
        delivery_status: status,
        attempts: 1,
        expiries: 1,
        lease_owner: null,
        lease_until: null,
        last_error_code: 'leaseExpired',
      })
      expect(await attempts()).toMatchObject([{ attempt: 1, error_code: 'leaseExpired', unknown: true }])
    },
  )

  it('WH-FR-004-AC3: a delivery whose lease expired in its last attempt is not claimed, but failed, without a reaper', async () => {
    const store = await storeOf('dead', [])
    await store.claim(CLAIM)
    await change(EXPIRED)
    expect((await store.claim(CLAIM)).claimed).toEqual([])
    expect((await only()).delivery_status).toBe('failed')
  })
})

describe('D10: repeated crashes', () => {
  /** The delay until the next attempt that the reaper has written. */
  async function waitSeconds(): Promise<number> {
    const { rows } = await db.query<{ seconds: number }>({
      text: `select round(extract(epoch from next_attempt_at - now()))::int as seconds from leasehold.webhook_outbox`,
    })
    return rows[0]?.seconds ?? 0
  }

  /** A dispatcher claims the delivery and is killed, and the reaper takes the lease back. */
  async function crash(store: LeaseStore): Promise<void> {
    expect((await store.claim(CLAIM)).claimed).toHaveLength(1)
    await change(EXPIRED)
    expect(await store.reap()).toHaveLength(1)
  }

  it('a delivery is due at once after its first expiry, and after the delay of the schedule from the second on', async () => {
    const store = await storeOf('dying')
    const waits: number[] = []
    for (let deaths = 1; deaths < 10; deaths += 1) {
      await crash(store)
      waits.push(Math.max(0, await waitSeconds()))
      expect(await only()).toMatchObject({ delivery_status: 'pending', attempts: deaths, expiries: deaths })
      await change('next_attempt_at = now()')
    }
    expect(waits).toEqual([0, ...DEFAULT_SCHEDULE.slice(1).map((ms) => ms / 1_000)])
    await crash(store)
    expect(await only()).toMatchObject({ delivery_status: 'failed', attempts: 10, expiries: 10 })
    expect(await attempts()).toHaveLength(10)
  })

  it('a delivery is still pending after its dispatcher crashed 12 times in 98 seconds', async () => {
    const store = await storeOf('dying')
    let deaths = 0
    for (let crash = 0; crash < 12; crash += 1) {
      // 98 seconds pass altogether.
      await change("next_attempt_at = next_attempt_at - interval '8.2 seconds'")
      const { claimed } = await store.claim(CLAIM)
      await change(`lease_until = case when lease_owner is not null then now() end`)
      await store.reap()
      deaths += claimed.length
    }
    expect(deaths).toBe(2)
    expect(await only()).toMatchObject({ delivery_status: 'pending', attempts: 2, expiries: 2 })
  })

  it('from the second expiry on, only the reaper takes the lease back, not a claim', async () => {
    const store = await storeOf('dying')
    await store.claim(CLAIM)
    await change(EXPIRED)
    expect((await store.claim(CLAIM)).claimed).toHaveLength(1)
    expect(await only()).toMatchObject({ attempts: 1, expiries: 1 })
    await change(EXPIRED)
    expect((await store.claim(CLAIM)).claimed).toEqual([])
    await store.reap()
    expect(await waitSeconds()).toBe(300)
    expect(await attempts()).toMatchObject([
      { attempt: 1, lease_token: A_TOKEN, error_code: 'leaseExpired' },
      { attempt: 2, lease_token: A_TOKEN, error_code: 'leaseExpired' },
    ])
  })

  it('a claim takes at most one suspect, and none if it asks for none', async () => {
    await db.query({
      text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key)
        select endpoint_id, event_type, body, key from leasehold.webhook_outbox, unnest(array[null, 'a', 'b']) as key`,
    })
    await change('expiries = 2')
    const store = await storeOf('d')
    const request = { ...CLAIM, limit: 10 }
    expect((await store.claim({ ...request, suspects: 0 })).claimed).toEqual([])
    const { claimed, suspects } = await store.claim(request)
    expect(claimed).toHaveLength(1)
    expect(claimed.map(({ lease }) => lease.id)).toEqual(suspects)
  })
})

describe('ordered deliveries', () => {
  const OTHER = '00000000-0000-7000-8000-00000000000b'
  const BOTH = {
    limit: 10,
    leaseMs: 60_000,
    groups: [ENDPOINT, OTHER].map((key) => ({ group: key, room: 10 })),
  }

  async function write(endpoint: string, ...keys: readonly (string | null)[]): Promise<void> {
    await db.query({
      text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key)
        select $1, 'test.happened', '{}', key from unnest($2::text[]) with ordinality as k (key, n) order by n`,
      values: [endpoint, keys],
    })
  }

  it('at most one delivery of an endpoint and key is in flight, and endpoints do not share keys', async () => {
    await write(ENDPOINT, 'k', 'k', 'other')
    await write(OTHER, 'k', 'k')
    const [store, another] = [await storeOf('d'), await storeOf('e')]
    const { claimed } = await store.claim(BOTH)
    expect(claimed.map(({ lease }) => lease.id).toSorted()).toEqual(['1', '2', '4', '5'])
    expect((await another.claim(BOTH)).claimed).toEqual([])
    await store.settle(
      'done',
      claimed.map(({ lease }) => lease),
      { args: claimed.map(() => DONE) },
    )
    expect((await another.claim(BOTH)).claimed.map(({ lease }) => lease.id).toSorted()).toEqual(['3', '6'])
  })

  it('the database refuses a second delivery of a key in flight', async () => {
    await write(ENDPOINT, 'k', 'k')
    const lease = "lease_owner = 'x', lease_until = now() + interval '1 hour'"
    await expect(change(lease)).rejects.toThrow('webhook_outbox_in_flight')
  })

  it('a head that waits for its retry does not delay other keys', async () => {
    await write(ENDPOINT, 'k', 'k', 'other')
    const store = await storeOf('d')
    const { claimed } = await store.claim({ ...CLAIM, ids: ['2'] })
    await store.settle(
      'retry',
      claimed.map(({ lease }) => lease),
      { args: [{ ...FAILED, delay_ms: 60_000 }] },
    )
    const next = await store.claim({ ...CLAIM, limit: 10 })
    expect(next.claimed.map(({ lease }) => lease.id).toSorted()).toEqual(['1', '4'])
  })
})

describe('the history of a delivery', () => {
  it('the history has the newest 100 attempts, in order', async () => {
    const store = await storeOf(
      'd',
      Array.from({ length: 200 }, () => 0),
    )
    for (let n = 1; n <= 102; n += 1) {
      const { claimed } = await store.claim(CLAIM)
      const leases = claimed.map(({ lease }) => lease)
      await store.settle('retry', leases, { args: [{ ...FAILED, delay_ms: 0 }] })
    }
    const { rows } = await db.query({
      text: `select count(*)::int as count, min(attempt) as first, max(attempt) as last, min(id)::int as "firstId"
        from leasehold.webhook_attempts`,
    })
    expect(rows).toEqual([{ count: 100, first: 3, last: 102, firstId: 1 }])
  })
})
