import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { afterAll, expect, it } from 'vitest'

import { useNats } from '../../../test/support/brokers/broker.ts'
import { lost, relayThroughRestart } from '../../../test/support/brokers/restart.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useRelays } from '../../../test/support/running-relay.ts'
import { openDatabase } from '../../postgres/database.ts'
import { natsPublisher } from './nats.ts'

const nats = useNats()
const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
afterAll(async () => db.close())

it('LIFE-18: 20,000 events reach JetStream while it is restarted, each stored once', async () => {
  const connection = await connect({ servers: nats.url, maxReconnectAttempts: -1, reconnectTimeWait: 50 })
  const { streams, consumers } = await jetstreamManager(connection, { checkAPI: false })
  await streams.add({ name: 'EVENTS', subjects: ['events.>'] })
  const publisher = natsPublisher({ connect: { servers: nats.url }, prefix: 'events.' })
  const written = await relayThroughRestart(db, startRelay, publisher, nats)

  const { state } = await streams.info('EVENTS')
  // An ordered consumer, which is the default, asks again for ever what is not answered; this one fails then.
  const { name } = await consumers.add('EVENTS', { name: 'reader', ack_policy: AckPolicy.None })
  const consumer = await jetstream(connection, { checkAPI: false }).consumers.get('EVENTS', name)
  const arrived: string[] = []
  // A fetch can end before it has all that it asks for.
  for (let fetches = 0; fetches < 20 && arrived.length < state.messages; fetches += 1) {
    for await (const message of await consumer.fetch({ max_messages: 10_000, expires: 5_000 })) {
      arrived.push(message.headers?.get('leasehold-event-id') ?? '')
    }
  }
  await connection.close()
  expect(lost(written, arrived)).toEqual([])
  expect(arrived).toHaveLength(written.length)
})
