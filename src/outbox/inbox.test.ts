import { randomUUID } from 'node:crypto'
import { Client, Pool } from 'pg'
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { useDatabase, blocked } from '../../test/support/database.ts'
import { openProducers } from '../../test/support/outbox-producers.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase } from '../postgres/database.ts'
import { migrate } from '../postgres/migrate.ts'
import { forgetInbox, once } from './inbox.ts'

useQuietProcess()
const { url } = useDatabase()
const producers = openProducers(url)
const db = openDatabase({ url })

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.inbox' })
})
afterAll(async () => {
  await Promise.all([db.close(), ...producers.map(async (producer) => producer.close())])
})

async function remembered(): Promise<object[]> {
  return (await db.query({ text: 'select consumer, event_id from leasehold.inbox order by 1, 2' })).rows
}

describe.each(producers)('$name', ({ transaction, root }) => {
  it('an effect happens once, together with the transaction it is part of', async () => {
    const eventId = randomUUID()
    const effect = vi.fn<() => Promise<string>>(async () => 'done')
    await transaction(async (tx) => {
      expect(await once(tx, 'billing', eventId, effect)).toEqual({ ran: true, result: 'done' })
      expect(await once(tx, 'billing', eventId, effect)).toEqual({ ran: false, result: undefined })
    })
    await transaction(async (tx) => {
      expect(await once(tx, 'billing', eventId.toUpperCase(), effect)).toEqual({
        ran: false,
        result: undefined,
      })
    })
    expect(effect).toHaveBeenCalledTimes(1)
    expect(await remembered()).toEqual([{ consumer: 'billing', event_id: eventId }])
  })

  it('a transaction that rolls back has not processed the event', async () => {
    const eventId = randomUUID()
    const reason = new Error('no')
    const outcome = transaction(async (tx) => {
      await once(tx, 'billing', eventId, async () => Promise.reject(reason))
    })
    await expect(outcome).rejects.toBe(reason)
    expect(await remembered()).toEqual([])
  })

  it('once is refused outside a transaction', async () => {
    const effect = vi.fn<() => Promise<void>>(async () => undefined)
    await expect(once(root, 'billing', randomUUID(), effect)).rejects.toMatchObject({
      code: 'WRITER_INVALID',
      message: expect.stringMatching(/once\(\) was given .* not in a transaction\. Begin a transaction/),
    })
    expect(effect).not.toHaveBeenCalled()
    expect(await remembered()).toEqual([])
  })
})

it('each consumer processes an event once, independently of other consumers', async () => {
  const eventId = randomUUID()
  await db.transaction(async (tx) => {
    expect(await once(tx, 'billing', eventId, () => 1)).toEqual({ ran: true, result: 1 })
    expect(await once(tx, 'shipping', eventId, () => 2)).toEqual({ ran: true, result: 2 })
  })
  expect(await remembered()).toHaveLength(2)
})

it('an effect that failed is not remembered, also when its error was caught and the transaction committed', async () => {
  const eventId = randomUUID()
  await db.transaction(async (tx) => {
    const failing = once(tx, 'billing', eventId, () => {
      throw new Error('no')
    })
    await expect(failing).rejects.toThrow('no')
  })
  expect(await remembered()).toEqual([])
})

it('the caller gets the SQL error of an effect', async () => {
  const outcome = db.transaction(async (tx) =>
    once(tx, 'billing', randomUUID(), async () => tx.query({ text: 'select 1/0' })),
  )
  await expect(outcome).rejects.toMatchObject({ code: '22012' })
})

describe('two consumers that process the same event concurrently', () => {
  /** The second begins while the first is at work, and goes on once that has ended as told. */
  async function raced(end: 'commit' | 'rollback') {
    const eventId = randomUUID()
    const [first, second] = [new Client({ connectionString: url }), new Client({ connectionString: url })]
    await Promise.all([first.connect(), second.connect()])
    try {
      await Promise.all([first.query('begin'), second.query('begin')])
      await once(first, 'billing', eventId, () => 'first')
      const { rows } = await second.query<{ pid: number }>('select pg_backend_pid() as pid')
      const outcome = once(second, 'billing', eventId, () => 'second')
      await blocked(db, rows[0]?.pid ?? 0)
      await first.query(end)
      const result = await outcome
      await second.query('commit')
      return result
    } finally {
      await Promise.all([first.end(), second.end()])
    }
  }

  it('the second waits, and does not run when the first commits', async () => {
    expect(await raced('commit')).toEqual({ ran: false, result: undefined })
    expect(await remembered()).toHaveLength(1)
  })

  it('the second waits, and runs when the first rolls back', async () => {
    expect(await raced('rollback')).toEqual({ ran: true, result: 'second' })
    expect(await remembered()).toHaveLength(1)
  })
})

it.each([
  ['', randomUUID(), /consumer is ''/],
  ['a\0', randomUUID(), /consumer contains the character/],
  ['ü'.repeat(128), randomUUID(), /consumer has 256 bytes, but can have at most 255/],
  ['billing', 'order-1', /eventId is 'order-1', but must be a uuid/],
])('once(tx, %j, %j) is refused', async (consumer, eventId, message) => {
  const outcome = db.transaction(async (tx) => once(tx, consumer, eventId, () => 1))
  await expect(outcome).rejects.toMatchObject({
    code: 'SETTING_INVALID',
    message: expect.stringMatching(message),
  })
})

it('once remembers events in the given schema', async () => {
  await migrate(db, { schema: 'elsewhere' })
  const eventId = randomUUID()
  await db.transaction(async (tx) => once(tx, 'billing', eventId, () => 1, { schema: 'elsewhere' }))
  expect(await remembered()).toEqual([])
  expect(await forgetInbox(db, 0, { schema: 'elsewhere' })).toBe(1)
})

describe('forgetInbox', () => {
  /** 25 events that were processed an hour ago, and 5 just now. */
  beforeEach(async () => {
    await db.query({
      text: `insert into leasehold.inbox (consumer, event_id, processed_at)
        select 'billing', gen_random_uuid(), now() - case when i <= 25 then interval '1 hour' else interval '0' end
        from generate_series(1, 30) as i`,
    })
  })

  it('removes only old entries, in batches', async () => {
    const pool = new Pool({ connectionString: url })
    const sent: number[] = []
    const counting = {
      query: async (text: string, values: unknown[]) => {
        const result = await pool.query<{ forgotten: number }>(text, values)
        sent.push(result.rows[0]?.forgotten ?? 0)
        return result
      },
    }
    expect(await forgetInbox(counting, 1_800_000, { batch: 10 })).toBe(25)
    expect(sent).toEqual([10, 10, 5])
    expect(await remembered()).toHaveLength(5)
    await pool.end()
  })

  it('skips entries that another call is removing', async () => {
    const other = new Client({ connectionString: url })
    await other.connect()
    await other.query('begin')
    await other.query(`select from leasehold.inbox order by processed_at limit 7 for update`)
    expect(await forgetInbox(db, 1_800_000)).toBe(18)
    await other.query('rollback')
    await other.end()
    expect(await forgetInbox(db, 1_800_000)).toBe(7)
  })

  it('stops between two batches when its signal fires', async () => {
    const ending = new AbortController()
    const aborting = {
      query: async (text: string, values: unknown[]) => {
        const result = await db.query({ text, values })
        ending.abort()
        return result
      },
    }
    expect(await forgetInbox(aborting, 1_800_000, { batch: 10, signal: ending.signal })).toBe(10)
  })

  it.each([
    [Number.NaN, {}, /olderThanMs is NaN/],
    [-1, {}, /olderThanMs is -1/],
    [1, { batch: 0 }, /batch is 0/],
  ])('refuses %s with %j', async (olderThanMs, options, message) => {
    await expect(forgetInbox(db, olderThanMs, options)).rejects.toThrow(message)
  })
})
