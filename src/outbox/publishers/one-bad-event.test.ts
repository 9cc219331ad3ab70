import { Writable } from 'node:stream'
import { jetstreamManager } from '@nats-io/jetstream'
import { connect as connectToNats } from '@nats-io/transport-node'
import { connect as connectToRabbit } from 'amqplib'
import { afterAll, beforeEach, describe, expect, it } from 'vitest'

import { useNats, useRabbit, useRedis } from '../../../test/support/brokers/broker.ts'
import { kafkaJsProducer, librdkafkaProducer } from '../../../test/support/brokers/kafka-producers.ts'
import { useDatabase } from '../../../test/support/database.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { records, statuses, useRelays } from '../../../test/support/running-relay.ts'
import { settled } from '../../../test/support/running-worker.ts'
import { makeEndpoint, writtenDeliveries } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import type { Publisher } from '../publisher.ts'
import { handlers } from './handlers.ts'
import { httpPublisher } from './http.ts'
import { kafkaPublisher } from './kafka.ts'
import { natsPublisher } from './nats.ts'
import { rabbitPublisher } from './rabbitmq.ts'
import { redisPublisher } from './redis.ts'
import { stdoutPublisher } from './stdout.ts'
import { webhooksPublisher } from './webhooks.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox restart identity' }))
afterAll(async () => db.close())

const GOOD = 60
/** What no publisher can encode, and what is recorded of it. */
const BAD = [
  { columns: 'payload', value: "(repeat('[', 6000) || repeat(']', 6000))::jsonb", error: /payload.*deep/ },
  { columns: 'created_at', value: "'294000-01-01'", error: /created_at.*years 1 to 9999/ },
  { columns: 'created_at', value: "'infinity'", error: /created_at.*years 1 to 9999/ },
  {
    columns: 'headers',
    value: `('{"h": ' || repeat('[', 6000) || repeat(']', 6000) || '}')::jsonb`,
    error: /header.*deep/,
  },
] as const

/** As rows that were written before the table had its limits: in a replica session no trigger fires. */
async function writeEvents(): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query({ text: 'set local session_replication_role = replica' })
    const good = (from: number, to: number) => ({
      text: `insert into leasehold.outbox (event_type, payload) select 'order.paid', jsonb_build_object('n', n) from generate_series(${from}, ${to}) n`,
    })
    await tx.query(good(1, GOOD / 2))
    for (const { columns, value } of BAD) {
      const all: Record<string, string> = { event_type: "'order.paid'", payload: "'{}'", [columns]: value }
      await tx.query({
        text: `insert into leasehold.outbox (${Object.keys(all).join(', ')}) values (${Object.values(all).join(', ')})`,
      })
    }
    await tx.query(good(GOOD / 2 + 1, GOOD))
  })
}

/** Publishes 60 good events and the bad ones between them in one batch. */
async function publishAll(publisher: Publisher): Promise<void> {
  await writeEvents()
  const events = new Events()
  const all = settled(events, GOOD + BAD.length)
  await startRelay({ publisher, settings: { concurrency: 100 } }, { events })
  await all
}

async function expectOnlyBadOnesRefused(): Promise<void> {
  const rows = await records(db)
  const refused = rows.filter(({ status }) => status !== 'PUBLISHED')
  expect(refused.map(({ id, status, attempts }) => ({ id, status, attempts }))).toEqual(
    BAD.map((_, i) => ({ id: String(GOOD / 2 + 1 + i), status: 'DEAD', attempts: 1 })),
  )
  for (const [i, { error }] of BAD.entries()) expect(refused[i]?.last_error).toMatch(error)
  expect(rows).toHaveLength(GOOD + BAD.length)
}

const startServer = useReceivers()

describe('LIFE-17: one event that cannot be encoded is refused alone, and its batch is published', () => {
  const ENVELOPES = [
    'none',
    { cloudevents: 'binary', source: '/orders' },
    { cloudevents: 'structured', source: '/orders' },
  ] as const

  it.each(ENVELOPES)('by the stdout publisher, envelope %o', async (envelope) => {
    let text = ''
    const stream = new Writable({
      write(chunk, _encoding, written) {
        text += String(chunk)
        written()
      },
    })
    await publishAll(stdoutPublisher({ stream, envelope }))
    await expectOnlyBadOnesRefused()
    expect(text.trimEnd().split('\n')).toHaveLength(GOOD)
  })

  it.each(ENVELOPES)('by the Kafka publisher with kafkajs, envelope %o', async (envelope) => {
    const { producer, written, calls } = kafkaJsProducer()
    await publishAll(kafkaPublisher({ producer, envelope }))
    await expectOnlyBadOnesRefused()
    expect(written).toHaveLength(GOOD)
    expect(calls).toEqual(['sendBatch'])
  })

  it('by the Kafka publisher with librdkafka', async () => {
    const { producer, written } = librdkafkaProducer()
    await publishAll(kafkaPublisher({ producer }))
    await expectOnlyBadOnesRefused()
    expect(written).toHaveLength(GOOD)
  })

  it.each(['none', { cloudevents: 'structured', source: '/orders' }] as const)(
    'by the HTTP publisher with batches, envelope %o',
    async (envelope) => {
      const server = await startServer()
      await publishAll(httpPublisher({ url: server.url, batch: true, envelope }))
      await expectOnlyBadOnesRefused()
      expect(server.received.map(({ body }) => JSON.parse(body).length)).toEqual([GOOD])
    },
  )

  it('by the HTTP publisher with a request for each', async () => {
    const server = await startServer()
    await publishAll(httpPublisher({ url: server.url, maxBatch: 100 }))
    await expectOnlyBadOnesRefused()
    expect(server.received).toHaveLength(GOOD)
  })

  it('by the webhooks publisher', async () => {
    await makeEndpoint(db, { eventTypes: ['order.*'] })
    await publishAll(webhooksPublisher({ db }))
    await expectOnlyBadOnesRefused()
    expect(await writtenDeliveries(db)).toHaveLength(GOOD)
  })

  describe('NATS', () => {
    const nats = useNats()
    it('by the NATS publisher', async () => {
      const connection = await connectToNats({ servers: nats.url })
      const { streams } = await jetstreamManager(connection, { checkAPI: false })
      await streams.add({ name: 'EVENTS', subjects: ['events.>'] })
      await publishAll(natsPublisher({ connect: { servers: nats.url }, prefix: 'events.' }))
      await expectOnlyBadOnesRefused()
      expect((await streams.info('EVENTS')).state.messages).toBe(GOOD)
      await connection.close()
    })
  })

  describe('RabbitMQ', () => {
    const rabbit = useRabbit()
    it('by the RabbitMQ publisher', async () => {
      const model = await connectToRabbit(rabbit.url)
      const channel = await model.createChannel()
      await channel.assertQueue('order.paid', { durable: true })
      await publishAll(rabbitPublisher({ url: rabbit.url, exchange: '', routingKey: ({ type }) => type }))
      await expectOnlyBadOnesRefused()
      expect((await channel.checkQueue('order.paid')).messageCount).toBe(GOOD)
      await model.close()
    })
  })

  describe('Redis', () => {
    const redis = useRedis()
    it('by the Redis publisher', async () => {
      const { createClient } = await import('redis')
      const client = createClient({ url: redis.url })
      await client.connect()
      await publishAll(redisPublisher({ url: redis.url, stream: 'events' }))
      await expectOnlyBadOnesRefused()
      expect(await client.xLen('events')).toBe(GOOD)
      client.destroy()
    })
  })
})

it.each([1, 100])(
  'LIFE-17: a handler gets an event that cannot be encoded, and decides for that event alone (maxBatch %d)',
  async (maxBatch) => {
    const handled: string[] = []
    await publishAll(
      handlers<{ 'order.paid': unknown }>(
        { 'order.paid': ({ id, createdAt }) => void handled.push(`${id} ${createdAt.getTime()}`) },
        { maxBatch },
      ),
    )
    // Only headers that are no texts cannot be given to a handler.
    expect(await statuses(db)).toEqual({ PUBLISHED: GOOD + BAD.length - 1, DEAD: 1 })
    expect(handled).toContain('32 NaN')
  },
)
