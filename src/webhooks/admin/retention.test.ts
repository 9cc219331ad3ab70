import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase, openSession } from '../../../test/support/database.ts'
import { type DeliveryState, deliveryStates, makeDeliveries } from '../../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import { applyRetention } from './retention.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const DAY_MS = 86_400_000
const QUICK = { pauseMs: 0 }
const NOTHING = { delivered: 0, failed: 0 }

async function rows(): Promise<DeliveryState[]> {
  return deliveryStates(db)
}

describe('retention', () => {
  it('by default removes delivered ones after 7 days and failed ones after 90', async () => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 3, { status: 'delivered', agoMs: 7 * DAY_MS + 60_000 })
    await makeDeliveries(db, endpoint, 2, { status: 'failed', agoMs: 90 * DAY_MS + 60_000 })
    const retained = [
      ...(await makeDeliveries(db, endpoint, 2, { status: 'delivered', agoMs: 7 * DAY_MS - 60_000 })),
      ...(await makeDeliveries(db, endpoint, 2, { status: 'failed', agoMs: 90 * DAY_MS - 60_000 })),
      ...(await makeDeliveries(db, endpoint, 2, { agoMs: 4 * DAY_MS - 60_000 })),
    ]
    expect(await applyRetention(db, QUICK)).toEqual({ ...NOTHING, delivered: 3, failed: 2 })
    expect((await rows()).map(({ id }) => id)).toEqual(retained)
    expect(await applyRetention(db, QUICK)).toEqual(NOTHING)
  })

  it('D11: counts from the moment of finishing, never from the creation', async () => {
    const endpoint = await makeEndpoint(db)
    const finished = await makeDeliveries(db, endpoint, 1, { status: 'delivered', agoMs: 8 * DAY_MS })
    const old = [
      ...(await makeDeliveries(db, endpoint, 1, { status: 'delivered' })),
      ...(await makeDeliveries(db, endpoint, 1, { status: 'failed' })),
    ]
    const created = async (ids: readonly string[], at: string): Promise<void> => {
      await db.query({
        text: `update leasehold.webhook_outbox set created_at = now() + $2::interval where id = any ($1::bigint[])`,
        values: [ids, at],
      })
    }
    await created(old, '-1 year')
    await created(finished, '1 year')
    expect(await applyRetention(db, { ...QUICK, batch: 1 })).toEqual({ ...NOTHING, delivered: 1 })
    expect((await rows()).map(({ id }) => id)).toEqual(old)
  })

  it('the times can be chosen, and null keeps for ever; every batch goes on where the last one ended', async () => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 40, { agoMs: 10_000 })
    await makeDeliveries(db, endpoint, 35, { status: 'delivered', agoMs: 10_000 })
    await makeDeliveries(db, endpoint, 10, { status: 'failed', agoMs: 10_000 })
    const forEver = { deliveredMs: null, failedMs: null }
    expect(await applyRetention(db, { ...QUICK, ...forEver })).toEqual(NOTHING)
    expect(await applyRetention(db, { ...QUICK, batch: 3, deliveredMs: 5_000, failedMs: 5_000 })).toEqual({
      ...NOTHING,
      delivered: 35,
      failed: 10,
    })
  })

  it('a row that somebody holds is stepped over, without waiting, and goes in the next round', async () => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 3, { status: 'delivered', agoMs: 10_000 })
    await makeDeliveries(db, endpoint, 3, { status: 'failed', agoMs: 10_000 })
    const client = await openSession(database.url)
    await client.query('begin')
    await client.query('select from leasehold.webhook_outbox where id in (1, 4) for update')
    const options = { ...QUICK, deliveredMs: 5_000, failedMs: 5_000 }
    expect(await applyRetention(db, options)).toMatchObject({ delivered: 2, failed: 2 })
    await client.query('rollback')
    expect(await applyRetention(db, options)).toMatchObject({ delivered: 1, failed: 1 })
  })

  it('stops after the batch in which it is told to', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 30, { status: 'delivered', agoMs: 10_000 })
    const controller = new AbortController()
    const stopping: Database = {
      ...db,
      query: async (statement) => {
        const result = await db.query<never>(statement)
        if (statement.text.includes('delete from')) controller.abort()
        return result
      },
    }
    const options = { batch: 10, deliveredMs: 5_000, pauseMs: 60_000 }
    expect(await applyRetention(stopping, { ...options, signal: controller.signal })).toMatchObject({
      delivered: 10,
    })
  })
})
