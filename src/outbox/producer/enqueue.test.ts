import { randomUUID } from 'node:crypto'
import { Client } from 'pg'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { blocked } from '../../../test/support/outbox-waiting.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase } from '../../postgres/database.ts'
import { newEventIds } from '../../producer/event-ids.ts'
import type { NewEvent } from '../event.ts'
import { enqueue } from './outbox.ts'

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
  readonly behind: boolean
}

async function rows(): Promise<Row[]> {
  const text = 'select id, event_id, event_type, ordering_key, behind from leasehold.outbox order by id'
  return (await db.query<Row>({ text })).rows
}

/** `type` or `type behind`, in the order of publication. */
async function line(): Promise<string[]> {
  return (await rows()).map(({ event_type, behind }) => (behind ? `${event_type} behind` : event_type))
}

function event(type: string, orderingKey?: string, eventId?: string): NewEvent {
  return { type, payload: type, orderingKey, eventId }
}

describe('event ids', () => {
  it('are made up as uuids of version 7, which sort as the events were given', async () => {
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

  it('begin with the time, and go on past 4,096 of a millisecond', () => {
    const next = newEventIds(() => 0x0123_4567_89ab)
    const ids = Array.from({ length: 4_098 }, next)
    expect(ids[0]).toMatch(/^01234567-89ab-7000-/)
    expect(ids[4_095]).toMatch(/^01234567-89ab-7fff-/)
    expect(ids[4_097]).toMatch(/^01234567-89ac-7001-/)
  })

  it('that were written before write nothing, and the row that is there is reported', async () => {
    const eventId = randomUUID()
    const first = await enqueue(db, event('first', undefined, eventId))
    const second = await enqueue(db, event('second', undefined, eventId.toUpperCase()))
    expect(first.written).toBe(true)
    expect(second).toEqual({ ...first, written: false })
    expect(await line()).toEqual(['first'])
  })

  it('that stand twice in one call are one event: the first', async () => {
    const eventId = randomUUID()
    const enqueued = await enqueue(db, [
      event('a', undefined, eventId),
      event('b'),
      event('c', undefined, eventId.toUpperCase()),
    ])
    expect(enqueued.map(({ written }) => written)).toEqual([true, true, false])
    expect(enqueued[2]).toEqual({ ...enqueued[0], written: false })
    expect(await line()).toEqual(['a', 'b'])
  })
})

describe('LIFE-13: of the events of one key in one call', () => {
  it('the first can be claimed and the others wait behind it, in the order given', async () => {
    await enqueue(db, [
      event('a1', 'a'),
      event('a2', 'a'),
      event('x'),
      event('b1', 'b'),
      event('a3', 'a'),
      event('b2', 'b'),
      event('y'),
    ])
    expect((await line()).filter((type) => type.startsWith('a'))).toEqual(['a1', 'a2 behind', 'a3 behind'])
    expect((await line()).filter((type) => type.startsWith('b'))).toEqual(['b1', 'b2 behind'])
    expect((await line()).filter((type) => /^[xy]/.test(type))).toEqual(['x', 'y'])
  })

  it('what was there before is not what the others wait for', async () => {
    const known = randomUUID()
    await enqueue(db, event('a1', 'a', known))
    const enqueued = await enqueue(db, [
      event('a1 again', 'a', known),
      event('a2', 'a', randomUUID()),
      event('a3', 'a', randomUUID()),
    ])
    expect(enqueued.map(({ written }) => written)).toEqual([false, true, true])
    expect(await line()).toEqual(['a1', 'a2', 'a3 behind'])
  })

  it('a follower that was there before takes nothing from the others', async () => {
    const known = randomUUID()
    await enqueue(db, event('a2', 'a', known))
    await enqueue(db, [event('a1', 'a'), event('a2 again', 'a', known), event('a3', 'a')])
    expect(await line()).toEqual(['a2', 'a1', 'a3 behind'])
  })

  it('none waits for a call that came before', async () => {
    await enqueue(db, [event('a1', 'a'), event('a2', 'a')])
    await enqueue(db, [event('a3', 'a'), event('a4', 'a')])
    expect(await line()).toEqual(['a1', 'a2 behind', 'a3', 'a4 behind'])
  })

  it('10,000 over 100 keys keep the order of each key', async () => {
    const events = Array.from({ length: 10_000 }, (_, i) => event(`${i}`, `key ${(i * 7) % 100}`))
    const enqueued = await enqueue(db, events)
    expect(enqueued.every(({ written }) => written)).toBe(true)
    const written = await rows()
    expect(written.filter(({ behind }) => !behind)).toHaveLength(100)
    const lines = new Map<string | null, Row[]>()
    for (const row of written) lines.set(row.ordering_key, [...(lines.get(row.ordering_key) ?? []), row])
    for (const own of lines.values()) {
      const numbers = own.map(({ event_type }) => Number(event_type))
      expect(numbers.toSorted((a, b) => a - b)).toEqual(numbers)
      expect(own.map(({ behind }) => behind)).toEqual(own.map((_, i) => i > 0))
    }
  })
})

describe('an event that another transaction writes at the same moment', () => {
  /** Enqueues two events of a key while somebody else is writing the first of them, and lets that end as told. */
  async function raced(end: 'commit' | 'rollback', otherKey: string) {
    const eventId = randomUUID()
    const [other, own] = [new Client({ connectionString: url }), new Client({ connectionString: url })]
    await Promise.all([other.connect(), own.connect()])
    try {
      await other.query('begin')
      await enqueue(other, event('a1 of the other', otherKey, eventId))
      const { rows: pids } = await own.query<{ pid: number }>('select pg_backend_pid() as pid')
      const outcome = enqueue(own, [event('a1', 'a', eventId), event('a2', 'a'), event('a3', 'a')])
      await blocked(db, pids[0]?.pid ?? 0)
      await other.query(end)
      return await outcome
    } finally {
      await Promise.all([other.end(), own.end()])
    }
  }

  it('is theirs once they commit, and nothing waits behind it', async () => {
    const enqueued = await raced('commit', 'a')
    const written = await rows()
    expect(enqueued.map((one) => one.written)).toEqual([false, true, true])
    expect(enqueued.map(({ id }) => id)).toEqual(written.map(({ id }) => id))
    expect(await line()).toEqual(['a1 of the other', 'a2', 'a3'])
  })

  it('strands nobody when it was of another key', async () => {
    await raced('commit', 'somewhere else')
    expect(await line()).toEqual(['a1 of the other', 'a2', 'a3'])
  })

  it('is ours when they roll back, and the others wait behind it', async () => {
    const enqueued = await raced('rollback', 'a')
    expect(enqueued.map((one) => one.written)).toEqual([true, true, true])
    expect(await line()).toEqual(['a1', 'a2 behind', 'a3 behind'])
  })
})

it('writes 10,000 events in one statement', async () => {
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

it('no events are no statement', async () => {
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

it('an event that vanished between two looks is an error, not an event without an id', async () => {
  const eventId = randomUUID()
  const answers = [[], [{ event: eventId, id: null }]]
  const forgetful = { query: async (_text: string, _values: unknown[]) => answers.shift() ?? [] }
  await expect(enqueue(forgetful, event('a', undefined, eventId))).rejects.toMatchObject({
    code: 'WRITER_INVALID',
    message: expect.stringContaining(eventId),
  })
})

it('events larger together than one statement can be are refused before anything is sent', async () => {
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
