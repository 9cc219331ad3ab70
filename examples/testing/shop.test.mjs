import assert from 'node:assert/strict'
import { after, before, beforeEach, test } from 'node:test'
import { outboxTable } from 'leasehold/outbox'
import { drain, expireLeases, holdLease, outboxEvents, testDatabase } from 'leasehold/testing'
import { createTables, pay, receipts, refunding, refunds } from './shop.mjs'

let db
before(async () => {
  db = await testDatabase({ prepare: createTables })
})
beforeEach(async () => db.reset())
after(async () => db.close())

/** Fails as often as it is told to. */
function testMailer(failures = 0) {
  const sent = []
  let remaining = failures
  return {
    sent,
    async send(mail) {
      if (remaining > 0) {
        remaining -= 1
        throw new Error('the mail server is full')
      }
      sent.push(mail)
    },
  }
}

test('an order that was paid gets a receipt', async () => {
  const mailer = testMailer()
  await db.transaction(async (tx) => pay(tx, 'order-1', 500))
  const { settled, unfinished } = await drain(db, { workers: [receipts(mailer)] })
  assert.deepEqual([settled, unfinished], [1, 0])
  assert.deepEqual(mailer.sent, ['receipt for order-1'])
})

test('a payment that is rolled back writes no event', async () => {
  const payment = db.transaction(async (tx) => {
    await pay(tx, 'order-1', 500)
    throw new Error('card refused')
  })
  await assert.rejects(payment, /card refused/)
  assert.deepEqual(await outboxEvents(db), [])
})

test('a receipt is sent when the mail server has room again', async () => {
  const mailer = testMailer(2)
  await db.transaction(async (tx) => pay(tx, 'order-1', 500))
  const first = await drain(db, { workers: [receipts(mailer)] })
  assert.equal(first.failures[0].error.message, 'the mail server is full')
  assert.equal(first.unfinished, 1)

  const { failed, settled } = await drain(db, { workers: [receipts(mailer)], retries: 'now' })
  assert.deepEqual([failed, settled], [1, 1])
  assert.deepEqual(mailer.sent, ['receipt for order-1'])
})

test('a receipt is sent although the first worker has died', async () => {
  const mailer = testMailer()
  await db.transaction(async (tx) => pay(tx, 'order-1', 500))
  const [event] = await outboxEvents(db)
  await holdLease(db, { table: outboxTable(), id: event.id })
  await expireLeases(db)
  await drain(db, { workers: [receipts(mailer)] })
  assert.deepEqual(mailer.sent, ['receipt for order-1'])
})

test('a worker that was paused for too long books no refund', async () => {
  await db.query({ text: `insert into orders (id, paid) values ('order-1', 500)` })
  const { rows } = await db.query({ text: `insert into refunds (order_id) values ('order-1') returning id` })
  const bank = {
    async refund() {
      // While the worker waits for the bank, its lease ends, and another worker claims the row.
      await holdLease(db, { table: refunds, id: rows[0].id })
      return 500
    },
  }
  await drain(db, { workers: [refunding(db, bank)] })
  const { rows: orders } = await db.query({ text: 'select refunded from orders' })
  assert.deepEqual(orders, [{ refunded: null }])
})
