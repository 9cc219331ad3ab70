import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { withBuckets } from '../../../test/support/buckets.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { add, recording, useRelays, write } from '../../../test/support/running-relay.ts'
import { codesOf, expectAllStaged, remembering } from '../../../test/support/staged-reasons.ts'
import { door, settled } from '../../../test/support/running-worker.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { dead, retry } from '../../worker/completion/outcome.ts'
import * as explaining from './explain.ts'
import { listEvents } from './browse.ts'
import { unblock } from './unblock.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const relays = useRelays(url)
const explainEvent = remembering(explaining.explainEvent)
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, leasehold.audit, leasehold.workers restart identity' })
})
afterAll(async () => db.close())

/** The same database, with all statements of its transactions. */
function record(recorded: Database): { readonly recording: Database; readonly statements: string[] } {
  const statements: string[] = []
  const on = (tx: Queryable): Queryable => ({
    async query(statement) {
      statements.push(statement.text)
      return tx.query(statement)
    },
  })
  const transaction: Database['transaction'] = async (work, options) =>
    recorded.transaction(async (tx) => work(on(tx)), options)
  return { recording: { ...recorded, transaction }, statements }
}

describe('finished events', () => {
  it('finished: published since when, and how to replay it', async () => {
    await write(db, null)
    const { events } = await relays({ publisher: recording() })
    await settled(events, 1)
    expect(await explainEvent(db, '1')).toEqual({
      table: 'leasehold.outbox',
      id: '1',
      state: 'finished',
      reasons: [
        {
          code: 'finished',
          text: expect.stringMatching(/^It was published at .*Z \(\d s ago\)\.$/) as string,
          since: expect.any(Date) as Date,
          command: "leasehold outbox replay 1 --reason '…'",
        },
      ],
    })
  })

  it('dead: since when, and the last error', async () => {
    await write(db, null)
    const { events } = await relays({ publisher: recording(() => dead('no such topic')) })
    await settled(events, 1)
    const { state, reasons } = await explainEvent(db, '1')
    expect(state).toBe('finished')
    expect(reasons).toMatchObject([{ code: 'dead', command: "leasehold outbox replay 1 --reason '…'" }])
    expect(reasons[0]?.text).toMatch(
      /^It has been dead since .*Z \(\d s ago\), after 1 failed attempt: no such topic\.$/,
    )
  })
})

describe('ordering keys', () => {
  it('keyParked: by which event, since when, and why; the parked event says that it holds up its key', async () => {
    await write(db, 'order 7', 'order 7')
    const { events } = await relays({ publisher: recording(() => dead('no such topic')), onFailure: 'park' })
    await settled(events, 1)
    const { state, reasons } = await explainEvent(db, '2')
    expect(state).toBe('waiting')
    expect(reasons).toMatchObject([
      { code: 'keyParked', by: '1', command: "leasehold outbox unblock --reason '…' -- 'order 7'" },
    ])
    expect(reasons[0]?.text).toMatch(
      /^Its ordering key "order 7" has been parked since .*Z \(\d s ago\) by event 1: no such topic\.$/,
    )
    const parked = await explainEvent(db, '1')
    expect(parked.reasons).toMatchObject([
      { code: 'dead', command: "leasehold outbox unblock --reason '…' -- 'order 7'" },
    ])
    expect(parked.reasons[0]?.text).toContain('and holds up its ordering key "order 7"')
  })

  it('waitsForRow: of an event that failed, when it is tried next, and its last error', async () => {
    await write(db, 'k', 'k')
    const { events } = await relays({
      publisher: recording(() => retry({ error: 'the broker is away', delayMs: 600_000 })),
    })
    await settled(events, 1)
    const { reasons } = await explainEvent(db, '2')
    expect(reasons).toMatchObject([
      {
        code: 'waitsForRow',
        by: '1',
        until: expect.any(Date) as Date,
        command: "leasehold outbox retry 1 --reason '…'",
      },
    ])
    expect(reasons[0]?.text).toMatch(
      /^It waits for event 1 of its ordering key "k", which is not due until .*Z \(in 10 min\), because 1 attempt at it failed: the broker is away\.$/,
    )
    const head = await explainEvent(db, '1')
    expect(head.reasons).toMatchObject([
      {
        code: 'retryWait',
        command: "leasehold outbox retry 1 --reason '…'",
        until: expect.any(Date) as Date,
      },
    ])
    expect(head.reasons[0]?.text).toMatch(
      /^1 of 25 attempts has failed, and the next one is due at .*Z \(in 10 min\): the broker is away\.$/,
    )
    await unblock(db, { orderingKey: 'k', principal: 'alice', reason: 'it is old' })
    await expect.poll(async () => codesOf(await explainEvent(db, '2')), BOUND).not.toContain('waitsForRow')
  })

  it('waitsForRow: of an event that a relay publishes now, by which one and until when', async () => {
    await write(db, 'k', 'k')
    const [begun, held] = [door(), door()]
    const publisher = recording(async () => {
      begun.open()
      await held.opened
    })
    const { runtime } = await relays({ publisher }, { presenceMs: 50 })
    await begun.opened
    const { reasons } = await explainEvent(db, '2')
    expect(reasons).toMatchObject([{ code: 'waitsForRow', by: '1', command: 'leasehold outbox explain 1' }])
    expect(reasons[0]?.text).toMatch(
      new RegExp(
        `^It waits for event 1 of its ordering key "k", which the worker process ${runtime.id} holds until .*Z \\(in \\d+ s\\)\\.$`,
      ),
    )
    const leased = await explainEvent(db, '1')
    expect(leased.reasons[0]?.text).toMatch(
      new RegExp(
        `^The worker process ${runtime.id} has held it for \\d s, with token \\d+, and its lease runs until .*; it is alive, last seen \\d s ago, with leases of \\d+ s, and has not renewed it yet\\.$`,
      ),
    )
    held.open()
  })

  it('waitsForRow: of an event that is scheduled, that can be claimed, or whose lease expired', async () => {
    await add(
      db,
      `(event_type, payload, ordering_key, available_at) values
      ('a', '{}', 'later', now() + interval '1 hour'), ('a', '{}', 'later', now()),
      ('a', '{}', 'now', now()), ('a', '{}', 'now', now())`,
    )
    await makeEvents(db, 1, { status: 'CLAIMED', key: "'held'" })
    await makeEvents(db, 1, { key: "'held'" })
    await db.query({
      text: `update leasehold.outbox set locked_until = now() - interval '1 s' where status = 'CLAIMED'`,
    })
    const texts = await Promise.all(
      ['2', '4', '6'].map(async (id) => (await explainEvent(db, id)).reasons[0]?.text),
    )
    expect(texts[0]).toMatch(
      /event 1 of its ordering key "later", which is not due until .*Z \(in 60 min\)\.$/,
    )
    expect(texts[1]).toMatch(/event 3 of its ordering key "now", which can be claimed now\.$/)
    expect(texts[2]).toMatch(
      /event 5 of its ordering key "held", which the worker process test held until its lease expired at .*Z \(1 s ago\)\.$/,
    )
  })
})

it('an event is found by its event id, in every bucket, and each statement names one bucket', async () => {
  await withBuckets(db, 5)
  await makeEvents(db, 20, { key: "'key ' || n" })
  const { events } = await listEvents(db)
  const { recording: recordingDb, statements } = record(db)
  for (const { id, eventId } of events.slice(0, 7)) {
    expect(await explainEvent(recordingDb, eventId)).toMatchObject({ id, reasons: [{ code: 'noWorker' }] })
  }
  const onOutbox = statements.filter((text) => /from leasehold\.outbox/.test(text))
  expect(onOutbox.length).toBeGreaterThan(14)
  expect(onOutbox.filter((text) => !/bucket = \$\d+::smallint/.test(text))).toEqual([])
  await db.query({ text: 'truncate leasehold.outbox' })
})

it.each(['4711', '0190b3a0-0000-7000-8000-000000000001'])('EVENT_NOT_FOUND: %s', async (id) => {
  await expect(explainEvent(db, id)).rejects.toMatchObject({ code: 'EVENT_NOT_FOUND' })
})

it('an id that no event can have is refused', async () => {
  await expect(explainEvent(db, 'x')).rejects.toMatchObject({ code: 'REQUEST_INVALID' })
})

expectAllStaged('outbox')
