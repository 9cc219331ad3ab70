import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase, openSession } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { deliveryStates, idsIn, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { recover } from './requeue.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const WHO = { principal: 'ada', reason: 'it is back' }
const FAILED = { status: 'failed' } as const

describe('ten thousand that have failed', () => {
  beforeEach(async () => {
    const one = await makeEndpoint(db)
    const other = await makeEndpoint(db)
    await makeDeliveries(db, one, 5_000, { ...FAILED, agoMs: 10_000, key: `'key ' || n % 100` })
    await makeDeliveries(db, other, 5_000, { ...FAILED, agoMs: 5_000 })
    await makeDeliveries(db, other, 500, { ...FAILED, agoMs: 7_200_000 })
    await makeDeliveries(db, other, 500, { status: 'delivered' })
  })
  const since = (): Date => new Date(Date.now() - 3_600_000)

  it('recover brings back all that failed since, and no other; each batch has its entry in the audit', async () => {
    const before = await deliveryStates(db)
    expect(await recover(db, { since: since(), dryRun: true })).toMatchObject({
      matched: 10_000,
      requeued: 0,
    })
    expect(await deliveryStates(db)).toEqual(before)
    const done = await recover(db, { since: since(), ...WHO })
    expect(done).toMatchObject({ matched: 10_000, requeued: 10_000, finished: true })
    expect(await idsIn(db, 'pending')).toHaveLength(10_000)
    expect(await idsIn(db, 'failed')).toHaveLength(500)
    const entries = await auditEntries(db)
    expect(entries.map(({ details }) => details['requeued'])).toEqual(
      Array.from({ length: 10 }, (_, n) => (n + 1) * 1_000),
    )
    for (const { principal, action, details } of entries) {
      expect({ principal, action }).toEqual({ principal: 'ada', action: 'webhooks.recover' })
      expect(details).toMatchObject({
        requeue: done.requeue,
        reason: WHO.reason,
        matched: 10_000,
        filter: { status: 'failed', failedSince: expect.stringMatching(/^\d{4}-/) },
        batch: { count: 1_000 },
      })
    }
  })

  it('of one endpoint only, if one is named', async () => {
    const { rows: found } = await db.query<{ endpoint_id: string }>({
      text: 'select endpoint_id from leasehold.webhook_outbox where id = 1',
    })
    const endpoint = found[0]?.endpoint_id ?? ''
    expect(await recover(db, { since: since(), endpoint, ...WHO })).toMatchObject({ requeued: 5_000 })
    expect((await auditEntries(db))[0]).toMatchObject({ target: endpoint })
  })

  it('a rate gives each its own moment, over all batches', async () => {
    const rate = 400
    const done = await recover(db, { since: since(), rate, ...WHO })
    const due = (await deliveryStates(db))
      .filter((row) => row.delivery_status === 'pending')
      .map((row) => row.due)
    const sorted = due.toSorted((a, b) => a - b)
    expect(new Set(sorted).size).toBe(10_000)
    const [first = 0, last = 0] = [sorted[0], sorted.at(-1)]
    expect(9_999 / (last - first)).toBeGreaterThan(rate * 0.9)
    expect(9_999 / (last - first)).toBeLessThan(rate * 1.1)
    expect(done.lastDueAt?.getTime()).toBeCloseTo(last * 1_000, -1)
  })

  it('two at the same time requeue each once', async () => {
    const both = await Promise.all([
      recover(db, { since: since(), ...WHO }),
      recover(db, { since: since(), principal: 'grace', reason: 'the same idea' }),
    ])
    expect(both.reduce((sum, { requeued }) => sum + requeued, 0)).toBe(10_000)
    expect(await idsIn(db, 'pending')).toHaveLength(10_000)
  })

  it('stopped, it leaves the rest as it was; the same call once more does the rest', async () => {
    const controller = new AbortController()
    const stopped = await recover(db, {
      since: since(),
      ...WHO,
      signal: controller.signal,
      onProgress: ({ changed }) => {
        if (changed === 3_000) controller.abort()
      },
    })
    expect(stopped).toMatchObject({ requeued: 3_000, finished: false })
    expect(await idsIn(db, 'failed')).toHaveLength(7_500)
    expect(await recover(db, { since: since(), ...WHO })).toMatchObject({ matched: 7_000, requeued: 7_000 })
  })

  it('killed in the middle of a batch, it loses no row: the batch is undone, with its entry in the audit', async () => {
    const holder = await openSession(database.url)
    const own = openDatabase({ url: database.url, maxConnections: 1 })
    onTestFinished(async () => own.close())
    const { rows: mine } = await own.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
    const pid = mine[0]?.pid
    // The third batch comes upon a row that somebody holds.
    await holder.query('begin')
    await holder.query('select from leasehold.webhook_outbox where id = 2500 for update')
    const dying = recover(own, { since: since(), ...WHO })
    const death = dying.catch((error: unknown) => error)
    await expect
      .poll(
        async () =>
          (
            await holder.query<{ waits: boolean }>(
              `select exists (select from pg_locks where pid = $1 and not granted) as waits`,
              [pid],
            )
          ).rows[0]?.waits,
        { timeout: 20_000 },
      )
      .toBe(true)
    await holder.query('select pg_terminate_backend($1)', [pid])
    expect(await death).toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    await holder.query('rollback')
    expect(await idsIn(db, 'pending')).toHaveLength(2_000)
    expect(await idsIn(db, 'failed')).toHaveLength(8_500)
    expect(await auditEntries(db)).toHaveLength(2)
    expect(await recover(db, { since: since(), ...WHO })).toMatchObject({ requeued: 8_000, finished: true })
    expect(await idsIn(db, 'pending')).toHaveLength(10_000)
  })
})
