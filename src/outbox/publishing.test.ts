import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { add, records, recording, useRelays, write } from '../../test/support/running-relay.ts'
import { door, settled } from '../../test/support/running-worker.ts'
import { openDatabase } from '../postgres/database.ts'
import { dead, done, Events, retry, SaturatedError } from '../worker/index.ts'
import { handlers } from './publishers/handlers.ts'
import { HEADER, headersOf } from './event.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' }))
afterAll(async () => db.close())

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

  it('LIFE-06: an event of a type that this relay does not know yet is published by a relay that knows it', async () => {
    await write(db, null)
    const old = new Events()
    const failed = settled(old, 1)
    const running = await startRelay({ publisher: handlers({}), retry: { firstMs: 1 } }, { events: old })
    await failed
    await running.runtime.stop()
    const [waiting] = await records(db)
    expect(waiting).toMatchObject({
      status: 'PENDING',
      last_error: "no handler for events of type 'test.happened'",
    })
    expect(waiting?.attempts).toBeGreaterThan(0)
    const events = new Events()
    const published = events.next('settled', ({ outcome }) => outcome === 'done')
    await startRelay({ publisher: handlers({ 'test.happened': () => {} }) }, { events })
    await published
    expect(await records(db)).toMatchObject([{ status: 'PUBLISHED' }])
  })

  it.each([
    ['of a handler', handlers({ 'test.happened': async () => Promise.reject() })],
    [
      'of a handler in a batch',
      handlers({ 'test.happened': async () => Promise.reject() }, { maxBatch: 10 }),
    ],
    ['of a publisher', { name: 'mute', maxBatch: 1, publish: async () => Promise.reject() }],
    ['of a publisher with batches', { name: 'mute', maxBatch: 10, publish: async () => Promise.reject() }],
  ])('a rejection without a reason %s is reported and recorded', async (_of, publisher) => {
    await write(db, null)
    const events = new Events()
    const [failed, done] = [events.next('failed'), settled(events, 1)]
    await startRelay({ publisher, retry: { firstMs: 3_600_000 } }, { events })
    expect((await failed).error).toMatchObject({ message: expect.stringContaining('it threw undefined') })
    await done
    expect(await records(db)).toMatchObject([
      {
        status: 'PENDING',
        attempts: 1,
        last_error: expect.stringMatching(/it threw undefined .*: throw an Error/),
      },
    ])
  })

  it.each([1, 10])(
    'the error of a handler is reported as it was thrown, with its stack (maxBatch %d)',
    async (maxBatch) => {
      await write(db, 'customer-7')
      const thrown = new Error('no stock')
      const publisher = handlers({ 'test.happened': async () => Promise.reject(thrown) }, { maxBatch })
      for (const onFailure of ['block', 'park'] as const) {
        const events = new Events()
        const failed = events.next('failed')
        const { runtime } = await startRelay({ publisher, onFailure, retry: { firstMs: 1 } }, { events })
        expect(await failed).toMatchObject({
          id: '1',
          outcome: onFailure === 'block' ? 'retry' : 'dead',
          details: { eventType: 'test.happened', orderingKey: 'customer-7' },
        })
        const { stack } = thrown
        expect((await failed).error).toMatchObject({ name: 'Error', message: 'no stock', stack })
        await runtime.stop()
      }
    },
  )

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
    'LIFE-05: an invalid answer is no acknowledgement, and the event is retried (maxBatch %d)',
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

  it('the retry limits apply to a publisher that returns invalid answers', async () => {
    await add(db, "(event_type, payload, max_attempts) values ('t', '{}', 2)")
    const events = new Events()
    const died = events.next('settled', ({ outcome }) => outcome === 'dead')
    const publisher = { name: 'sloppy', publish: async () => Promise.resolve([{} as never]) }
    await startRelay({ publisher, retry: { firstMs: 1 } }, { events })
    await died
    expect((await records(db))[0]).toMatchObject({ status: 'DEAD', attempts: 2 })
  })

  it('part of a batch can be released when the target becomes unavailable before it answered', async () => {
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
    'RULE-020-030, D9: with %s, an event whose publishing a shutdown interrupts returns to PENDING, and its attempt counts',
    async (onFailure) => {
      await write(db, 'a', null)
      const seen = door()
      let started = 0
      const publisher = handlers<{ 'test.happened': unknown }>(
        {
          'test.happened': async (_, { signal }) => {
            started += 1
            if (started === 2) seen.open()
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
        expect(row).toMatchObject({ status: 'PENDING', attempts: 1, expiries: 0, parked: false })
      }
    },
  )

  it('headers that were written with SQL as other JSON values travel as texts', async () => {
    await add(
      db,
      `(event_type, payload, headers) values ('t', '{}', '{"a": 1, "b": {"c": null}, "d": "text", "e": null}')`,
    )
    const publisher = recording()
    const events = new Events()
    const published = settled(events, 1)
    await startRelay({ publisher }, { events })
    await published
    expect(publisher.published[0]?.headers).toEqual({ a: '1', b: '{"c":null}', d: 'text', e: 'null' })
  })

  it('RULE-020-042: an unavailable target costs no attempt, and claiming pauses', async () => {
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

  it('RULE-020-042: a publisher whose probe fails is sent nothing until the probe succeeds', async () => {
    const events = new Events()
    const paused = events.next('paused')
    const [again, wellSoon] = [door(), door()]
    let asked = 0
    const probe = async (): Promise<void> => {
      asked += 1
      if (asked === 1) throw new Error('not ready')
      again.open()
      await wellSoon.opened
    }
    const publisher = { ...recording(), probe }
    await startRelay({ publisher }, { events })
    expect(await paused).toMatchObject({ reason: 'unhealthy', error: new Error('not ready') })
    const published = settled(events, 1)
    await write(db, null)
    // Several polls later it is asked again, and has been sent nothing meanwhile.
    await again.opened
    expect(publisher.published).toEqual([])
    wellSoon.open()
    await published
  })

  it('the event id and the token travel as headers, together with those of the producer', async () => {
    await add(
      db,
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
    expect(event).toMatchObject({ id: '1', type: 'order.paid', payload: { id: 7 }, attempt: 1 })
    expect(headersOf(event)).toEqual({
      region: 'north',
      [HEADER.eventId]: row?.event_id,
      [HEADER.eventType]: 'order.paid',
      [HEADER.orderingKey]: 'customer 1',
      [HEADER.token]: row?.lock_token,
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
})
