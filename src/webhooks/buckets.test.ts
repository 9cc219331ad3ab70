/** Deliveries while the number of buckets is raised: those of an ordering key stay together, and none is written twice. */
import type { Client } from 'pg'
import { afterAll, beforeEach, expect, it } from 'vitest'
import { backToOneBucket, raise } from '../../test/support/buckets.ts'
import { backendOf, blocked, openSession, useDatabase } from '../../test/support/database.ts'
import { deliveryStatuses } from '../../test/support/running-dispatcher.ts'
import { forgetWebhooks, makeEndpoint } from '../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { replay } from './admin/replay.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
/** Its bucket is 38 of 64 and 230 of 256. */
const KEY = 'some key'
const EVENT_ID = '01890000-0000-7000-8000-0000000000aa'
let endpoint: string

beforeEach(async () => {
  await forgetWebhooks(db)
  await backToOneBucket(db)
  endpoint = await makeEndpoint(db, { ordered: true })
  await migrate(db, { buckets: 64 })
})
afterAll(async () => db.close())

const SEND = `select leasehold.send_webhook('order.paid', '{}', ordering_key => $1, event_id => $2) as written`

async function send(
  key: string | null = KEY,
  eventId: string | null = null,
  session?: Client,
): Promise<number> {
  const sent = { text: SEND, values: [key, eventId] }
  const { rows: answer } = await (session === undefined
    ? db.query<{ written: number }>(sent)
    : session.query<{ written: number }>(sent))
  return answer[0]?.written ?? 0
}

async function finish(status: 'delivered' | 'failed', ...ids: readonly string[]): Promise<void> {
  await db.query({
    text: `update leasehold.webhook_outbox set delivery_status = '${status}', ${status}_at = now() where id = any ($1)`,
    values: [ids],
  })
}

async function rows(): Promise<{ id: string; bucket: number }[]> {
  const text = 'select id::text as id, bucket from leasehold.webhook_outbox as d order by d.id'
  return (await db.query<{ id: string; bucket: number }>({ text })).rows
}

async function buckets(): Promise<number[]> {
  return (await rows()).map(({ bucket }) => bucket)
}

async function ids(): Promise<string[]> {
  return (await rows()).map(({ id }) => id)
}

it('raising the number waits for transactions that have sent', async () => {
  const late = await openSession(url)
  await late.query('begin')
  await send(KEY, null, late)
  const { gaveWay, raised } = raise(db, 256)
  await Promise.race([gaveWay, raised])
  await send()
  await late.query('commit')
  await raised
  await send()
  expect(await buckets()).toEqual([38, 38, 38])
})

it('senders of a key wait for each other, as long as its deliveries may be in two buckets', async () => {
  await send()
  await migrate(db, { buckets: 256 })
  const [second, third] = [await openSession(url), await openSession(url)]
  await second.query('begin')
  await send(KEY, null, second)
  await finish('delivered', ...(await ids()))
  const pid = await backendOf(third)
  const sent = send(KEY, null, third)
  await Promise.race([sent, blocked(db, pid)])
  await second.query('commit')
  await sent
  expect(await buckets()).toEqual([38, 38, 38])
})

it('a delivery that is replayed is where the next ones of its key are', async () => {
  await send()
  await send('another key')
  await send(null)
  const [, another, unkeyed] = await buckets()
  await finish('failed', ...(await ids()))
  await migrate(db, { buckets: 256 })
  await send()
  expect(await buckets()).toEqual([38, another, unkeyed, 230])
  const replayed = await replay(db, { filter: { status: 'failed' }, principal: 'ada', reason: 'it is back' })
  expect(replayed).toMatchObject({ matched: 3, changed: 3, finished: true })
  expect(await deliveryStatuses(db)).toEqual({ pending: 4 })
  const { rows: found } = await db.query<{ bucket: number }>({
    text: "select leasehold.bucket('another key') as bucket",
  })
  expect(await buckets()).toEqual([230, found[0]?.bucket, unkeyed, 230])
})

it.each([null, KEY])('an event of the key %s that was sent before is delivered once', async (key) => {
  // Without a key the bucket depends on the ids of the event and the endpoint: one in four stays where it is.
  const events = Array.from({ length: 8 }, (_, n) => EVENT_ID.replace(/a$/, String(n)))
  for (const event of events) expect(await send(key, event)).toBe(1)
  await finish('delivered', ...(await ids()))
  await migrate(db, { buckets: 256 })
  for (const event of events) expect(await send(key, event)).toBe(0)
  expect(await rows()).toHaveLength(8)
})

it.each([null, KEY])('two transactions that send one event of the key %s at once agree', async (key) => {
  await migrate(db, { buckets: 256 })
  const [first, second] = [await openSession(url), await openSession(url)]
  await first.query('begin')
  expect(await send(key, EVENT_ID, first)).toBe(1)
  const pid = await backendOf(second)
  const sent = send(key, EVENT_ID, second)
  await blocked(db, pid)
  await first.query('commit')
  expect(await sent).toBe(0)
})

it('a delivery in another bucket than those of its key is refused', async () => {
  const written = db.query({
    text: `insert into leasehold.webhook_outbox (bucket, endpoint_id, event_type, body, ordering_key)
      values (5, $1, 'order.paid', '{}', $2)`,
    values: [endpoint, KEY],
  })
  await expect(written).rejects.toMatchObject({
    message:
      'the bucket of a delivery of a order.paid event with the ordering_key "some key" is 5, and must be 38',
    column: 'bucket',
    hint: 'Leave bucket out, or write leasehold.bucket(ordering_key).',
  })
})
