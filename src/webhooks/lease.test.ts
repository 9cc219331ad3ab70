import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { type DeliveryRecord, deliveries } from '../../test/support/running-dispatcher.ts'
import { inspectTable } from '../lease/inspect.ts'
import { openLeaseStore, type LeaseStore } from '../lease/index.ts'
import { leaseStatements } from '../lease/sql.ts'
import { openDatabase } from '../postgres/database.ts'
import { type WebhookOutcome, webhookTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const ENDPOINT = '00000000-0000-7000-8000-00000000000a'
const CLAIM = { limit: 1, leaseMs: 60_000, lanes: [{ key: ENDPOINT, room: 10 }] }
const DONE = { duration_ms: 1, status: 200, code: null, error: null, response: 'thank you' }
const FAILED = { duration_ms: 1, status: 500, code: 'http500', error: 'answered with HTTP 500', response: '' }
const OVER = "lease_until = now() - interval '1 second'"

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.webhook_outbox restart identity cascade' })
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

async function storeOf(owner: string, maxAttempts?: number): Promise<LeaseStore> {
  return openLeaseStore(db, webhookTable({ maxAttempts }), { owner, bucket: 0 })
}

async function attempts(): Promise<unknown[]> {
  const text =
    'select attempt, lease_token, status, error_code, started_at is null as unknown from leasehold.webhook_attempts order by id'
  return (await db.query({ text })).rows
}

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
    ['it is over', OVER],
    [
      'it was cancelled',
      "delivery_status = 'failed', failed_at = now(), lease_owner = null, lease_until = null",
    ],
    [
      'it was delivered by hand',
      "delivery_status = 'delivered', delivered_at = now(), lease_owner = null, lease_until = null",
    ],
  ])('WH-FR-002-AC1: changes nothing when %s', async (_, set) => {
    const store = await storeOf('d')
    const { claimed } = await store.claim(CLAIM)
    await change(set)
    const before = await only()
    const leases = claimed.map(({ lease }) => lease)
    const renewal = await store.renew(leases, 600_000)
    expect(renewal).toMatchObject({ renewed: [], lost: leases })
    expect(await only()).toEqual(before)
  })

  it('WH-NFR-001: changes nothing that an index has, so that it stays a HOT update', async () => {
    const { rows } = await db.query({
      text: `select indexname from pg_indexes where schemaname = 'leasehold' and tablename = 'webhook_outbox'
        and indexdef like '%lease_until%'`,
    })
    expect(rows).toEqual([])
  })

  it('WH-FR-001-AC2: moves lease_until forward, never back', async () => {
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
      const [slow, quick] = [await storeOf('slow'), await storeOf('quick')]
      const lost = (await slow.claim(CLAIM)).claimed.map(({ lease }) => lease)
      await change(OVER)
      const { claimed } = await quick.claim(CLAIM)
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
    await (await storeOf('dead')).claim(CLAIM)
    await change(OVER)
    const store = await storeOf('other')
    const { claimed } = await store.claim(CLAIM)
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
      const store = await storeOf('dead', most)
      await store.claim(CLAIM)
      await change(OVER)
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
    const store = await storeOf('dead', 1)
    await store.claim(CLAIM)
    await change(OVER)
    expect((await store.claim(CLAIM)).claimed).toEqual([])
    expect(await store.reap()).toHaveLength(1)
    expect((await only()).delivery_status).toBe('failed')
  })
})
