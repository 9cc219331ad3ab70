import { connect } from 'amqplib'
import { afterAll, expect, it } from 'vitest'

import { useRabbit } from '../../../test/support/brokers/broker.ts'
import { lost, relayThroughRestart } from '../../../test/support/brokers/restart.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useRelays } from '../../../test/support/running-relay.ts'
import { openDatabase } from '../../postgres/database.ts'
import { rabbitPublisher } from './rabbitmq.ts'

const rabbit = useRabbit()
const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
afterAll(async () => db.close())

it('LIFE-18: 20,000 events reach RabbitMQ while it is restarted', async () => {
  const before = await connect(rabbit.url)
  const setUp = await before.createChannel()
  await setUp.assertExchange('events', 'topic', { durable: true })
  await setUp.assertQueue('orders', { durable: true })
  await setUp.bindQueue('orders', 'events', 'order.#')
  await before.close()
  const publisher = rabbitPublisher({ url: rabbit.url, exchange: 'events' })
  const written = await relayThroughRestart(db, startRelay, publisher, rabbit)

  const after = await connect(rabbit.url)
  const channel = await after.createChannel()
  const { messageCount } = await channel.checkQueue('orders')
  const arrived: string[] = []
  await new Promise<void>((resolve, reject) => {
    const take = (id: string): void => {
      arrived.push(id)
      if (arrived.length === messageCount) resolve()
    }
    channel
      .consume('orders', (message) => take(String(message?.properties.messageId)), { noAck: true })
      .catch(reject)
  })
  await after.close()
  expect(lost(written, arrived)).toEqual([])
})
