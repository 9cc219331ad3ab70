/** Statements are prepared on a connection of the user's only where that cannot end the user's transaction. */
import knexOf from 'knex'
import { Client, Pool } from 'pg'
import postgres from 'postgres'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { usePooler } from '../../test/support/pgbouncer.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { createOutbox, enqueue } from '../outbox/enqueue/enqueue.ts'
import { openDatabase } from '../postgres/database.ts'
import { nameOf } from './naming.ts'

useQuietProcess()
const { url } = useDatabase()
const poolers = { transaction: usePooler(url, 'transaction'), session: usePooler(url, 'session') }
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox' })
})

const EVENT = { type: 'a', payload: 1 }
const NAMES = "select name from pg_prepared_statements where name like 'leasehold%' order by prepare_time"

async function connected(connectionString = url): Promise<Client> {
  const client = new Client({ connectionString })
  await client.connect()
  onTestFinished(async () => client.end())
  return client
}

async function names(client: Client): Promise<string[]> {
  return (await client.query<{ name: string }>(NAMES)).rows.map(({ name }) => name)
}

async function count(): Promise<unknown> {
  const { rows } = await db.query({ text: 'select count(*)::int as count from leasehold.outbox' })
  return rows[0]?.['count']
}

describe('on a client of pg without a pooler', () => {
  it('the statement is prepared from the second event on', async () => {
    const client = await connected()
    await enqueue(client, EVENT)
    expect(await names(client)).toEqual([])
    await enqueue(client, EVENT)
    await enqueue(client, EVENT)
    expect(await names(client)).toHaveLength(1)
    expect(await count()).toBe(3)
  })

  it.each(['discard all', 'deallocate all', 'deallocate all; select 1'])(
    'the statement is prepared again after %s, and the transaction goes on',
    async (forget) => {
      const client = await connected()
      for (let n = 0; n < 2; n += 1) await enqueue(client, EVENT)
      await client.query(forget)
      await client.query('begin')
      await enqueue(client, EVENT)
      await enqueue(client, EVENT)
      await client.query('commit')
      expect(await names(client)).toHaveLength(1)
      expect(await count()).toBe(4)
    },
  )

  it('after a statement that failed, the next transaction writes its events', async () => {
    const client = await connected()
    await enqueue(client, EVENT)
    await client.query('begin')
    await expect(client.query('select 1 / 0')).rejects.toThrow('division by zero')
    // It would be prepared now, in a transaction that has failed.
    await expect(enqueue(client, EVENT)).rejects.toThrow('current transaction is aborted')
    await client.query('rollback')
    await client.query('begin')
    await enqueue(client, EVENT)
    await client.query('commit')
    expect(await count()).toBe(2)
  })

  it('outboxes of two schemas share a connection, by statements of different names', async () => {
    const [one, other] = ['select 1', 'select 2'].map((text) => nameOf('enqueue', text))
    expect(one).not.toBe(other)
    // pg would cut a longer one.
    expect(one?.length).toBeLessThan(56)
  })

  it('nothing is prepared with prepare: false', async () => {
    const client = await connected()
    const outbox = createOutbox({ prepare: false })
    for (let n = 0; n < 3; n += 1) await outbox.enqueue(client, EVENT)
    expect(await names(client)).toEqual([])
  })
})

describe.each(['transaction', 'session'] as const)('through PgBouncer in %s mode', (mode) => {
  it('nothing is prepared, and clients that share a session write all their events', async () => {
    const clients = await Promise.all(
      Array.from({ length: 12 }, async () => connected(poolers[mode].urlOf(url))),
    )
    await Promise.all(
      clients.map(async (client) => {
        for (let n = 0; n < 10; n += 1) {
          await client.query('begin')
          await enqueue(client, EVENT)
          await client.query('commit')
        }
      }),
    )
    expect(await count()).toBe(120)
    for (const client of clients) expect(await names(client)).toEqual([])
  })
})

it('with postgres.js, the statement is prepared where the connection prepares the statements of its user', async () => {
  for (const [prepare, prepared] of [
    [true, 1],
    [false, 0],
  ] as const) {
    const sql = postgres(url, { max: 1, prepare })
    await sql.begin(async (tx) => {
      for (let n = 0; n < 3; n += 1) await enqueue(tx, EVENT)
    })
    const statements = await sql.unsafe(
      "select from pg_prepared_statements where statement like '%leasehold:enqueue%' and statement not like '%pg_prepared%'",
    )
    expect(statements).toHaveLength(prepared)
    await sql.end()
  }
})

describe('prepare: true', () => {
  const outbox = createOutbox({ prepare: true })

  it('names the statement on a pool of pg', async () => {
    const pool = new Pool({ connectionString: url, max: 1 })
    await outbox.enqueue(pool, EVENT)
    expect((await pool.query(NAMES)).rows).toHaveLength(1)
    await pool.end()
  })

  it('names the statement with Knex', async () => {
    const knex = knexOf({ client: 'pg', connection: url, pool: { min: 0, max: 1 } })
    await knex.transaction(async (trx) => {
      await outbox.enqueue(trx, EVENT)
      await outbox.enqueue(trx, EVENT)
      const answer: { rows: unknown[] } = await trx.raw(NAMES)
      expect(answer.rows).toHaveLength(1)
    })
    await knex.destroy()
    expect(await count()).toBe(2)
  })

  it('names the statement on a Database', async () => {
    await db.transaction(async (tx) => {
      await outbox.enqueue(tx, EVENT)
      expect((await tx.query({ text: NAMES })).rows).toHaveLength(1)
    })
  })

  it('sends an unnamed statement to a query() that may not know names', async () => {
    const client = await connected()
    await outbox.enqueue(
      { query: async (text: string, values: unknown[]) => client.query(text, values) },
      EVENT,
    )
    expect(await names(client)).toEqual([])
  })

  it('is refused if it is neither true nor false', () => {
    // What the compiler refuses, as JavaScript would pass it.
    expect(() => createOutbox({ prepare: 'yes' as unknown as boolean })).toThrow(
      /prepare is 'yes', but must be/,
    )
  })
})
