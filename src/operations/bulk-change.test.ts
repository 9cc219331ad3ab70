import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { auditEntries, makeEvents, outboxStates } from '../../test/support/outbox-rows.ts'
import { openSession } from '../../test/support/database.ts'
import { deliveryStates, makeDeliveries } from '../../test/support/webhook-rows.ts'
import { forgetWebhooks, makeEndpoint } from '../../test/support/webhook-endpoints.ts'
import { replay as replayEvents, resumeReplay as resumeEvents } from '../outbox/admin/replay.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import { cancel, resumeCancel } from '../webhooks/admin/cancel.ts'
import { replay as replayDeliveries } from '../webhooks/admin/replay.ts'

const database = useDatabase()
const db = openDatabase({ url: database.url, maxConnections: 4 })
afterAll(async () => db.close())
beforeEach(async () => {
  await forgetWebhooks(db)
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' })
})

const WHO = { principal: 'ada', reason: 'a test' }
const PENDING = { status: 'pending' } as const

async function countIn(status: string): Promise<number> {
  return (await deliveryStates(db)).filter((row) => row.delivery_status === status).length
}

describe('a change without a due column is paced by waiting between its batches', () => {
  it('a paced change holds no lock while it waits', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 6)
    const client = await openSession(database.url)
    const controller = new AbortController()
    let heard: (value: unknown) => void = () => undefined
    const firstBatch = new Promise((resolve) => (heard = resolve))
    // One row in 1,000 seconds: after the first batch the change waits until it is stopped.
    const cancelling = cancel(db, {
      filter: PENDING,
      rate: 0.001,
      ...WHO,
      signal: controller.signal,
      onProgress: () => heard(true),
    })
    await firstBatch
    // NOWAIT fails if any of the rows is locked.
    const { rows } = await client.query('select id from leasehold.webhook_outbox for update nowait')
    expect(rows).toHaveLength(6)
    const { rows: open } = await client.query(
      `select from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'
  and pid <> pg_backend_pid()`,
    )
    expect(open).toEqual([])
    controller.abort()
    expect(await cancelling).toMatchObject({ changed: 1, finished: false })
    expect(await countIn('failed')).toBe(1)
  })

  it('a batch is what the rate allows in a second', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 700)
    const controller = new AbortController()
    const done = await cancel(db, {
      filter: PENDING,
      rate: 300,
      ...WHO,
      signal: controller.signal,
      onProgress: () => controller.abort(),
    })
    expect(done).toMatchObject({ changed: 300, finished: false })
  })

  it('a cancel that was stopped is resumed where it was, and no row is cancelled twice', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 2_500)
    const controller = new AbortController()
    const stopped = await cancel(db, {
      filter: PENDING,
      ...WHO,
      signal: controller.signal,
      onProgress: () => controller.abort(),
    })
    expect(stopped).toMatchObject({ changed: 1_000, finished: false })
    // One that was cancelled is replayed in between: the cancel has passed it.
    await replayDeliveries(db, { ids: ['5'], ...WHO })
    expect(await resumeCancel(db, stopped.changeId ?? '', { principal: 'grace' })).toMatchObject({
      changed: 1_500,
      changedBefore: 1_000,
      finished: true,
    })
    expect(await countIn('pending')).toBe(1)
  })
})

it('a resumed change waits for its rate before its first batch', async () => {
  await makeDeliveries(db, await makeEndpoint(db), 3)
  const first = new AbortController()
  const stopped = await cancel(db, {
    filter: PENDING,
    rate: 0.001,
    ...WHO,
    signal: first.signal,
    onProgress: () => first.abort(),
  })
  // The rate allows the next row in a quarter of an hour. It is stopped as soon as it knows how long to wait.
  const second = new AbortController()
  let batches = 0
  const watched: Database = {
    ...db,
    query: async (statement) => {
      if (statement.text.includes('extract(epoch from now())')) setImmediate(() => second.abort())
      return db.query(statement)
    },
    transaction: async (work, choice) => {
      batches += 1
      return db.transaction(work, choice)
    },
  }
  const resumed = resumeCancel(watched, stopped.changeId ?? '', { principal: 'ada', signal: second.signal })
  expect(await resumed).toMatchObject({ changed: 0, changedBefore: 1, finished: false })
  expect(batches).toBe(0)
  expect(await countIn('pending')).toBe(2)
})

it('a change that is resumed while another process runs it stays within its limit: one of the two stops', async () => {
  await makeEvents(db, 6_000, { status: 'PUBLISHED', agoMs: 1_000 })
  let resumed: Promise<unknown> | undefined
  const original = replayEvents(db, {
    filter: { status: 'PUBLISHED' },
    limit: 4_000,
    ...WHO,
    onProgress: async ({ changeId }) => {
      // After the first batch another process resumes it, and is finished before the original goes on.
      resumed ??= resumeEvents(db, changeId, { principal: 'grace' })
      await resumed
    },
  })
  await expect(original).rejects.toMatchObject({
    code: 'STATE_CONFLICT',
    message: expect.stringContaining('Another process continues the replay'),
  })
  expect(await resumed).toMatchObject({ changed: 3_000, changedBefore: 1_000, finished: true })
  const states = await outboxStates(db)
  expect(states.filter(({ status }) => status === 'PENDING')).toHaveLength(4_000)
})

describe('a row in flight is never touched', () => {
  it('neither by a replay nor by a cancel, and its lease stays as it is', async () => {
    const endpoint = await makeEndpoint(db)
    const [delivery = ''] = await makeDeliveries(db, endpoint, 1, { owner: 'a dispatcher' })
    const [event = ''] = await makeEvents(db, 1, { status: 'CLAIMED' })
    const before = [await deliveryStates(db), await outboxStates(db)]
    expect(await cancel(db, { ids: [delivery], ...WHO })).toMatchObject({ changed: 0 })
    expect(await replayDeliveries(db, { ids: [delivery], ...WHO })).toMatchObject({ changed: 0 })
    expect(await replayEvents(db, { ids: [event], ...WHO })).toMatchObject({ changed: 0 })
    expect([await deliveryStates(db), await outboxStates(db)]).toEqual(before)
    expect(await auditEntries(db)).toEqual([])
  })
})

describe('a token never goes down', () => {
  it('a replay and a cancel leave it as it is', async () => {
    const endpoint = await makeEndpoint(db)
    await makeDeliveries(db, endpoint, 1, { status: 'failed' })
    await makeEvents(db, 1, { status: 'DEAD' })
    await replayDeliveries(db, { ids: ['1'], ...WHO })
    await cancel(db, { ids: ['1'], ...WHO })
    await replayEvents(db, { ids: ['1'], ...WHO })
    expect((await deliveryStates(db)).map((row) => row.lease_token)).toEqual(['1'])
    expect((await outboxStates(db)).map((row) => row.lock_token)).toEqual(['1'])
  })
})

describe('rows that are named by their ids', () => {
  it('those that were not changed are reported: beyond the limit, or because of the filter', async () => {
    await makeEvents(db, 3, { status: 'DEAD' })
    await makeEvents(db, 1, { status: 'DEAD', type: 'other' })
    const ids = ['1', '2', '3', '4']
    const filter = { type: 'order.paid' }
    const skipped = [
      { id: '3', why: 'the limit of 2 was reached' },
      { id: '4', why: 'it does not satisfy the other conditions' },
    ]
    expect(await replayEvents(db, { ids, filter, limit: 2, dryRun: true })).toMatchObject({
      matched: 2,
      skipped,
    })
    expect(await replayEvents(db, { ids, filter, limit: 2, ...WHO })).toMatchObject({ changed: 2, skipped })
  })

  it('one that somebody else changes at the same moment is reported', async () => {
    await makeEvents(db, 2_000, { status: 'DEAD' })
    const ids = Array.from({ length: 2_000 }, (_, n) => String(n + 1))
    const done = await replayEvents(db, {
      ids,
      ...WHO,
      onProgress: async () => {
        await db.query({
          text: "update leasehold.outbox set dead_at = now() where id = 2000 and status = 'DEAD'",
        })
      },
    })
    expect(done).toMatchObject({
      changed: 1_999,
      skipped: [{ id: '2000', why: 'somebody else has changed it in the meantime' }],
    })
  })

  it('an id that is named twice, or in two ways, is reported once', async () => {
    await makeEvents(db, 1)
    expect(await replayEvents(db, { ids: ['1', '1', '001'], ...WHO })).toMatchObject({
      skipped: [{ id: '1' }],
    })
  })
})

describe('the audit', () => {
  it('the ids that were named are in the first entry only, and each entry has the ids of its own batch', async () => {
    const ids = await makeEvents(db, 5_000, { status: 'DEAD' })
    const { changeId } = await replayEvents(db, { ids, ...WHO })
    const entries = (await auditEntries(db)).map(({ details }) => details)
    expect(entries).toHaveLength(5)
    expect(entries.map(({ filter }) => filter)).toEqual([{ ids }, {}, {}, {}, {}])
    expect(entries.map(({ namedIds }) => namedIds)).toEqual(Array.from({ length: 5 }, () => 5_000))
    expect(entries.map(({ lastBatch }) => lastBatch)).toEqual(
      [0, 1, 2, 3, 4].map((n) => {
        const batch = ids.slice(n * 1_000, (n + 1) * 1_000)
        return { count: 1_000, firstId: batch[0], lastId: batch.at(-1), ids: batch }
      }),
    )
    expect(entries.every((entry) => entry['changeId'] === changeId)).toBe(true)
  })

  it('a change of named rows is resumed with the ids of its first entry', async () => {
    const ids = await makeEvents(db, 3_500, { status: 'DEAD' })
    const controller = new AbortController()
    const stopped = await replayEvents(db, {
      ids: [...ids, '99999'],
      ...WHO,
      signal: controller.signal,
      onProgress: ({ changed }) => {
        if (changed === 2_000) controller.abort()
      },
    })
    expect(stopped).toMatchObject({ changed: 2_000, finished: false })
    // Named ones that were replayed before are not reported as unchanged.
    expect(await resumeEvents(db, stopped.changeId ?? '', { principal: 'grace' })).toMatchObject({
      changed: 1_500,
      changedBefore: 2_000,
      finished: true,
      skipped: [{ id: '99999', why: 'there is no such event' }],
    })
    expect((await outboxStates(db)).every(({ status }) => status === 'PENDING')).toBe(true)
  })

  it('the audit has one complete entry for a change of one batch', async () => {
    await makeEvents(db, 3, { status: 'DEAD' })
    const { changeId } = await replayEvents(db, { ids: ['1', '3'], ...WHO })
    expect(await auditEntries(db)).toMatchObject([
      {
        principal: 'ada',
        action: 'outbox.replay',
        target: null,
        details: {
          changeId,
          reason: 'a test',
          filter: { ids: ['1', '3'] },
          matched: 2,
          changed: 2,
          counts: { dead: 2, published: 0 },
          lastBatch: { count: 2, firstId: '1', lastId: '3' },
          finishedAtSeconds: expect.any(Number),
        },
      },
    ])
  })

  it('the audit has the dates of the filter, which a resumed change reads', async () => {
    await makeEvents(db, 2_500, { status: 'DEAD', agoMs: 60_000 })
    await makeEvents(db, 1, { status: 'DEAD', agoMs: 7_200_000 })
    const controller = new AbortController()
    const stopped = await replayEvents(db, {
      filter: { from: new Date(Date.now() - 3_600_000) },
      ...WHO,
      signal: controller.signal,
      onProgress: () => controller.abort(),
    })
    expect(stopped).toMatchObject({ matched: 2_500, changed: 1_000 })
    expect(await resumeEvents(db, stopped.changeId ?? '', { principal: 'grace' })).toMatchObject({
      changed: 1_500,
      finished: true,
    })
    expect((await outboxStates(db)).filter(({ status }) => status === 'DEAD')).toHaveLength(1)
  })

  it('resuming is refused with an id that the audit does not have, or that is of another action', async () => {
    await makeDeliveries(db, await makeEndpoint(db), 1)
    const { changeId = '' } = await cancel(db, { ids: ['1'], ...WHO })
    const by = { principal: 'ada' }
    await expect(resumeEvents(db, 'x', by)).rejects.toThrow(/resume is "x".*No replay has this id/)
    await expect(resumeEvents(db, changeId, by)).rejects.toThrow(/No replay has this id/)
    await expect(resumeCancel(db, changeId, by)).rejects.toThrow(/This cancel was finished at/)
    await expect(resumeCancel(db, changeId, { principal: '' })).rejects.toThrow(/principal is ""/)
  })
})
