import { randomUUID } from 'node:crypto'
import { Client } from 'pg'
import { useDatabase, blocked } from '../../../test/support/database.ts'
import { afterAll, beforeEach, describe, expect, expectTypeOf, it } from 'vitest'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openLeaseStore } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import type { NewEvent } from '../event.ts'
import { type OutboxRow, outboxTable } from '../table.ts'
import { enqueue, type Enqueued } from './enqueue.ts'
import { ORDERING_KEY_LOCKS } from './sql.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox restart identity' })
})
afterAll(async () => db.close())

interface Row {
  readonly id: string
  readonly event_id: string
  readonly event_type: string
  readonly ordering_key: string | null
}

async function rows(): Promise<Row[]> {
  const text = 'select id, event_id, event_type, ordering_key from leasehold.outbox order by id'
  return (await db.query<Row>({ text })).rows
}

/** Their types, in the order of publication. */
async function types(): Promise<string[]> {
  return (await rows()).map((row) => row.event_type)
}

function event(type: string, orderingKey?: string, eventId?: string): NewEvent {
  return { type, payload: type, orderingKey, eventId }
}

describe('the result of enqueue', () => {
  const eventId = randomUUID()
  const written = { id: '1', eventId, duplicate: false }

  it('an event id that was generated is a duplicate as well when it is given', async () => {
    const [first, second] = await enqueue(db, [event('a'), event('a')])
    expect(await enqueue(db, event('a', undefined, second?.eventId))).toEqual({ ...second, duplicate: true })
    expect(first?.eventId).not.toBe(second?.eventId)
  })

  it('is one object for one event, with the same fields whether it was written or is a duplicate', async () => {
    const result = await enqueue(db, event('a', undefined, eventId))
    expectTypeOf(result).toEqualTypeOf<Enqueued>()
    expect(result).toEqual(written)
    expect(await enqueue(db, event('a', undefined, eventId))).toEqual({ ...written, duplicate: true })
  })

  it('is an array of the same objects for an array, in its order, also for an array of one', async () => {
    const result = await enqueue(db, [event('a', undefined, eventId)])
    expectTypeOf(result).toEqualTypeOf<readonly Enqueued[]>()
    expect(result).toEqual([written])
    const other = randomUUID()
    expect(await enqueue(db, [event('b', undefined, other), event('a', undefined, eventId)])).toEqual([
      { id: expect.any(String), eventId: other, duplicate: false },
      { ...written, duplicate: true },
    ])
  })
})

describe('event ids', () => {
  it('are generated as uuids of version 7, which sort in the order of the events', async () => {
    const enqueued = await enqueue(
      db,
      Array.from({ length: 5_000 }, (_, i) => event(`e${i}`)),
    )
    const ids = enqueued.map(({ eventId }) => eventId)
    expect(
      ids.every((id) => /^[\da-f]{8}-[\da-f]{4}-7[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/.test(id)),
    ).toBe(true)
    expect(ids.toSorted()).toEqual(ids)
    expect(new Set(ids).size).toBe(5_000)
    expect((await rows()).map((row) => row.event_id)).toEqual(ids)
  })

  it('begin with the time, and continue past 4,096 ids of one millisecond', () => {
    const next = newEventIds(() => 0x0123_4567_89ab)
    const ids = Array.from({ length: 4_098 }, next)
    expect(ids[0]).toMatch(/^01234567-89ab-7000-/)
    expect(ids[4_095]).toMatch(/^01234567-89ab-7fff-/)
    expect(ids[4_097]).toMatch(/^01234567-89ac-7001-/)
  })

  it('that exist already write nothing, and the existing row is reported', async () => {
    const eventId = randomUUID()
    const first = await enqueue(db, event('first', undefined, eventId))
    const second = await enqueue(db, event('second', undefined, eventId.toUpperCase()))
    expect(first.duplicate).toBe(false)
    expect(second).toEqual({ ...first, duplicate: true })
    expect(await types()).toEqual(['first'])
  })

  it('that occur twice in one call are one event: the first', async () => {
    const eventId = randomUUID()
    const enqueued = await enqueue(db, [
      event('a', undefined, eventId),
      event('b'),
      event('c', undefined, eventId.toUpperCase()),
    ])
    expect(enqueued.map(({ duplicate }) => duplicate)).toEqual([false, false, true])
    expect(enqueued[2]).toEqual({ ...enqueued[0], duplicate: true })
    expect(await types()).toEqual(['a', 'b'])
  })
})

describe('LIFE-13: the order of a key', () => {
  it('is the order in which events are given, in one call and in the next', async () => {
    await enqueue(db, [event('a1', 'a'), event('x'), event('b1', 'b'), event('a2', 'a'), event('y')])
    await enqueue(db, [event('b2', 'b'), event('a3', 'a')])
    expect(await types()).toEqual(['a1', 'x', 'b1', 'a2', 'y', 'b2', 'a3'])
  })

  it('leaves out events that exist already', async () => {
    const known = randomUUID()
    await enqueue(db, event('a2', 'a', known))
    const enqueued = await enqueue(db, [
      event('a1', 'a'),
      event('a2 once more', 'a', known),
      event('a3', 'a'),
    ])
    expect(enqueued.map(({ duplicate }) => duplicate)).toEqual([false, true, false])
    expect(await types()).toEqual(['a2', 'a1', 'a3'])
  })

  it('holds for 10,000 events of 100 keys in one call', async () => {
    const events = Array.from({ length: 10_000 }, (_, i) => event(`${i}`, `key ${(i * 7) % 100}`))
    const enqueued = await enqueue(db, events)
    expect(enqueued.some(({ duplicate }) => duplicate)).toBe(false)
    expect(await types()).toEqual(events.map(({ type }) => type))
  })

  it('LIFE-18: holds when several producers write concurrently, some events all of them: each event is published once', async () => {
    const [producers, calls, perCall] = [4, 25, 12]
    const sharedIds = Array.from({ length: calls }, () => randomUUID())
    const store = await openLeaseStore<OutboxRow, 'done' | 'retry' | 'dead'>(db, outboxTable(), {
      owner: 'relay',
    })
    const published: string[] = []
    const publish = async (): Promise<number> => {
      const { claimed } = await store.claim({ limit: 50, leaseMs: 60_000 })
      published.push(...claimed.map(({ row }) => row.id))
      await store.settle(
        'done',
        claimed.map(({ lease }) => lease),
      )
      return claimed.length
    }

    /** The ids that each call wrote, by key; each call has three keys of its own. */
    async function produce(producer: number): Promise<string[][]> {
      const written: string[][] = []
      for (let call = 0; call < calls; call++) {
        const events = Array.from({ length: perCall }, (_, i) =>
          event(
            'step',
            `${producer} ${call} ${i % 3}`,
            i === (producer * 5 + call) % perCall ? sharedIds[call] : undefined,
          ),
        )
        const enqueued = await enqueue(db, events)
        for (let key = 0; key < 3; key++)
          written.push(enqueued.flatMap(({ id, duplicate }, i) => (!duplicate && i % 3 === key ? [id] : [])))
      }
      return written
    }

    const producing = { over: false }
    const produced = Promise.all(Array.from({ length: producers }, async (_, i) => produce(i))).finally(
      () => {
        producing.over = true
      },
    )
    while (!producing.over) await publish()
    const ofKeys = (await produced).flat()
    for (let more = 1; more > 0;) more = await publish()

    expect(published).toHaveLength(producers * calls * perCall - (producers - 1) * calls)
    expect(new Set(published).size).toBe(published.length)
    const position = new Map(published.map((id, i) => [id, i]))
    for (const ids of ofKeys) {
      const positions = ids.map((id) => position.get(id) ?? Number.NaN)
      expect(positions).toEqual(positions.toSorted((a, b) => a - b))
    }
  })
})

describe('serialize', () => {
  async function twoClients<Result>(
    use: (first: Client, second: Client, pidOfSecond: number) => Promise<Result>,
  ): Promise<Result> {
    const [first, second] = [new Client({ connectionString: url }), new Client({ connectionString: url })]
    await Promise.all([first.connect(), second.connect()])
    try {
      await Promise.all([first.query('begin'), second.query('begin')])
      const { rows: pids } = await second.query<{ pid: number }>('select pg_backend_pid() as pid')
      return await use(first, second, pids[0]?.pid ?? 0)
    } finally {
      await Promise.all([first.end(), second.end()])
    }
  }

  it('LIFE-13: a second transaction waits for the first, so that the order of a key is its order of commit', async () => {
    await twoClients(async (first, second, pid) => {
      await enqueue(first, event('first', 'k'), { serialize: true })
      const other = enqueue(second, [event('second', 'k'), event('other', 'another key')], {
        serialize: true,
      })
      await blocked(db, pid)
      await enqueue(first, event('first as well', 'k'), { serialize: true })
      await first.query('commit')
      await other
      await second.query('commit')
    })
    expect(await types()).toEqual(['first', 'first as well', 'second', 'other'])
  })

  it('other keys, events without a key and producers that do not serialize do not wait', async () => {
    await twoClients(async (first, second) => {
      await enqueue(first, [event('first', 'k'), event('unkeyed')], { serialize: true })
      await enqueue(second, [event('second', 'l'), event('unkeyed')], { serialize: true })
      await enqueue(second, event('unserialized', 'k'))
      await second.query('commit')
      await first.query('commit')
    })
    expect(await rows()).toHaveLength(5)
  })

  it('the lock of an application that happens to have the number of a key does not delay it', async () => {
    await twoClients(async (first, second) => {
      await first.query("select pg_advisory_xact_lock(hashtextextended('leasehold.outbox:k', 0))")
      await second.query("set local lock_timeout to '1s'")
      await enqueue(second, event('first', 'k'), { serialize: true })
      const { rows: locks } = await second.query(
        `select classid::bigint::int as class from pg_locks where locktype = 'advisory' and objsubid = 2 and pid = pg_backend_pid()`,
      )
      expect(locks).toEqual([{ class: ORDERING_KEY_LOCKS }])
      await second.query('commit')
    })
  })

  it('a writer that sees the number of buckets raised takes the same lock, by the same number', async () => {
    const { rows: functions } = await db.query<{ source: string }>({
      text: "select prosrc as source from pg_proc where prosrc ~ 'advisory_xact_lock' and proname ~ '^place_'",
    })
    expect(functions).toHaveLength(2)
    for (const { source } of functions)
      expect(source).toContain(`pg_advisory_xact_lock(${ORDERING_KEY_LOCKS}, hashtext(`)
  })

  it('is refused outside a transaction', async () => {
    await expect(enqueue(db, event('a', 'k'), { serialize: true })).rejects.toMatchObject({
      code: 'WRITER_INVALID',
      message: expect.stringContaining('enqueue with serialize'),
    })
    expect(await rows()).toEqual([])
  })
})

describe('an event that a concurrent transaction writes as well', () => {
  /** Enqueues two events of a key while somebody else is writing the first of them, and lets that end as told. */
  async function raced(end: 'commit' | 'rollback') {
    const eventId = randomUUID()
    const [other, own] = [new Client({ connectionString: url }), new Client({ connectionString: url })]
    await Promise.all([other.connect(), own.connect()])
    try {
      await other.query('begin')
      await enqueue(other, event('a1 of the other', 'a', eventId))
      const { rows: pids } = await own.query<{ pid: number }>('select pg_backend_pid() as pid')
      const outcome = enqueue(own, [event('a1', 'a', eventId), event('a2', 'a'), event('a3', 'a')])
      await blocked(db, pids[0]?.pid ?? 0)
      await other.query(end)
      return await outcome
    } finally {
      await Promise.all([other.end(), own.end()])
    }
  }

  it('is a duplicate when the other transaction commits', async () => {
    const enqueued = await raced('commit')
    const written = await rows()
    expect(enqueued.map((one) => one.duplicate)).toEqual([true, false, false])
    expect(enqueued.map(({ id }) => id)).toEqual(written.map(({ id }) => id))
    expect(await types()).toEqual(['a1 of the other', 'a2', 'a3'])
  })

  it('is written when the other transaction rolls back', async () => {
    const enqueued = await raced('rollback')
    expect(enqueued.map((one) => one.duplicate)).toEqual([false, false, false])
    expect(await types()).toEqual(['a1', 'a2', 'a3'])
  })
})

it('10,000 events are written in one statement', async () => {
  const sent: string[] = []
  const counting = {
    query: async (text: string, values: unknown[]) => {
      sent.push(text)
      return db.query({ text, values })
    },
  }
  const enqueued = await enqueue(
    counting,
    Array.from({ length: 10_000 }, (_, i) => ({ type: 'bulk', payload: { i, text: 'x'.repeat(200) } })),
  )
  expect(sent).toHaveLength(1)
  expect(enqueued).toHaveLength(10_000)
  expect(await rows()).toHaveLength(10_000)
})

it('an empty array sends no statement', async () => {
  const untouched = { query: async (_text: string, _values: unknown[]) => Promise.reject(new Error('asked')) }
  expect(await enqueue(untouched, [])).toEqual([])
})

it('JSON null is a payload like any other', async () => {
  await enqueue(db, [
    { type: 'nothing', payload: null },
    { type: 'a text', payload: 'null' },
    { type: 'a list', payload: [] },
  ])
  const { rows: found } = await db.query({ text: 'select payload::text from leasehold.outbox order by id' })
  expect(found).toEqual([{ payload: 'null' }, { payload: '"null"' }, { payload: '[]' }])
})

it('an event that was deleted between two statements is an error, not an event without an id', async () => {
  const eventId = randomUUID()
  const answers = [[], [{ event: eventId, id: null }]]
  const forgetful = { query: async (_text: string, _values: unknown[]) => answers.shift() ?? [] }
  await expect(enqueue(forgetful, event('a', undefined, eventId))).rejects.toMatchObject({
    code: 'WRITER_INVALID',
    message: expect.stringContaining(eventId),
  })
})

it('events that are too large together for one statement are refused before anything is sent', async () => {
  const untouched = { query: async (_text: string, _values: unknown[]) => Promise.reject(new Error('asked')) }
  const payload = 'x'.repeat(262_000)
  const outcome = enqueue(
    untouched,
    Array.from({ length: 1_050 }, () => ({ type: 'large', payload })),
  )
  await expect(outcome).rejects.toMatchObject({
    code: 'EVENT_TOO_LARGE',
    message: expect.stringMatching(/1050 events.*several calls/),
  })
})
