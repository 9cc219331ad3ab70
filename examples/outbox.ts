// The outbox from end to end: orders and their events in one transaction, a relay, a consumer whose effect happens
// once, an event that fails and is tried again, and a replay. A test runs this file. By itself, with Node 22.18 or
// later: `node examples/outbox.ts`, on the database in DATABASE_URL, or on an embedded one in .leasehold/example.
// docs/guides/outbox.md shows what is between the marks.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { Events, migrate, openDatabase, retry, type Database } from 'leasehold'
import { once, replay } from 'leasehold/outbox'
import type { EventHandlers } from 'leasehold/publishers/handlers'
import { Pool, type PoolClient } from 'pg'
import { pay, ship, startRelay, type ShopEvents } from './orders.ts'

const SHOP = `create schema if not exists shop;
create table if not exists shop.orders (id uuid primary key, paid int, shipped boolean not null default false);
create table if not exists shop.ledger (order_id uuid not null, amount int not null)`

/** What reached the handlers, in this order. */
interface Arrival {
  readonly type: string
  readonly order: string
  readonly eventId: string
  readonly attempt: number
  readonly token: bigint
}

export interface Told {
  readonly arrivals: readonly Arrival[]
  readonly booked: number
}

/** Sells three things, tells of it, and checks that everything arrived as promised. */
export async function runShop(databaseUrl: string): Promise<Told> {
  const db = openDatabase({ url: databaseUrl })
  const pool = new Pool({ connectionString: databaseUrl, max: 4 })
  try {
    await migrate(db)
    await refuseForeignEvents(db)
    await db.query({ text: SHOP })
    return await sell(databaseUrl, db, pool)
  } finally {
    await pool.end()
    await db.close()
  }
}

async function sell(databaseUrl: string, db: Database, pool: Pool): Promise<Told> {
  const [first, busy, last] = [randomUUID(), randomUUID(), randomUUID()]
  const orders = [first, busy, last]
  for (const order of orders) {
    await inTransaction(pool, async (tx) => {
      await tx.query('insert into shop.orders (id) values ($1)', [order])
      await pay(tx, order, 100)
    })
    await inTransaction(pool, async (tx) => ship(tx, order))
  }
  // A transaction that fails takes its event with it.
  const cancelled = inTransaction(pool, async (tx) => {
    await pay(tx, first, 1_000_000)
    throw new Error('the card was refused')
  })
  await assert.rejects(cancelled, /the card was refused/)

  const arrivals: Arrival[] = []
  const events = new Events()
  let published = 0
  const untilPublished = async (count: number): Promise<unknown> =>
    events.next('settled', ({ outcome, ids }) => {
      if (outcome === 'done') published += ids.length
      return published === count
    })

  const allPublished = untilPublished(6)
  const relay = await startRelay(databaseUrl, consumers(pool, arrivals, busy), events)
  await allPublished

  // In order for each of them, also for the one that failed at first: its second event waited.
  for (const order of orders) {
    const types = arrivals.filter((arrival) => arrival.order === order).map(({ type }) => type)
    const paid = order === busy ? ['order.paid', 'order.paid'] : ['order.paid']
    assert.deepEqual(types, [...paid, 'order.shipped'])
  }

  // Published once more it has the same event id and a higher token, and the ledger knows it already.
  const before = arrivals.find(({ order, type }) => order === first && type === 'order.paid')
  assert.ok(before)
  const again = untilPublished(7)
  const reason = 'somebody thinks that it was lost'
  await replay(db, { ids: [before.eventId], principal: 'examples/outbox.ts', reason })
  await again
  const after = arrivals.at(-1)
  assert.equal(after?.eventId, before.eventId)
  assert.ok(after.token > before.token)

  assert.deepEqual(await relay.stop(), { clean: true })
  const booked = await sumOf(db, orders)
  assert.equal(booked, 300)
  return { arrivals, booked }
}

/** A ledger in the same database: it books each payment once, however often the event arrives. */
function consumers(pool: Pool, arrivals: Arrival[], busy: string): EventHandlers<ShopEvents> {
  return {
    'order.paid': async ({ type, eventId, payload, attempt, token }) => {
      const { order, total } = payload
      arrivals.push({ type, order, eventId, attempt, token })
      // What is thrown, or returned like this, is tried again; without a delay, by the schedule of the relay.
      if (order === busy && attempt === 1) return retry({ error: 'the ledger is busy', delayMs: 50 })
      // begin
      await inTransaction(pool, async (tx) =>
        once(tx, 'ledger', eventId, async () =>
          tx.query('insert into shop.ledger (order_id, amount) values ($1, $2)', [order, total]),
        ),
      )
      // end
      return undefined
    },
    'order.shipped': ({ type, eventId, payload: { order }, attempt, token }) => {
      arrivals.push({ type, order, eventId, attempt, token })
    },
  }
}

async function inTransaction(pool: Pool, work: (tx: PoolClient) => Promise<unknown>): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('begin')
    await work(client)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

async function sumOf(db: Database, orders: readonly string[]): Promise<number> {
  const { rows } = await db.query<{ sum: number }>({
    text: 'select sum(amount)::int as sum from shop.ledger where order_id = any ($1::uuid[])',
    values: [orders],
  })
  return rows[0]?.sum ?? 0
}

/** The handlers here know two types; events of yours would be dead, without anybody having seen them. */
async function refuseForeignEvents(db: Database): Promise<void> {
  const { rows } = await db.query<{ type: string }>({
    text: "select event_type as type from leasehold.outbox where event_type not in ('order.paid', 'order.shipped') limit 1",
  })
  const [foreign] = rows
  if (foreign === undefined) return
  throw new Error(`The outbox has events of type ${foreign.type}: give the example a database of its own.`)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { DATABASE_URL } = process.env
  const { startEmbedded } = await import('leasehold/embedded')
  const server = DATABASE_URL ? undefined : await startEmbedded({ directory: '.leasehold/example' })
  try {
    const { arrivals, booked } = await runShop(DATABASE_URL || (server?.url ?? ''))
    for (const { type, order, attempt, token } of arrivals) {
      process.stdout.write(`${type} of ${order}: attempt ${attempt}, token ${token}\n`)
    }
    process.stdout.write(`${arrivals.length} arrivals, and ${booked} in the ledger\n`)
  } finally {
    await server?.stop()
  }
}
