import { createClient } from 'redis'
import { afterAll, expect, it } from 'vitest'

import { useRedis } from '../../../test/support/brokers/broker.ts'
import { lost, relayThroughRestart } from '../../../test/support/brokers/restart.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useRelays } from '../../../test/support/running-relay.ts'
import { openDatabase } from '../../postgres/database.ts'
import { redisPublisher } from './redis.ts'

const redis = useRedis()
const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
afterAll(async () => db.close())

it('LIFE-18: 20,000 events reach a Redis stream while Redis is restarted', async () => {
  const publisher = redisPublisher({ url: redis.url, stream: 'events' })
  const written = await relayThroughRestart(db, startRelay, publisher, redis)

  const client = createClient({ url: redis.url })
  await client.connect()
  const entries = (await client.xRange('events', '-', '+')) ?? []
  client.destroy()
  const arrived = entries.map(({ message }) => String(message['leasehold-event-id']))
  expect(lost(written, arrived)).toEqual([])
})
