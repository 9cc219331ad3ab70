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
import { kafkaJsProducer, librdkafkaProducer } from '../../../test/support/brokers/kafka-producers.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { kafkaPublisher, type KafkaProducer } from './kafka.ts'

useQuietProcess()

// Checked by the compiler: a producer of kafkajs fits.
export const fits = (producer: Producer): KafkaProducer => producer

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
        topic: 'leasehold',
        acks: -1,
        key: 'customer-7',
        timestamp: String(events[0]?.createdAt.getTime()),
        headers: {
          'leasehold-event-id': events[0]?.eventId,
          'leasehold-token': '9007199254740993',
          'content-type': 'application/json',
        },
      },
      { topic: 'leasehold', acks: -1, key: events[1]?.eventId },
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
    const target = kafkaPublisher({ producer: doubtful, topic: ({ type }) => type })
    expect(await target.publish(events, publishContext())).toMatchObject([
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

it('headers of an event cannot replace those of the publisher, in whatever case they are written', async () => {
  const { producer, written } = kafkaJsProducer()
  const headers = {
    'Leasehold-Token': '1',
    'leasehold-event-id': 'forged',
    'Content-Type': 'text/html',
    CE_ID: 'forged',
    mine: 'yes',
  }
  const event = outboxEvent({ headers, orderingKey: undefined })
  const envelope = { cloudevents: 'binary', source: '/orders' } as const
  await kafkaPublisher({ producer, envelope }).publish([event], publishContext())
  expect(Object.keys(written[0]?.headers ?? {}).sort()).toEqual(
    [
      'mine',
      'content-type',
      ...['event-id', 'event-type', 'token', 'attempt'].map((name) => `leasehold-${name}`),
      ...['specversion', 'id', 'source', 'type', 'time', 'leaseholdtoken', 'leaseholdattempt', 'mine'].map(
        (name) => `ce_${name}`,
      ),
    ].sort(),
  )
  expect(written[0]?.headers).toMatchObject({
    'leasehold-event-id': event.eventId,
    'leasehold-token': '9007199254740993',
    'content-type': 'application/json',
    ce_id: event.eventId,
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
