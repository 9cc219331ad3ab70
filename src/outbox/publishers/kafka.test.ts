import {
  Kafka,
  KafkaJSConnectionError,
  logLevel,
  KafkaJSNumberOfRetriesExceeded,
  type Producer,
} from 'kafkajs'
import { describe, expect, it } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { freePort } from '../../../test/support/brokers/broker.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { type KafkaMessage, kafkaPublisher, type KafkaProducer, type KafkaRecordMetadata } from './kafka.ts'

useQuietProcess()

// Checked by the compiler: a producer of kafkajs fits.
export const fits = (producer: Producer): KafkaProducer => producer

interface Sent extends KafkaMessage {
  readonly topic: string
  readonly acks: number | undefined
}

type Rule = (sent: Sent) => void

/** Answers as kafkajs does: one promise for a batch, which fails as a whole. */
function kafkaJsProducer(rule: Rule = () => {}) {
  const written: Sent[] = []
  const calls: string[] = []
  const write = async (
    acks: number | undefined,
    groups: { topic: string; messages: KafkaMessage[] }[],
  ): Promise<KafkaRecordMetadata[]> => {
    const batch = groups.flatMap(({ topic, messages }) =>
      messages.map((message) => ({ ...message, topic, acks })),
    )
    for (const sent of batch) rule(sent)
    written.push(...batch)
    return groups.map(({ topic }) => ({ topicName: topic, errorCode: 0 }))
  }
  const producer: KafkaProducer = {
    async send({ acks, ...record }) {
      calls.push('send')
      return write(acks, [record])
    },
    async sendBatch({ acks, topicMessages }) {
      calls.push('sendBatch')
      return write(acks, topicMessages)
    },
  }
  return { producer, written, calls }
}

/** Answers as librdkafka's KafkaJS face does: refuses acks, writes into the messages, and can be flushed. */
function librdkafkaProducer(rule: Rule = () => {}) {
  const written: Sent[] = []
  const producer: KafkaProducer & { flush(): Promise<void> } = {
    async send(record) {
      if ('acks' in record) throw Object.assign(new Error('acks must be configured'), { code: -186 })
      for (const message of record.messages) {
        const sent = { ...message, topic: record.topic, acks: undefined }
        rule(sent)
        written.push(sent)
        Object.assign(message, { headers: [], partition: -1, timestamp: 0 })
      }
      return [{ topicName: record.topic, errorCode: 0 }]
    },
    async sendBatch() {
      throw new Error('not needed')
    },
    async flush() {},
  }
  return { producer, written }
}

function withCode(message: string, code: number): Error {
  return Object.assign(new Error(message), { code })
}

describe('the shape of kafkajs', () => {
  it('LIFE-05: all events in one call, acknowledged by all replicas, keyed by the ordering key or the id', async () => {
    const { producer, written, calls } = kafkaJsProducer()
    const events = [outboxEvent(), outboxEvent({ orderingKey: undefined, type: 'order.sent' })]
    const outcomes = await kafkaPublisher({ producer }).publish(events, publishContext())
    expect(outcomes).toMatchObject([{ name: 'done' }, { name: 'done' }])
    expect(calls).toEqual(['sendBatch'])
    expect(written).toMatchObject([
      {
        topic: 'order.paid',
        acks: -1,
        key: 'customer-7',
        timestamp: String(events[0]?.createdAt.getTime()),
        headers: {
          'leasehold-event-id': events[0]?.eventId,
          'leasehold-token': '9007199254740993',
          'content-type': 'application/json',
        },
      },
      { topic: 'order.sent', acks: -1, key: events[1]?.eventId },
    ])
    expect(JSON.parse(written[0]?.value ?? '')).toEqual(events[0]?.payload)
  })

  it('LIFE-17: a refused batch is sent event by event, so that only events that are refused alone fail', async () => {
    const { producer, written } = kafkaJsProducer(({ value }) => {
      if (value.includes('large')) throw withCode('The request included a message larger than the max', 10)
      if (value.includes('unwelcome')) throw withCode('Not authorized to access topics', 29)
    })
    const events = ['a', 'large', 'b', 'unwelcome', 'c'].map((payload) => outboxEvent({ payload }))
    expect(await kafkaPublisher({ producer, topic: 'all' }).publish(events, publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'dead' },
      { name: 'done' },
      { name: 'retry', args: { error: expect.stringContaining('Not authorized') } },
      { name: 'done' },
    ])
    expect(written.map(({ value }) => value)).toEqual(['"a"', '"b"', '"c"'])
  })

  it('an error code in the answer is no acknowledgement', async () => {
    const { producer } = kafkaJsProducer()
    const doubtful: KafkaProducer = {
      ...producer,
      sendBatch: async () => [
        { topicName: 'a', errorCode: 0 },
        { topicName: 'b', errorCode: 2 },
      ],
    }
    const events = [outboxEvent({ type: 'a' }), outboxEvent({ type: 'b' })]
    expect(await kafkaPublisher({ producer: doubtful }).publish(events, publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'retry', args: { error: expect.stringContaining("topic 'b'") } },
    ])
  })

  it.each([
    ['a broken connection', new KafkaJSConnectionError('Connection error: ECONNREFUSED')],
    [
      'retries that were given up',
      new KafkaJSNumberOfRetriesExceeded(new KafkaJSConnectionError('Connection error'), {
        retryCount: 5,
        retryTime: 300,
      }),
    ],
    ['a producer that is not connected', new Error('The producer is disconnected')],
    ['too few replicas', withCode('Messages are rejected since there are fewer in-sync replicas', 19)],
  ])('LIFE-18: %s releases the batch without an attempt', async (_name, error) => {
    const { producer, calls } = kafkaJsProducer(() => {
      throw error
    })
    const target = kafkaPublisher({ producer })
    await expect(target.publish(outboxEvents(3), publishContext())).rejects.toBeInstanceOf(SaturatedError)
    expect(calls).toEqual(['sendBatch'])
    await expect(target.publish(outboxEvents(1), publishContext())).rejects.toBeInstanceOf(SaturatedError)
  })
})

it('LIFE-18: a producer of kafkajs without a connection releases the batch without an attempt', async () => {
  const brokers = [`127.0.0.1:${await freePort()}`]
  const producer = new Kafka({ brokers, logLevel: logLevel.NOTHING, retry: { retries: 0 } }).producer()
  const target = kafkaPublisher({ producer })
  await expect(target.publish(outboxEvents(2), publishContext())).rejects.toBeInstanceOf(SaturatedError)
  await expect(producer.connect()).rejects.toThrow('ECONNREFUSED')
  await expect(target.publish(outboxEvents(2), publishContext())).rejects.toBeInstanceOf(SaturatedError)
  await producer.disconnect()
})

describe('the shape of @confluentinc/kafka-javascript', () => {
  it('LIFE-05: acks stay in its configuration, and messages that it modified are not reused', async () => {
    const { producer, written } = librdkafkaProducer()
    const target = kafkaPublisher({ producer, topic: ({ type }) => `eu.${type}` })
    const event = outboxEvent()
    expect(await target.publish([event, outboxEvent()], publishContext())).toHaveLength(2)
    await target.publish([event], publishContext())
    expect(written.map(({ topic }) => topic)).toEqual(['eu.order.paid', 'eu.order.paid', 'eu.order.paid'])
    expect(written[2]?.headers).toMatchObject({ 'leasehold-event-id': event.eventId })
  })

  it('LIFE-17: each message has its own answer', async () => {
    const { producer } = librdkafkaProducer(({ value }) => {
      if (value.includes('large')) throw withCode('Broker: Message size too large', 10)
    })
    const events = ['a', 'large', 'b'].map((payload) => outboxEvent({ payload }))
    expect(await kafkaPublisher({ producer }).publish(events, publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'dead' },
      { name: 'done' },
    ])
  })

  it.each([-195, -187, -192, -184, -172])('LIFE-18: code %i releases the event', async (code) => {
    const { producer } = librdkafkaProducer(() => {
      throw withCode('Local: failure', code)
    })
    await expect(
      kafkaPublisher({ producer }).publish([outboxEvent()], publishContext()),
    ).rejects.toBeInstanceOf(SaturatedError)
  })
})

it('a CloudEvent in binary mode has its attributes in ce_ headers', async () => {
  const { producer, written } = kafkaJsProducer()
  const event = outboxEvent({ orderingKey: 'Zürich' })
  const envelope = { cloudevents: 'binary', source: '/orders' } as const
  await kafkaPublisher({ producer, envelope }).publish([event], publishContext())
  expect(written[0]?.headers).toMatchObject({
    'content-type': 'application/json',
    ce_specversion: '1.0',
    ce_id: event.eventId,
    ce_source: '/orders',
    ce_type: 'order.paid',
    ce_subject: 'Zürich',
    ce_time: '2026-03-01T12:00:00.250Z',
  })
})

it('a missing acknowledgement releases the event, and a signal that fires ends the wait', async () => {
  const producer: KafkaProducer = {
    send: async () => new Promise(() => {}),
    sendBatch: async () => new Promise(() => {}),
  }
  const target = kafkaPublisher({ producer, timeoutMs: 50 })
  await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('within 50 ms')
  await expect(target.publish(outboxEvents(2), publishContext())).rejects.toThrow('within 50 ms')
  const controller = new AbortController()
  const publishing = kafkaPublisher({ producer }).publish(outboxEvents(2), publishContext(controller.signal))
  controller.abort(new Error('lease lost'))
  await expect(publishing).rejects.toThrow('lease lost')
})

it('the probe is the one given in the options', async () => {
  const { producer } = kafkaJsProducer()
  expect(kafkaPublisher({ producer })).not.toHaveProperty('probe')
  const probe = async (): Promise<void> => {
    throw new Error('no cluster')
  }
  const target = kafkaPublisher({ producer, probe })
  await expect(target.probe?.(new AbortController().signal)).rejects.toThrow('no cluster')
})
