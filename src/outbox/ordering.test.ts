import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import {
  add,
  numbers,
  records,
  recording,
  statuses,
  useRelays,
  write,
} from '../../test/support/running-relay.ts'
import { settled } from '../../test/support/running-worker.ts'
import { openDatabase } from '../postgres/database.ts'
import { dead, done, Events, retry } from '../worker/index.ts'
import { unblock } from './admin/unblock.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' }))
afterAll(async () => db.close())

describe('LIFE-13: events of one ordering key', () => {
  const refuses = (n: number) => (event: { readonly payload: unknown }) =>
    (event.payload as { n: number }).n === n ? retry({ error: 'no', delayMs: 3_600_000 }) : done()

  it('are published one at a time, in the order in which they were written', async () => {
    const keys = Array.from({ length: 60 }, (_, n) => `key ${n % 3}`)
    await write(db, ...keys)
    const inFlight = new Set<string>()
    const overlaps: string[] = []
    const publisher = recording(async ({ orderingKey = '' }) => {
      if (inFlight.has(orderingKey)) overlaps.push(orderingKey)
      inFlight.add(orderingKey)
      await new Promise((resolve) => setImmediate(resolve))
      inFlight.delete(orderingKey)
    })
    const events = new Events()
    const all = settled(events, 60)
    await startRelay({ publisher }, { events })
    await all
    expect(overlaps).toEqual([])
    for (const key of ['key 0', 'key 1', 'key 2']) {
      const order = numbers(publisher.published.filter(({ orderingKey }) => orderingKey === key))
      expect(order).toEqual(order.toSorted((a, b) => Number(a) - Number(b)))
      expect(order).toHaveLength(20)
    }
  })

  it('block: later events of the key wait for one that fails, and other keys do not', async () => {
    await write(db, 'a', 'a', 'b', 'b', null)
    const publisher = recording(refuses(1))
    const events = new Events()
    const all = settled(events, 4)
    await startRelay({ publisher }, { events })
    await all
    expect(new Set(numbers(publisher.published))).toEqual(new Set([1, 3, 4, 5]))
    expect((await records(db))[1]).toMatchObject({ status: 'PENDING', attempts: 0, lock_token: '0' })
  })

  it('block: once the failing event is dead, its key continues', async () => {
    await add(
      db,
      "(event_type, payload, ordering_key, max_attempts) values ('t', '{\"n\": 1}', 'a', 2), ('t', '{\"n\": 2}', 'a', 2)",
    )
    const publisher = recording(({ payload }) =>
      (payload as { n: number }).n === 1 ? retry({ error: 'no', delayMs: 0 }) : done(),
    )
    const events = new Events()
    const done2 = settled(events, ['2'])
    await startRelay({ publisher }, { events })
    await done2
    expect(numbers(publisher.published)).toEqual([1, 1, 2])
    expect(await statuses(db)).toEqual({ DEAD: 1, PUBLISHED: 1 })
  })

  it('skip: a failing event is dead at once, and its key continues', async () => {
    await write(db, 'a', 'a', null)
    const publisher = recording(refuses(1))
    const events = new Events()
    const all = settled(events, 3)
    await startRelay({ publisher, onFailure: 'skip' }, { events })
    await all
    expect((await records(db)).map(({ status }) => status)).toEqual(['DEAD', 'PUBLISHED', 'PUBLISHED'])
  })

  it('skip and park: an event without a key is retried by the schedule', async () => {
    await write(db, null)
    const events = new Events()
    const failed = settled(events, 1)
    await startRelay({ publisher: recording(refuses(1)), onFailure: 'park' }, { events })
    await failed
    expect((await records(db))[0]).toMatchObject({ status: 'PENDING', attempts: 1, parked: false })
  })

  it('park: the key waits until an operator unblocks it without the event', async () => {
    await write(db, 'a', 'a', 'b')
    const publisher = recording(refuses(1))
    const events = new Events()
    const two = settled(events, 2)
    await startRelay({ publisher, onFailure: 'park' }, { events })
    await two
    expect((await records(db)).map(({ status, parked }) => [status, parked])).toEqual([
      ['DEAD', true],
      ['PENDING', false],
      ['PUBLISHED', false],
    ])
    const rest = settled(events, ['2'])
    const request = { orderingKey: 'a', principal: 'ada', reason: 'superseded' }
    expect(await unblock(db, request)).toEqual({ parked: 1, failing: 0 })
    await rest
    expect((await records(db)).map(({ status, parked }) => [status, parked])).toEqual([
      ['DEAD', false],
      ['PUBLISHED', false],
      ['PUBLISHED', false],
    ])
    const { rows } = await db.query({
      text: 'select principal, action, target, details from leasehold.audit',
    })
    const [first] = await records(db)
    expect(rows).toEqual([
      {
        principal: 'ada',
        action: 'outbox.unblock',
        target: 'a',
        details: { reason: 'superseded', replay: false, events: [first?.event_id] },
      },
    ])
    expect(await unblock(db, request)).toEqual({ parked: 0, failing: 0 })
  })

  it('park: an operator can have the parked event published before later events of its key', async () => {
    await write(db, 'a', 'a')
    let broken = true
    const publisher = recording(() => (broken ? dead('broken') : done()))
    const events = new Events()
    const parked = settled(events, 1)
    await startRelay({ publisher, onFailure: 'park' }, { events })
    await parked
    broken = false
    const both = settled(events, ['1', '2'])
    await unblock(db, { orderingKey: 'a', replay: true, principal: 'ada', reason: 'mended' })
    await both
    expect(numbers(publisher.published)).toEqual([1, 1, 2])
    expect((await records(db))[0]).toMatchObject({ status: 'PUBLISHED', attempts: 0 })
  })

  it('LIFE-08: an operator gives up an event that keeps failing, and its key continues', async () => {
    await write(db, 'a', 'a')
    const publisher = recording(refuses(1))
    const events = new Events()
    const failed = settled(events, 1)
    await startRelay({ publisher }, { events })
    await failed
    const rest = settled(events, ['2'])
    const request = { orderingKey: 'a', principal: 'ada', reason: 'it never will' }
    expect(await unblock(db, request)).toEqual({ parked: 0, failing: 1 })
    await rest
    expect((await records(db)).map((row) => [row.status, row.attempts, row.last_error])).toEqual([
      ['DEAD', 1, 'no (given up by ada: it never will)'],
      ['PUBLISHED', 0, null],
    ])
  })

  it('an operator has an event that keeps failing retried at once, before later events of its key', async () => {
    await write(db, 'a', 'a')
    let broken = true
    const publisher = recording(() => (broken ? retry({ error: 'no', delayMs: 3_600_000 }) : done()))
    const events = new Events()
    const failed = settled(events, 1)
    await startRelay({ publisher }, { events })
    await failed
    broken = false
    const both = settled(events, ['1', '2'])
    const request = { orderingKey: 'a', replay: true, principal: 'ada', reason: 'mended' }
    expect(await unblock(db, request)).toEqual({ parked: 0, failing: 1 })
    await both
    expect(numbers(publisher.published)).toEqual([1, 1, 2])
  })

  it('unblocking a key that is not blocked changes nothing', async () => {
    await write(db, 'a', 'a')
    const before = await records(db)
    const request = { orderingKey: 'a', principal: 'ada', reason: 'a try' }
    expect(await unblock(db, request)).toEqual({ parked: 0, failing: 0 })
    expect(await records(db)).toEqual(before)
  })

  it('unblocking needs a reason and a principal', async () => {
    await expect(unblock(db, { orderingKey: 'a', principal: 'ada', reason: ' ' })).rejects.toThrow(
      'reason is " "',
    )
    await expect(unblock(db, { orderingKey: '', principal: 'ada', reason: 'x' })).rejects.toThrow(
      'orderingKey is ""',
    )
  })
})

describe('a relay with a long poll interval', () => {
  const SELDOM = { pollMs: 3_600_000 }

  it('LIFE-13: claims the next event of a key at once, however the last one was settled', async () => {
    await write(db, ...Array.from({ length: 6 }, () => 'a'))
    const events = new Events()
    const all = settled(events, 6)
    await startRelay(
      { publisher: recording(), settings: { ...SELDOM, concurrency: 1, prefetch: 0 } },
      { events },
    )
    await all
    expect(await statuses(db)).toEqual({ PUBLISHED: 6 })
  })

  it('LIFE-04 LIFE-07: publishes an event when it is due, and retries it when its delay has passed', async () => {
    await add(
      db,
      "(event_type, payload, available_at) values ('t', '{}', now() + interval '300 milliseconds')",
    )
    const publisher = recording(({ attempt }) =>
      attempt === 1 ? retry({ error: 'once more', delayMs: 100 }) : done(),
    )
    const events = new Events()
    const published = events.next('settled', ({ outcome }) => outcome === 'done')
    await startRelay({ publisher, settings: SELDOM }, { events })
    await published
    expect((await records(db))[0]).toMatchObject({ status: 'PUBLISHED', attempts: 1 })
  })
})
