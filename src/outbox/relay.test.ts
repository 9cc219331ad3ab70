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
import { collect, door, settled } from '../../test/support/running-worker.ts'
import { openDatabase } from '../postgres/database.ts'
import { openLeaseStore } from '../lease/store.ts'
import { dead, done, Events, PermanentError, retry, SaturatedError } from '../worker/index.ts'
import { outboxTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox, leasehold.audit restart identity' }))
afterAll(async () => db.close())

describe('the life of an event', () => {
  it('LIFE-03: a claim records its time, its worker and the end of its lease', async () => {
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
      lock_token: publisher.published[0]?.token.toString(),
    })
    expect(row?.claimed_at).toBeInstanceOf(Date)
    expect(Number(row?.locked_until) - Number(row?.claimed_at)).toBe(30_000)
    const published = settled(events, 1)
    held.open()
    await published
  })

  it('LIFE-04: an event that is not due is not claimed', async () => {
    await add(
      db,
      "(event_type, payload, available_at) values ('later', '{}', now() + interval '1 hour'), ('now', '{}', now())",
    )
    const publisher = recording()
    const { events } = await startRelay({ publisher })
    await events.next('claimed')
    await events.next('settled')
    expect(publisher.published.map(({ type }) => type)).toEqual(['now'])
    expect((await records(db))[0]).toMatchObject({ status: 'PENDING', attempts: 0, lock_token: '0' })
  })

  it('LIFE-05: a published event is PUBLISHED with its time and its relay, and nobody holds it any more', async () => {
    await write(db, null)
    const events = new Events()
    const published = settled(events, 1)
    const { runtime } = await startRelay({ publisher: recording() }, { events })
    await published
    const [row] = await records(db)
    expect(row).toMatchObject({
      status: 'PUBLISHED',
      attempts: 0,
      published_by: runtime.id,
      claimed_by: null,
      locked_until: null,
    })
    expect(row?.published_at).toBeInstanceOf(Date)
    expect(row?.claimed_at).toBeInstanceOf(Date)
  })

  it('LIFE-06 LIFE-07: a failed event returns to PENDING with one attempt more, its error, no claim and a later due time', async () => {
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
    // However slow the machine is, it does not take an hour.
    expect(inMs).toBeGreaterThan(0)
    expect(inMs).toBeLessThan(3_700_000)
  })

  it.each([1, 100])(
    'LIFE-06 D9: an event that is released returns to PENDING without a claim, an error or an attempt, and is published later (maxBatch %d)',
    async (maxBatch) => {
      await write(db, null, 'a', 'a')
      const events = new Events()
      const released = events.next('released')
      let isDown = true
      const publisher = recording(() => {
        if (isDown) throw new SaturatedError(3_600_000, 'the broker is down')
      }, maxBatch)
      const { runtime } = await startRelay({ publisher }, { events })
      await released
      await runtime.stop()
      expect(await records(db)).toMatchObject(
        Array.from({ length: 3 }, () => ({
          status: 'PENDING',
          attempts: 0,
          expiries: 0,
          last_error: null,
          claimed_at: null,
          claimed_by: null,
          locked_until: null,
        })),
      )
      // The release says when the target may have room. The events are due at once here, so that the test need not wait.
      await db.query({ text: 'update leasehold.outbox set available_at = now()' })
      isDown = false
      const published = settled(events, 3)
      await startRelay({ publisher }, { events })
      await published
      expect(await statuses(db)).toEqual({ PUBLISHED: 3 })
    },
  )

  it('LIFE-06: an event whose lease expired returns to PENDING with one attempt more, the reason and no claim, and is published', async () => {
    await write(db, null, 'a')
    const store = await openLeaseStore(db, outboxTable(), { owner: 'dead relay' })
    expect((await store.claim({ limit: 2, leaseMs: 30_000 })).claimed).toHaveLength(2)
    await db.query({ text: "update leasehold.outbox set locked_until = now() - interval '1 second'" })
    expect(await store.reap()).toHaveLength(2)
    const returned = {
      status: 'PENDING',
      attempts: 1,
      expiries: 1,
      last_error: expect.stringContaining('the lease expired'),
      claimed_at: null,
      claimed_by: null,
      locked_until: null,
    }
    const before = await records(db)
    expect(before).toMatchObject([returned, returned])
    const events = new Events()
    const published = settled(events, 2)
    await startRelay({ publisher: recording() }, { events })
    await published
    const done = before.map((row) => ({
      status: 'PUBLISHED',
      attempts: 1,
      lock_token: String(BigInt(row.lock_token) + 1n),
    }))
    expect(await records(db)).toMatchObject(done)
  })

  it.each([
    ['has claimed', false],
    ['has published', true],
  ])(
    'LIFE-12: a relay that has published an event which another relay %s meanwhile is fenced off, and changes nothing',
    async (_has, isPublished) => {
      await write(db, null)
      const [held, seen] = [door(), door()]
      const publisher = recording(async () => {
        seen.open()
        await held.opened
      })
      const events = new Events()
      const settledByRelay: unknown[] = []
      events.on('settled', (event) => settledByRelay.push(event))
      // It does not reap, and its next heartbeat is 10 s away: it has no reason to doubt its lease of 30 s. With one slot it
      // has no room to claim the event itself.
      const settings = { concurrency: 1, prefetch: 0 }
      await startRelay({ publisher, settings }, { events, reaper: false })
      await seen.opened
      const other = await openLeaseStore(db, outboxTable(), { owner: 'another relay' })
      await db.query({ text: "update leasehold.outbox set locked_until = now() - interval '1 second'" })
      await other.reap()
      const { claimed } = await other.claim({ limit: 1, leaseMs: 30_000 })
      const leases = claimed.map(({ lease }) => lease)
      const token = leases[0]?.token ?? 0n
      if (isPublished) await other.settle('done', leases)
      const before = await records(db)
      const fencedOff = events.next('fencedOff')
      held.open()
      expect(await fencedOff).toMatchObject({ id: '1', token: token - 1n, outcome: 'done' })
      expect(await records(db)).toEqual(before)
      expect(settledByRelay).toEqual([])
      if (!isPublished) await other.settle('done', leases)
      expect(await records(db)).toMatchObject([
        { status: 'PUBLISHED', attempts: 1, lock_token: String(token) },
      ])
    },
  )

  it('LIFE-06: a failed event is retried by the schedule until it succeeds', async () => {
    await write(db, null)
    const publisher = recording(({ attempt }) =>
      attempt < 4 ? retry({ error: `attempt ${attempt}` }) : done(),
    )
    const events = new Events()
    const all = collect(events, 'settled', (so) => so.some(({ outcome }) => outcome === 'done'))
    await startRelay({ publisher, retry: { firstMs: 1, longestMs: 2 } }, { events })
    await all
    expect(publisher.published.map(({ attempt }) => attempt)).toEqual([1, 2, 3, 4])
    expect((await records(db))[0]).toMatchObject({
      status: 'PUBLISHED',
      attempts: 3,
      lock_token: String((publisher.published[0]?.token ?? 0n) + 3n),
    })
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
    await add(db, `(event_type, payload, ${column}) values ('t', '{}', ${value})`)
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

  it('LIFE-08: an event without a maximum of attempts is retried for ever', async () => {
    await add(db, "(event_type, payload, max_attempts, attempts) values ('t', '{}', null, 1000)")
    const events = new Events()
    const failed = events.next('settled')
    await startRelay({ publisher: recording(() => retry({ error: 'no', delayMs: 3_600_000 })) }, { events })
    expect((await failed).outcome).toBe('retry')
  })

  it('LIFE-10: a published or dead event stays as it is', async () => {
    await add(db, "(event_type, payload) values ('dies', '{}'), ('lives', '{}')")
    const events = new Events()
    const both = settled(events, 2)
    await startRelay(
      { publisher: recording(({ type }) => (type === 'dies' ? dead('never') : done())) },
      { events },
    )
    await both
    const before = await records(db)
    // The scan that finds a new event would find these as well.
    const third = settled(events, ['3'])
    await write(db, null)
    await third
    expect((await records(db)).slice(0, 2)).toEqual(before)
  })
})

describe('producers that commit out of order', () => {
  it('LIFE-18: an event that commits late is published, and delays no other event', async () => {
    const publisher = recording()
    const events = new Events()
    const { runtime } = await startRelay({ publisher }, { events })
    await db.transaction(async (tx) => {
      await tx.query({
        text: "insert into leasehold.outbox (event_type, payload, ordering_key) values ('early', '{}', 'a')",
      })
      const second = settled(events, 1)
      await add(db, "(event_type, payload, ordering_key) values ('late', '{}', 'a'), ('other', '{}', null)")
      await second
    })
    await events.next('settled', ({ ids }) => ids.includes('1'))
    expect(publisher.published.map(({ type }) => type).toSorted()).toEqual(['early', 'late', 'other'])
    await runtime.stop()
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
    await add(db, "(event_type, payload) values ('after', '{}')")
    await after
    expect(publisher.published.map(({ type }) => type)).toEqual(['after'])
  })
})

it('LIFE-11 LIFE-12: many concurrent relays publish every event once, and each settles only events that it holds', async () => {
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
