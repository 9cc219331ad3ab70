import { connect, type ChannelModel, type GetMessage } from 'amqplib'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'

import { eventually } from '../../../test/support/brokers/eventually.ts'
import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { useRabbit } from '../../../test/support/brokers/broker.ts'
import { publishThroughRestart } from '../../../test/support/brokers/restart.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import type { Publisher } from '../publisher.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { rabbitPublisher, type RabbitPublisherOptions } from './rabbitmq.ts'

const rabbit = useRabbit()
useQuietProcess()

/** Runs with a channel of the test's own, over a connection of its own. */
async function withChannel<Result>(
  work: (channel: Awaited<ReturnType<ChannelModel['createChannel']>>) => Promise<Result>,
): Promise<Result> {
  const model = await connect(rabbit.url)
  model.on('error', () => {})
  try {
    return await work(await model.createChannel())
  } finally {
    await model.close().catch(() => {})
  }
}

/** Takes all messages of the queue. */
async function messages(queue = 'orders'): Promise<GetMessage[]> {
  return withChannel(async (channel) => {
    const found: GetMessage[] = []
    for (;;) {
      const message = await channel.get(queue, { noAck: true })
      if (message === false) return found
      found.push(message)
    }
  })
}

function publisher(options: Partial<RabbitPublisherOptions> = {}): Publisher {
  const made = rabbitPublisher({ url: rabbit.url, exchange: 'events', ...options })
  onTestFinished(async () => made.close?.())
  return made
}

async function failure(publishing: Promise<unknown>): Promise<unknown> {
  return publishing.then(
    () => undefined,
    (error: unknown) => error,
  )
}

/** One that is killed forgets the queues it was told of in the last two seconds, unless it has written them down. */
async function writtenDown(): Promise<void> {
  await rabbit.control('eval', 'mnesia:sync_log().')
}

beforeEach(async () => {
  await withChannel(async (channel) => {
    await channel.deleteQueue('orders')
    await channel.assertExchange('events', 'topic', { durable: true })
    await channel.assertQueue('orders', { durable: true })
    await channel.bindQueue('orders', 'events', 'order.#')
  })
})
afterAll(async () => rabbit.stop('kill'))

describe('what arrives', () => {
  it('LIFE-05: an event that is done is in the queue: body, id, token and the producer’s headers, persistent', async () => {
    const event = outboxEvent()
    expect(await publisher().publish([event], publishContext())).toEqual([{ name: 'done', args: {} }])
    const [message] = await messages()
    expect(JSON.parse(message?.content.toString() ?? '')).toEqual(event.payload)
    expect(message?.fields).toMatchObject({ exchange: 'events', routingKey: 'order.paid' })
    expect(message?.properties).toMatchObject({
      messageId: event.eventId,
      deliveryMode: 2,
      contentType: 'application/json',
      headers: {
        traceparent: event.headers['traceparent'],
        'leasehold-event-id': event.eventId,
        'leasehold-token': '9007199254740993',
        'leasehold-attempt': '2',
        'leasehold-ordering-key': 'customer-7',
      },
    })
  })

  it('the routing key can be chosen, and the default exchange takes the name of a queue', async () => {
    await publisher({ routingKey: ({ orderingKey }) => `order.${orderingKey}` }).publish(
      [outboxEvent()],
      publishContext(),
    )
    await publisher({ exchange: '', routingKey: () => 'orders' }).publish([outboxEvent()], publishContext())
    expect((await messages()).map(({ fields }) => fields.routingKey)).toEqual(['order.customer-7', 'orders'])
  })

  it('a CloudEvent in binary mode has its attributes in cloudEvents: headers, in structured mode in the body', async () => {
    const event = outboxEvent()
    const source = '/orders'
    await publisher({ envelope: { cloudevents: 'binary', source } }).publish([event], publishContext())
    await publisher({ envelope: { cloudevents: 'structured', source } }).publish([event], publishContext())
    const [binary, structured] = await messages()
    expect(binary?.properties).toMatchObject({
      contentType: 'application/json',
      headers: {
        'cloudEvents:specversion': '1.0',
        'cloudEvents:id': event.eventId,
        'cloudEvents:source': '/orders',
        'cloudEvents:type': 'order.paid',
        'cloudEvents:subject': 'customer-7',
        'cloudEvents:time': '2026-03-01T12:00:00.250Z',
      },
    })
    expect(binary?.properties.headers).not.toHaveProperty('cloudEvents:datacontenttype')
    expect(structured?.properties.contentType).toBe('application/cloudevents+json; charset=UTF-8')
    expect(JSON.parse(structured?.content.toString() ?? '')).toMatchObject({
      specversion: '1.0',
      id: event.eventId,
      data: event.payload,
    })
  })
})

describe('what fails', () => {
  it('LIFE-17: an event that no queue takes is a retry with an error that says so, and the others of the batch are done', async () => {
    const events = outboxEvents(4, (index) => ({
      type: ['order.paid', 'nobody.listens', 'order.sent', 'x'.repeat(300)][index] ?? '',
    }))
    expect(await publisher().publish(events, publishContext())).toMatchObject([
      { name: 'done' },
      {
        name: 'retry',
        args: { error: expect.stringMatching(/exchange 'events'.*'nobody.listens'.*NO_ROUTE/) },
      },
      { name: 'done' },
      { name: 'dead', args: { error: expect.stringContaining('routing key is longer') } },
    ])
    expect(await messages()).toHaveLength(2)
  })

  it('LIFE-17: an event that a full queue refuses (nack) is a retry, and one that it accepted is done', async () => {
    await withChannel(async (channel) => {
      await channel.deleteQueue('orders')
      await channel.assertQueue('orders', {
        durable: true,
        arguments: { 'x-max-length': 2, 'x-overflow': 'reject-publish' },
      })
      await channel.bindQueue('orders', 'events', 'order.#')
    })
    const outcomes = await publisher().publish(outboxEvents(3), publishContext())
    expect(outcomes).toMatchObject([
      { name: 'done' },
      { name: 'done' },
      { name: 'retry', args: { error: expect.stringContaining('nack') } },
    ])
    expect(await messages()).toHaveLength(2)
  })

  it('headers that RabbitMQ would read as routing keys are left out', async () => {
    const event = outboxEvent({ headers: { CC: 'order.other', BCC: 'order.other', kept: 'yes' } })
    expect(await publisher().publish([event], publishContext())).toMatchObject([{ name: 'done' }])
    const [message] = await messages()
    expect(message?.properties.headers).toMatchObject({ kept: 'yes' })
    expect(message?.properties.headers).not.toHaveProperty('CC')
  })

  it('headers that AMQP cannot carry make only their own event dead', async () => {
    const large = outboxEvent({ headers: { large: 'x'.repeat(100_000) } })
    const long = outboxEvent({ headers: { [`n${'n'.repeat(300)}`]: 'x' } })
    expect(await publisher().publish([large, outboxEvent(), long], publishContext())).toMatchObject([
      { name: 'dead' },
      { name: 'done' },
      { name: 'dead' },
    ])
  })

  it('a missing exchange costs no attempt, and events are published once it is declared', async () => {
    const target = publisher({ exchange: 'later' })
    const error = await failure(target.publish([outboxEvent()], publishContext()))
    expect(error).toBeInstanceOf(SaturatedError)
    const probing = Promise.resolve(target.probe?.(AbortSignal.timeout(5_000)))
    for (const text of [String(error), String(await failure(probing))]) {
      const said = `The rabbitmq publisher for amqp://${new URL(rabbit.url).host} finds no exchange 'later'; declare it: `
      expect(text).toContain(said)
      expect(text.match(/publisher/g), text).toHaveLength(1)
    }
    await withChannel(async (channel) => {
      await channel.assertExchange('later', 'fanout')
      await channel.bindQueue('orders', 'later', '')
    })
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }])
  })

  it('an exchange that is deleted while events are in flight releases them', async () => {
    await withChannel(async (channel) => {
      await channel.assertExchange('brief', 'fanout')
      await channel.bindQueue('orders', 'brief', '')
    })
    const target = publisher({ exchange: 'brief' })
    await target.publish([outboxEvent()], publishContext())
    await withChannel(async (channel) => channel.deleteExchange('brief'))
    await expect(target.publish(outboxEvents(3), publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow("no exchange 'brief'")
  })

  it('RULE-020-042: while the server is out of memory nothing is sent to it, and it resumes by itself', async () => {
    const target = publisher({ timeoutMs: 500 })
    await rabbit.control('set_vm_memory_high_watermark', 'absolute', '1MB')
    // The server tells a connection that it is blocked once it publishes.
    await eventually(async () =>
      expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('blocked by the server'),
    )
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toThrow('blocked by the server')
    await rabbit.control('set_vm_memory_high_watermark', '0.9')
    await eventually(async () => target.probe?.(AbortSignal.timeout(5_000)))
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }])
  })

  it('a signal that fires ends the wait, and nothing is reported as done', async () => {
    const target = publisher()
    await target.publish([outboxEvent()], publishContext())
    await rabbit.freeze()
    onTestFinished(() => rabbit.thaw())
    const controller = new AbortController()
    const publishing = target.publish(outboxEvents(3), publishContext(controller.signal))
    controller.abort(new Error('lease lost'))
    await expect(publishing).rejects.toThrow('lease lost')
  })

  it('the publisher refuses invalid options, and does not repeat the URL with its password', () => {
    expect(() => rabbitPublisher({ exchange: 'x' })).toThrow('Give either url or connection.')
    // The routing key would be the event's type, and with it a producer could choose any queue.
    expect(() => publisher({ exchange: '' })).toThrow('routingKey')
    const refused = () => publisher({ url: 'http://user:secret@127.0.0.1' })
    expect(refused).toThrow('amqp:// or amqps://')
    expect(refused).not.toThrow('secret')
  })

  it('wrong credentials cost no attempt, and are not repeated in the error', async () => {
    const target = publisher({ url: rabbit.url.replace('guest:guest', 'guest:wrong-secret') })
    const error = await failure(target.publish([outboxEvent()], publishContext()))
    expect(error).toBeInstanceOf(SaturatedError)
    expect(String(error)).toContain('ACCESS')
    expect(String(error)).not.toContain('wrong-secret')
  })
})

describe('when the server is unavailable', () => {
  it('LIFE-18: the batch is released without an attempt, and is published once the server is back', async () => {
    const target = publisher()
    const events = outboxEvents(20)
    await target.publish(events.slice(0, 10), publishContext())
    await writtenDown()
    await rabbit.stop('kill')
    const rest = events.slice(10)
    await expect(target.publish(rest, publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toBeInstanceOf(Error)
    await rabbit.start()
    await target.probe?.(AbortSignal.timeout(5_000))
    expect(await target.publish(rest, publishContext())).toHaveLength(10)
    const ids = (await messages()).map(({ properties }) => properties.messageId)
    expect(ids).toEqual(events.map(({ eventId }) => eventId))
  })

  it.each(['kill', 'graceful'] as const)(
    'LIFE-18: while it restarts (%s) under load no event is lost, none is dead, none counts an attempt',
    async (how) => {
      if (how === 'kill') await writtenDown()
      const events = outboxEvents(4_000)
      const restart = async (): Promise<void> => rabbit.restart(how)
      const passage = await publishThroughRestart(publisher(), events, restart)
      expect(passage).toMatchObject({ done: 4_000, surprises: [] })
      expect(passage.givenBack).toBeGreaterThan(0)
      const arrived = new Set((await messages()).map(({ properties }) => properties.messageId))
      expect(events.filter(({ eventId }) => !arrived.has(eventId))).toEqual([])
    },
  )

  it('a server that does not answer counts as unavailable', async () => {
    const target = publisher({ timeoutMs: 300 })
    await target.publish([outboxEvent()], publishContext())
    await rabbit.freeze()
    onTestFinished(() => rabbit.thaw())
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow(
      'no confirm within 300 ms',
    )
    rabbit.thaw()
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }])
  })

  it('close() is bounded, whatever the state of the server', async () => {
    const target = publisher()
    await target.publish([outboxEvent()], publishContext())
    await rabbit.freeze()
    onTestFinished(() => rabbit.thaw())
    await target.close?.()
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('closed')
  })
})

describe('with the user’s own connection', () => {
  it('the publisher opens a channel on the user’s connection and leaves the connection open', async () => {
    const mine = await connect(rabbit.url)
    mine.on('error', () => {})
    onTestFinished(async () => mine.close())
    const target = rabbitPublisher({ connection: mine, exchange: 'events' })
    expect(await target.publish(outboxEvents(3), publishContext())).toHaveLength(3)
    await target.close?.()
    const channel = await mine.createChannel()
    expect(await channel.checkQueue('orders')).toMatchObject({ messageCount: 3 })
    expect(mine.listenerCount('blocked')).toBe(0)
  })

  it('the publisher follows a connection that reconnects by itself', async () => {
    const mine = await connect(rabbit.url, { recovery: { initialDelay: 50, maxDelay: 200 } })
    mine.on('error', () => {})
    onTestFinished(async () => mine.close())
    const target = rabbitPublisher({ connection: mine, exchange: 'events' })
    await target.publish([outboxEvent()], publishContext())
    await writtenDown()
    await rabbit.restart('kill')
    await eventually(async () =>
      expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }]),
    )
    await target.close?.()
    expect(await messages()).not.toHaveLength(0)
  })
})
