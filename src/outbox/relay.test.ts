import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { records, recording, statuses, useRelays, write } from '../../test/support/running-relay.ts'
import { collect, door, settled } from '../../test/support/running-worker.ts'
import { openDatabase } from '../postgres/database.ts'
import { dead, done, Events, PermanentError, retry, SaturatedError } from '../runtime/index.ts'
import { handlers } from '../publishers/handlers.ts'
import { HEADER, headersOf } from './headers.ts'
import { relay } from './relay.ts'
import { unblock } from './operator/unblock.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' }))
afterAll(async () => db.close())

function numbers(events: readonly { readonly payload: unknown }[]): unknown[] {
  return events.map(({ payload }) => (payload as { n: number }).n)
}

async function add(sql: string): Promise<void> {
  await db.query({ text: `insert into leasehold.outbox ${sql}` })
}

describe('the life of an event', () => {
  it('LIFE-03: a claim says when and by whom, and for how long', async () => {
    await write(db, null)
    const [held, seen] = [door(), door()]
    const publisher = recording(async () => {
      seen.open()
      await held.opened
    })
    const { runtime, events } = await startRelay({ publisher })
    await seen.opened
    const [row] = await records(db)
    expect(row).toMatchObject({
      status: 'CLAIMED',
      claimed_by: runtime.id,
      lock_token: '1',
      available_at: null,
    })
    expect(row?.claimed_at).toBeInstanceOf(Date)
    expect(Number(row?.locked_until) - Number(row?.claimed_at)).toBe(30_000)
    const published = settled(events, 1)
    held.open()
    await published
  })

  it('LIFE-04: an event that is not due is not claimed', async () => {
    await add(
      "(event_type, payload, available_at) values ('later', '{}', now() + interval '1 hour'), ('now', '{}', now())",
    )
    const publisher = recording()
    const { events } = await startRelay({ publisher })
    await events.next('claimed')
    await events.next('settled')
    expect(publisher.published.map(({ type }) => type)).toEqual(['now'])
    expect((await records(db))[0]).toMatchObject({ status: 'PENDING', attempts: 0, lock_token: '0' })
  })

  it('LIFE-05: success is PUBLISHED, with its moment, and without a claim', async () => {
    await write(db, null)
    const events = new Events()
    const published = settled(events, 1)
    await startRelay({ publisher: recording() }, { events })
    await published
    const [row] = await records(db)
    expect(row).toMatchObject({
      status: 'PUBLISHED',
      attempts: 0,
      claimed_at: null,
      claimed_by: null,
      locked_until: null,
    })
    expect(row?.published_at).toBeInstanceOf(Date)
  })

  it('LIFE-06 LIFE-07: failure is PENDING again: one attempt more, the error, no claim, and due later', async () => {
    await write(db, null)
    const events = new Events()
    const failed = settled(events, 1)
    await startRelay(
      { publisher: recording(() => retry({ error: new Error('no room'), delayMs: 3_600_000 })) },
      { events },
    )
    await failed
    const [row] = await records(db)
    expect(row).toMatchObject({
      status: 'PENDING',
      attempts: 1,
      last_error: 'Error: no room',
      claimed_at: null,
      claimed_by: null,
      locked_until: null,
    })
    const inMs = Number(row?.available_at) - Date.now()
    expect(inMs).toBeGreaterThan(3_500_000)
    expect(inMs).toBeLessThan(3_700_000)
  })

  it('LIFE-06: what fails is tried again, by a schedule, until it succeeds', async () => {
    await write(db, null)
    const publisher = recording(({ attempt }) =>
      attempt < 4 ? retry({ error: `attempt ${attempt}` }) : done(),
    )
    const events = new Events()
    const all = collect(events, 'settled', (so) => so.some(({ outcome }) => outcome === 'done'))
    await startRelay({ publisher, retry: { firstMs: 1, longestMs: 2 } }, { events })
    await all
    expect(publisher.published.map(({ attempt }) => attempt)).toEqual([1, 2, 3, 4])
    expect((await records(db))[0]).toMatchObject({ status: 'PUBLISHED', attempts: 3, lock_token: '4' })
  })

  it.each([
    ['its attempts are used up', 'max_attempts', '2', () => retry({ error: 'no', delayMs: 0 }), 2],
    ['its publisher says so', 'max_attempts', '25', () => dead('never'), 1],
    [
      'its publisher throws a PermanentError',
      'max_attempts',
      '25',
      () => {
        throw new PermanentError('never')
      },
      1,
    ],
    [
      'it is too old',
      'created_at',
      "now() - interval '2 hours'",
      () => retry({ error: 'no', delayMs: 0 }),
      1,
    ],
  ] as const)('LIFE-08: an event is DEAD when %s', async (_, column, value, answer, attempts) => {
    await add(`(event_type, payload, ${column}) values ('t', '{}', ${value})`)
    const events = new Events()
    const died = events.next('settled', ({ outcome }) => outcome === 'dead')
    const publisher = recording(answer)
    await startRelay({ publisher, retry: { maxAgeMs: 3_600_000 } }, { events })
    await died
    expect((await records(db))[0]).toMatchObject({
      status: 'DEAD',
      attempts,
      claimed_at: null,
      claimed_by: null,
      locked_until: null,
    })
    expect(publisher.published).toHaveLength(attempts)
  })

  it('LIFE-08: no limit on attempts is no limit', async () => {
    await add("(event_type, payload, max_attempts, attempts) values ('t', '{}', null, 1000)")
    const events = new Events()
    const failed = events.next('settled')
    await startRelay({ publisher: recording(() => retry({ error: 'no', delayMs: 3_600_000 })) }, { events })
    expect((await failed).outcome).toBe('retry')
  })

  it('LIFE-10: what is finished stays so', async () => {
    await add("(event_type, payload) values ('dies', '{}'), ('lives', '{}')")
    const events = new Events()
    const both = settled(events, 2)
    const { runtime } = await startRelay(
      { publisher: recording(({ type }) => (type === 'dies' ? dead('never') : done())) },
      { events },
    )
    await both
    const before = await records(db)
    // A look of the worker, after which nothing has changed: the event behind it was claimed by it.
    await write(db, null)
    await settled(events, 1)
    runtime.worker('outbox').wake()
    expect((await records(db)).slice(0, 2)).toEqual(before)
  })
})

describe('publishing', () => {
  it('LIFE-17: a batch that publishes only in part is settled event by event', async () => {
    await write(db, null, null, null, null)
    const publisher = recording(({ payload }) => {
      const { n } = payload as { n: number }
      if (n === 2) return retry({ error: 'two', delayMs: 3_600_000 })
      return n === 3 ? dead('three') : done()
    }, 10)
    const events = new Events()
    const all = settled(events, 4)
    await startRelay({ publisher }, { events })
    await all
    expect(publisher.batches).toHaveLength(1)
    expect((await records(db)).map(({ status, last_error: error }) => [status, error])).toEqual([
      ['PUBLISHED', null],
      ['PENDING', 'two'],
      ['DEAD', 'three'],
      ['PUBLISHED', null],
    ])
  })

  it('events that are claimed together are published together, and no batch is larger than allowed', async () => {
    await write(db, ...Array.from({ length: 25 }, () => null))
    const publisher = recording(undefined, 10)
    const events = new Events()
    const all = settled(events, 25)
    await startRelay({ publisher, settings: { concurrency: 100 } }, { events })
    await all
    expect(publisher.batches.map((batch) => batch.length)).toEqual([10, 10, 5])
  })

  it('one call is one attempt for each of its events, also when it throws', async () => {
    await write(db, null, null)
    const events = new Events()
    const failed = settled(events, 2)
    let calls = 0
    const publisher = {
      name: 'broken',
      maxBatch: 10,
      publish: async () => {
        calls += 1
        return Promise.reject(new Error('connection reset'))
      },
    }
    await startRelay({ publisher, retry: { firstMs: 3_600_000 } }, { events })
    await failed
    expect(calls).toBe(1)
    for (const row of await records(db)) {
      expect(row).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'Error: connection reset' })
    }
  })

  it.each([1, 10])(
    'LIFE-05: what is no answer is no acknowledgement: the event is tried again (maxBatch %d)',
    async (maxBatch) => {
      const answers: unknown[] = [[], retry({ error: 'no' }), { ok: false }, false, null, [undefined], [{}]]
      for (const answer of answers) {
        await db.query({ text: 'truncate leasehold.outbox' })
        await write(db, null)
        const events = new Events()
        const failed = settled(events, 1)
        const publisher = { name: 'sloppy', maxBatch, publish: async () => Promise.resolve(answer as never) }
        const { runtime } = await startRelay({ publisher, retry: { firstMs: 3_600_000 } }, { events })
        await failed
        await runtime.stop()
        const [row] = await records(db)
        expect(row).toMatchObject({ status: 'PENDING', attempts: 1 })
        expect(row?.last_error).toMatch(/^TypeError: the publisher returned /)
      }
    },
  )

  it('the retry limits hold for a publisher that answers nonsense', async () => {
    await add("(event_type, payload, max_attempts) values ('t', '{}', 2)")
    const events = new Events()
    const died = events.next('settled', ({ outcome }) => outcome === 'dead')
    const publisher = { name: 'sloppy', publish: async () => Promise.resolve([{} as never]) }
    await startRelay({ publisher, retry: { firstMs: 1 } }, { events })
    await died
    expect((await records(db))[0]).toMatchObject({ status: 'DEAD', attempts: 2 })
  })

  it('part of a batch can be given back: the target went away before it answered for it', async () => {
    await write(db, null, null)
    const events = new Events()
    let away = true
    const publisher = {
      name: 'half',
      maxBatch: 10,
      publish: async (batch: readonly unknown[]) =>
        Promise.resolve(batch.map((_, i) => (away && i === 1 ? new SaturatedError(20) : done()))),
    }
    const all = settled(events, 2)
    const released = events.next('released')
    await startRelay({ publisher }, { events })
    await released
    away = false
    await all
    expect((await records(db)).map(({ status, attempts }) => [status, attempts])).toEqual([
      ['PUBLISHED', 0],
      ['PUBLISHED', 0],
    ])
  })

  it.each(['block', 'skip', 'park'] as const)(
    'RULE-020-030: with %s, an event that was cut short by a shutdown is given back, and no attempt is counted',
    async (onFailure) => {
      await write(db, 'a', null)
      const seen = door()
      const publisher = handlers<{ 'test.happened': unknown }>(
        {
          'test.happened': async (_, { signal }) => {
            seen.open()
            return new Promise<void>((_resolve, reject) => {
              signal.addEventListener('abort', () => reject(new Error('told to stop')))
            })
          },
        },
        { maxBatch: 10 },
      )
      const { runtime } = await startRelay({ publisher, onFailure, settings: { shutdownTimeoutMs: 50 } })
      await seen.opened
      await runtime.stop()
      for (const row of await records(db)) {
        expect(row).toMatchObject({ status: 'PENDING', attempts: 0, parked: false })
      }
    },
  )

  it('headers that somebody wrote as something else than texts travel as texts', async () => {
    await add(
      `(event_type, payload, headers) values ('t', '{}', '{"a": 1, "b": {"c": null}, "d": "text", "e": null}')`,
    )
    const publisher = recording()
    const events = new Events()
    const published = settled(events, 1)
    await startRelay({ publisher }, { events })
    await published
    expect(publisher.published[0]?.headers).toEqual({ a: '1', b: '{"c":null}', d: 'text', e: 'null' })
  })

  it('RULE-020-042: a target that is away costs no attempt, and claiming pauses', async () => {
    await write(db, null)
    const events = new Events()
    const paused = events.next('paused')
    let away = true
    const publisher = recording(() => {
      if (away) throw new SaturatedError(20)
    })
    await startRelay({ publisher }, { events })
    expect(await paused).toMatchObject({ reason: 'saturated' })
    away = false
    await settled(events, 1)
    expect((await records(db))[0]).toMatchObject({ status: 'PUBLISHED', attempts: 0 })
  })

  it('RULE-020-042: a publisher whose probe fails is sent nothing until it is well again', async () => {
    const events = new Events()
    const paused = events.next('paused')
    const publisher = { ...recording(), probe: async () => Promise.reject(new Error('not ready')) }
    await startRelay({ publisher }, { events })
    expect(await paused).toMatchObject({ reason: 'unhealthy', error: new Error('not ready') })
    await write(db, null)
    expect(publisher.published).toEqual([])
  })

  it('the event id and the token travel as headers, beside those of the producer', async () => {
    await add(
      `(event_type, payload, ordering_key, headers) values ('order.paid', '{"id": 7}', 'customer 1', '{"region": "north", "leasehold-token": "99"}')`,
    )
    const publisher = recording()
    const events = new Events()
    const published = settled(events, 1)
    await startRelay({ publisher }, { events })
    await published
    const [event] = publisher.published
    const [row] = await records(db)
    if (event === undefined) throw new Error('nothing was published')
    expect(event).toMatchObject({ id: '1', type: 'order.paid', payload: { id: 7 }, attempt: 1, token: 1n })
    expect(headersOf(event)).toEqual({
      region: 'north',
      [HEADER.eventId]: row?.event_id,
      [HEADER.eventType]: 'order.paid',
      [HEADER.orderingKey]: 'customer 1',
      [HEADER.token]: '1',
      [HEADER.attempt]: '1',
    })
  })

  it('a publisher is closed once its relay has stopped', async () => {
    let closed = false
    const publisher = {
      ...recording(),
      close: async () => {
        closed = true
        return Promise.resolve()
      },
    }
    const { runtime } = await startRelay({ publisher })
    await runtime.stop()
    expect(closed).toBe(true)
  })

  it('refuses what cannot work, by name', () => {
    expect(() => relay({ publisher: recording(), onFailure: 'wait' as never })).toThrow('onFailure is "wait"')
    expect(() => relay({ publisher: {} as never })).toThrow('has no publisher')
    expect(() => relay({ publisher: { ...recording(), maxBatch: 0 } })).toThrow(
      'maxBatch of the publisher recording is 0',
    )
    expect(() => relay({ publisher: recording(), retry: { maxAgeMs: 0 } })).toThrow('retry.maxAgeMs is 0')
  })
})

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

  it('block: those behind one that fails wait for it, and others do not', async () => {
    await write(db, 'a', 'a', 'b', 'b', null)
    const publisher = recording(refuses(1))
    const events = new Events()
    const all = settled(events, 4)
    await startRelay({ publisher }, { events })
    await all
    expect(new Set(numbers(publisher.published))).toEqual(new Set([1, 3, 4, 5]))
    expect((await records(db))[1]).toMatchObject({ status: 'PENDING', attempts: 0, lock_token: '0' })
  })

  it('block: once the one that fails is dead, the key goes on', async () => {
    await add(
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

  it('skip: one that fails is dead at once, and the key goes on', async () => {
    await write(db, 'a', 'a', null)
    const publisher = recording(refuses(1))
    const events = new Events()
    const all = settled(events, 3)
    await startRelay({ publisher, onFailure: 'skip' }, { events })
    await all
    expect((await records(db)).map(({ status }) => status)).toEqual(['DEAD', 'PUBLISHED', 'PUBLISHED'])
  })

  it('skip and park: an event without a key is tried again as ever', async () => {
    await write(db, null)
    const events = new Events()
    const failed = settled(events, 1)
    await startRelay({ publisher: recording(refuses(1)), onFailure: 'park' }, { events })
    await failed
    expect((await records(db))[0]).toMatchObject({ status: 'PENDING', attempts: 1, parked: false })
  })

  it('park: the key waits for an operator, who lets it go on without the event', async () => {
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

  it('park: an operator can have the event published after all, before those behind it', async () => {
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
    expect((await records(db))[0]).toMatchObject({ status: 'PUBLISHED', attempts: 0, lock_token: '2' })
  })

  it('LIFE-08: an operator gives up an event that keeps failing, and its key goes on', async () => {
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

  it('an operator has an event that keeps failing tried again at once, before those behind it', async () => {
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

  it('unblocking a key that nothing holds up changes nothing', async () => {
    await write(db, 'a', 'a')
    const before = await records(db)
    const request = { orderingKey: 'a', principal: 'ada', reason: 'a try' }
    expect(await unblock(db, request)).toEqual({ parked: 0, failing: 0 })
    expect(await records(db)).toEqual(before)
  })

  it('a parked key is let go on only with a reason and a name', async () => {
    await expect(unblock(db, { orderingKey: 'a', principal: 'ada', reason: ' ' })).rejects.toThrow(
      'reason is " "',
    )
    await expect(unblock(db, { orderingKey: '', principal: 'ada', reason: 'x' })).rejects.toThrow(
      'orderingKey is ""',
    )
  })
})

describe('a relay that polls seldom', () => {
  const SELDOM = { pollMs: 3_600_000 }

  it('LIFE-13: goes on with a line at once, however its events are settled', async () => {
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

  it('LIFE-04 LIFE-07: publishes an event when it is due, and tries again when it said so', async () => {
    await add("(event_type, payload, available_at) values ('t', '{}', now() + interval '300 milliseconds')")
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

describe('producers that commit out of order', () => {
  it('LIFE-18: an event that commits late is published, and holds up nobody before', async () => {
    const publisher = recording()
    const events = new Events()
    const { runtime } = await startRelay({ publisher }, { events })
    await db.transaction(async (tx) => {
      await tx.query({
        text: "insert into leasehold.outbox (event_type, payload, ordering_key) values ('early', '{}', 'a')",
      })
      const second = settled(events, 1)
      await add("(event_type, payload, ordering_key) values ('late', '{}', 'a'), ('other', '{}', null)")
      await second
    })
    const committedAt = performance.now()
    await events.next('settled', ({ ids }) => ids.includes('1'))
    expect(performance.now() - committedAt).toBeLessThan(1_000)
    expect(publisher.published.map(({ type }) => type).toSorted()).toEqual(['early', 'late', 'other'])
    expect(runtime.inFlight).toBe(0)
  })

  it('LIFE-18: an event that is rolled back is never published', async () => {
    const publisher = recording()
    const events = new Events()
    await startRelay({ publisher }, { events })
    await db
      .transaction(async (tx) => {
        await tx.query({ text: "insert into leasehold.outbox (event_type, payload) values ('never', '{}')" })
        throw new Error('changed my mind')
      })
      .catch(() => undefined)
    const after = settled(events, 1)
    await add("(event_type, payload) values ('after', '{}')")
    await after
    expect(publisher.published.map(({ type }) => type)).toEqual(['after'])
  })
})

it('LIFE-11 LIFE-12: many relays at once publish every event once, and each writes only what it holds', async () => {
  const publisher = recording()
  const events = new Events()
  const all = settled(events, 500)
  const fencedOff: unknown[] = []
  events.on('fencedOff', (event) => fencedOff.push(event))
  await Promise.all(Array.from({ length: 4 }, async () => startRelay({ publisher }, { events })))
  await write(db, ...Array.from({ length: 500 }, (_, n) => (n % 2 === 0 ? `key ${n % 20}` : null)))
  await all
  expect(new Set(numbers(publisher.published)).size).toBe(500)
  expect(publisher.published).toHaveLength(500)
  expect(fencedOff).toEqual([])
  expect(await statuses(db)).toEqual({ PUBLISHED: 500 })
})
