import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase, openSession } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { deliveryStates, idsIn, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { replay, resumeReplay } from './replay.ts'

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

  it('a replay since a time brings back all that failed since, and no other; each batch has its entry in the audit', async () => {
    const before = await deliveryStates(db)
    expect(await replay(db, { filter: { failedSince: since() }, dryRun: true })).toMatchObject({
      matched: 10_000,
      changed: 0,
    })
    expect(await deliveryStates(db)).toEqual(before)
    const done = await replay(db, { filter: { failedSince: since() }, ...WHO })
    expect(done).toMatchObject({ matched: 10_000, changed: 10_000, finished: true })
    expect(await idsIn(db, 'pending')).toHaveLength(10_000)
    expect(await idsIn(db, 'failed')).toHaveLength(500)
    const entries = await auditEntries(db)
    expect(entries.map(({ details }) => details['changed'])).toEqual(
      Array.from({ length: 10 }, (_, n) => (n + 1) * 1_000),
    )
    for (const { principal, action, details } of entries) {
      expect({ principal, action }).toEqual({ principal: 'ada', action: 'webhooks.replay' })
      expect(details).toMatchObject({
        changeId: done.changeId,
        reason: WHO.reason,
        matched: 10_000,
        filter: { failedSince: expect.stringMatching(/^\d{4}-/) },
        lastBatch: { count: 1_000 },
      })
    }
  })

  it('a replay that names an endpoint replays only deliveries of that endpoint', async () => {
    const { rows: found } = await db.query<{ endpoint_id: string }>({
      text: 'select endpoint_id from leasehold.webhook_outbox where id = 1',
    })
    const endpoint = found[0]?.endpoint_id ?? ''
    expect(await replay(db, { filter: { failedSince: since(), endpoint }, ...WHO })).toMatchObject({
      changed: 5_000,
    })
    expect((await auditEntries(db))[0]).toMatchObject({ target: endpoint })
  })

  it('a rate gives each its own moment, over all batches', async () => {
    const rate = 400
    const done = await replay(db, { filter: { failedSince: since() }, rate, ...WHO })
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

  it('two at the same time replay each delivery once', async () => {
    const both = await Promise.all([
      replay(db, { filter: { failedSince: since() }, ...WHO }),
      replay(db, { filter: { failedSince: since() }, principal: 'grace', reason: 'the same idea' }),
    ])
    expect(both.reduce((sum, { changed }) => sum + changed, 0)).toBe(10_000)
    expect(await idsIn(db, 'pending')).toHaveLength(10_000)
  })

  it('a stopped replay leaves the rest as it was; resumed, it replays the rest at the same rate, and none twice', async () => {
    const controller = new AbortController()
    const stopped = await replay(db, {
      filter: { failedSince: since() },
      rate: 500,
      ...WHO,
      signal: controller.signal,
      onProgress: ({ changed }) => {
        if (changed === 3_000) controller.abort()
      },
    })
    expect(stopped).toMatchObject({ changed: 3_000, finished: false })
    expect(await idsIn(db, 'failed')).toHaveLength(7_500)
    // What was replayed fails once more in between: it does not match any more.
    await db.query({
      text: `update leasehold.webhook_outbox set delivery_status = 'failed', failed_at = now() where id in (7, 8)`,
    })
    const resumed = await resumeReplay(db, stopped.changeId ?? '', { principal: 'grace' })
    expect(resumed).toMatchObject({ changed: 7_000, changedBefore: 3_000, matched: 10_000, finished: true })
    expect(await idsIn(db, 'pending')).toHaveLength(9_998)
    const due = (await deliveryStates(db))
      .filter((row) => row.delivery_status === 'pending')
      .map((row) => row.due)
    expect(9_997 / (Math.max(...due) - Math.min(...due))).toBeLessThan(550)
    expect((await auditEntries(db)).at(-1)).toMatchObject({
      principal: 'grace',
      details: { changed: 10_000, reason: WHO.reason, rate: 500 },
    })
  })

  it('a replay that is killed in the middle of a batch loses no row: the batch is undone, with its entry in the audit', async () => {
    const holder = await openSession(database.url)
    const own = openDatabase({ url: database.url, maxConnections: 1 })
    onTestFinished(async () => own.close())
    const { rows: mine } = await own.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
    const pid = mine[0]?.pid
    // The third batch comes upon a row that somebody holds.
    await holder.query('begin')
    await holder.query('select from leasehold.webhook_outbox where id = 2500 for update')
    const dying = replay(own, { filter: { failedSince: since() }, ...WHO })
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
        { timeout: 120_000 },
      )
      .toBe(true)
    await holder.query('select pg_terminate_backend($1)', [pid])
    expect(await death).toMatchObject({ code: 'DATABASE_UNAVAILABLE' })
    await holder.query('rollback')
    expect(await idsIn(db, 'pending')).toHaveLength(2_000)
    expect(await idsIn(db, 'failed')).toHaveLength(8_500)
    expect(await auditEntries(db)).toHaveLength(2)
    expect(await replay(db, { filter: { failedSince: since() }, ...WHO })).toMatchObject({
      changed: 8_000,
      finished: true,
    })
    expect(await idsIn(db, 'pending')).toHaveLength(10_000)
  })
})
