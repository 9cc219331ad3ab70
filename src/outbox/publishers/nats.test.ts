import {
  DiscardPolicy,
  jetstream,
  jetstreamManager,
  type StoredMsg,
  type StreamAPI,
} from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'

import { eventually } from '../../../test/support/brokers/eventually.ts'
import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { useNats } from '../../../test/support/brokers/broker.ts'
import { publishThroughRestart } from '../../../test/support/brokers/restart.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import type { Publisher } from '../publisher.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { natsPublisher, type NatsPublisherOptions } from './nats.ts'

const nats = useNats()
useQuietProcess()

/** Runs with a connection of the test's own, which sees what the server has. */
async function withStreams<Result>(work: (streams: StreamAPI) => Promise<Result>): Promise<Result> {
  const connection = await connect({ servers: nats.url })
  try {
    const { streams } = await jetstreamManager(connection, { checkAPI: false })
    return await work(streams)
  } finally {
    await connection.close()
  }
}

async function stored(): Promise<StoredMsg[]> {
  return withStreams(async (streams) => {
    const { state } = await streams.info('EVENTS')
    const messages: StoredMsg[] = []
    for (let seq = state.first_seq; seq <= state.last_seq; seq += 1) {
      const message = await streams.getMessage('EVENTS', { seq })
      if (message !== null) messages.push(message)
    }
    return messages
  })
}

function publisher(options: Partial<NatsPublisherOptions> = {}): Publisher {
  const made = natsPublisher({ connect: { servers: nats.url }, prefix: 'events.', ...options })
  onTestFinished(async () => made.close?.())
  return made
}

beforeEach(async () => {
  await withStreams(async (streams) => {
    await streams.delete('EVENTS').catch(() => {})
    await streams.add({ name: 'EVENTS', subjects: ['events.>'] })
  })
})

it('LIFE-08: an event whose type would address the API of the server, or end its connection, is dead and not sent', async () => {
  const types = ['$JS.API.STREAM.PURGE.EVENTS', '_INBOX.x', 'x'.repeat(5_000), 'a.>', 'a b']
  const target = publisher({ prefix: '' })
  const outcomes = await target.publish(
    types.map((type) => outboxEvent({ type })),
    publishContext(),
  )
  expect(outcomes?.map((answer) => ('args' in answer ? answer.name : answer.message))).toEqual(
    types.map(() => 'dead'),
  )
})

describe('what arrives', () => {
  it('without a prefix or a subject, events go to subjects of Leasehold only', async () => {
    await withStreams(async (streams) => streams.add({ name: 'DEFAULT', subjects: ['leasehold.>'] }))
    onTestFinished(async () => withStreams(async (streams) => void (await streams.delete('DEFAULT'))))
    const target = natsPublisher({ connect: { servers: nats.url } })
    onTestFinished(async () => target.close?.())
    expect(await target.publish([outboxEvent()], publishContext())).toEqual([{ name: 'done', args: {} }])
  })

  it('LIFE-05: an event that is done is in the stream: body, subject, id, token and the producer’s headers', async () => {
    const event = outboxEvent()
    expect(await publisher().publish([event], publishContext())).toEqual([{ name: 'done', args: {} }])
    const [message] = await stored()
    expect(message?.subject).toBe('events.order.paid')
    expect(message?.json()).toEqual(event.payload)
    const header = (name: string) => message?.header.get(name)
    expect(header('Nats-Msg-Id')).toBe(event.eventId)
    expect(header('leasehold-event-id')).toBe(event.eventId)
    expect(header('leasehold-token')).toBe('9007199254740993')
    expect(header('leasehold-attempt')).toBe('2')
    expect(header('leasehold-ordering-key')).toBe('customer-7')
    expect(header('traceparent')).toBe(event.headers['traceparent'])
    expect(header('content-type')).toBe('application/json')
  })

  it('LIFE-15: an event that is published twice is done, and once in the stream', async () => {
    const event = outboxEvent()
    const target = publisher()
    await target.publish([event], publishContext())
    const again = await target.publish([{ ...event, attempt: 3, token: event.token + 1n }], publishContext())
    expect(again).toEqual([{ name: 'done', args: {} }])
    expect(await stored()).toHaveLength(1)
  })

  it('the subject can be chosen, and what a header cannot carry is percent-encoded', async () => {
    const event = outboxEvent({ orderingKey: 'Zürich 100%\r\nx: y', headers: { note: ' 東京 ' } })
    await publisher({ subject: ({ type }) => `events.eu.${type}` }).publish([event], publishContext())
    const [message] = await stored()
    expect(message?.subject).toBe('events.eu.order.paid')
    expect(message?.header.get('leasehold-ordering-key')).toBe('Z%C3%BCrich%20100%25%0D%0Ax:%20y')
    expect(message?.header.get('note')).toBe('%20%E6%9D%B1%E4%BA%AC%20')
  })

  it('headers that control a stream are left out', async () => {
    const target = publisher()
    await target.publish(outboxEvents(2), publishContext())
    const steering = outboxEvent({ headers: { 'Nats-Rollup': 'all', 'nats-expected-stream': 'OTHER' } })
    expect(await target.publish([steering], publishContext())).toMatchObject([{ name: 'done' }])
    expect(await stored()).toHaveLength(3)
  })

  it('a CloudEvent in binary mode has its attributes in ce- headers, in structured mode in the body', async () => {
    const event = outboxEvent({ orderingKey: 'a b' })
    const source = 'https://shop.example/orders'
    const binary = publisher({ envelope: { cloudevents: 'binary', source } })
    await binary.publish([event], publishContext())
    const structured = publisher({ envelope: { cloudevents: 'structured', source } })
    const other = outboxEvent()
    await structured.publish([other], publishContext())
    const [first, second] = await stored()
    expect(first?.json()).toEqual(event.payload)
    const attributes = Object.fromEntries(
      (first?.header.keys() ?? [])
        .filter((name) => name.startsWith('ce-'))
        .map((name) => [name, first?.header.get(name)]),
    )
    expect(attributes).toEqual({
      'ce-specversion': '1.0',
      'ce-id': event.eventId,
      'ce-source': source,
      'ce-type': 'order.paid',
      'ce-subject': 'a%20b',
      'ce-time': '2026-03-01T12:00:00.250Z',
      'ce-datacontenttype': 'application/json',
      'ce-traceparent': event.headers['traceparent'],
      'ce-leaseholdtoken': '9007199254740993',
      'ce-leaseholdattempt': '2',
    })
    expect(second?.header.get('content-type')).toBe('application/cloudevents+json; charset=UTF-8')
    expect(second?.json()).toMatchObject({ specversion: '1.0', id: other.eventId, data: other.payload })
  })
})

describe('what fails', () => {
  it('LIFE-17: each event has its own outcome, in the order of the batch', async () => {
    const target = publisher({ subject: ({ type }) => type })
    const events = outboxEvents(5, (index) => ({
      type: ['events.a', 'nobody.listens', 'events.b', 'not a subject', 'events.c'][index] ?? '',
    }))
    const outcomes = await target.publish(events, publishContext())
    expect(outcomes).toMatchObject([
      { name: 'done' },
      { name: 'retry', args: { error: expect.stringContaining("subject 'nobody.listens'") } },
      { name: 'done' },
      { name: 'dead', args: { error: expect.stringContaining('"not a subject" is no subject') } },
      { name: 'done' },
    ])
    expect((await stored()).map(({ subject }) => subject)).toEqual(['events.a', 'events.b', 'events.c'])
  })

  it('an event that is too large for the server is dead', async () => {
    const large = outboxEvent({ payload: 'x'.repeat(2_000_000) })
    const outcomes = await publisher().publish([large, outboxEvent()], publishContext())
    expect(outcomes).toMatchObject([{ name: 'dead' }, { name: 'done' }])
  })

  it('RULE-020-042: a full stream saturates, and events that it accepted before are done', async () => {
    await withStreams(async (streams) =>
      streams.update('EVENTS', { max_msgs: 2, discard: DiscardPolicy.New }),
    )
    const target = publisher()
    expect(await target.publish(outboxEvents(3), publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'done' },
      { name: 'SaturatedError', forMs: 1_000, message: expect.stringContaining('maximum messages') },
    ])
    await expect(target.publish(outboxEvents(2), publishContext())).rejects.toBeInstanceOf(SaturatedError)
  })

  it('a stream that never acknowledges is a retry with an error that says so, and the others of the batch are done', async () => {
    await withStreams(async (streams) => streams.add({ name: 'SILENT', subjects: ['silent'], no_ack: true }))
    onTestFinished(async () => void (await withStreams(async (streams) => streams.delete('SILENT'))))
    const target = publisher({ subject: ({ type }) => type, timeoutMs: 300 })
    const events = [outboxEvent({ type: 'silent' }), outboxEvent({ type: 'events.a' })]
    expect(await target.publish(events, publishContext())).toMatchObject([
      { name: 'retry', args: { error: expect.stringContaining('no_ack') } },
      { name: 'done' },
    ])
  })

  it('a signal that fires ends the wait, and nothing is reported as done', async () => {
    const target = publisher()
    await target.publish([outboxEvent()], publishContext())
    await nats.freeze()
    onTestFinished(() => nats.thaw())
    const controller = new AbortController()
    const publishing = target.publish(outboxEvents(3), publishContext(controller.signal))
    controller.abort(new Error('lease lost'))
    await expect(publishing).rejects.toThrow('lease lost')
  })

  it('the publisher refuses invalid options', () => {
    expect(() => natsPublisher({})).toThrow('Give either connect or connection.')
    expect(() => publisher({ timeoutMs: 0 })).toThrow('timeoutMs')
    expect(() => publisher({ envelope: { cloudevents: 'binary', source: 'no uri' } })).toThrow(
      'envelope.source',
    )
  })
})

describe('when the server is unavailable', () => {
  it('LIFE-18: the batch is released without an attempt, and is published once the server is back', async () => {
    const target = publisher()
    const events = outboxEvents(20)
    await target.publish(events.slice(0, 10), publishContext())
    await nats.stop('kill')
    const rest = events.slice(10)
    await expect(target.publish(rest, publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toBeInstanceOf(Error)
    await nats.start()
    await target.probe?.(AbortSignal.timeout(5_000))
    expect(await target.publish(rest, publishContext())).toHaveLength(10)
    expect(new Set((await stored()).map(({ header }) => header.get('Nats-Msg-Id')))).toEqual(
      new Set(events.map(({ eventId }) => eventId)),
    )
  })

  it.each(['kill', 'graceful'] as const)(
    'LIFE-18: while it restarts (%s) under load no event is lost, none is dead, none counts an attempt',
    async (how) => {
      const events = outboxEvents(4_000)
      const restart = async (): Promise<void> => nats.restart(how)
      const passage = await publishThroughRestart(publisher(), events, restart)
      expect(passage).toMatchObject({ done: 4_000, surprises: [] })
      expect(passage.givenBack).toBeGreaterThan(0)
      const arrived = new Set((await stored()).map(({ header }) => header.get('Nats-Msg-Id')))
      expect(events.filter(({ eventId }) => !arrived.has(eventId))).toEqual([])
    },
  )

  it('a server that does not answer counts as unavailable', async () => {
    const target = publisher({ timeoutMs: 300 })
    await target.publish([outboxEvent()], publishContext())
    await nats.freeze()
    onTestFinished(() => nats.thaw())
    await expect(target.probe?.(AbortSignal.timeout(300))).rejects.toBeInstanceOf(Error)
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('no answer within 300 ms')
    nats.thaw()
    const event = outboxEvent()
    expect(await target.publish([event], publishContext())).toMatchObject([{ name: 'done' }])
  })
})

describe('with the user’s own connection', () => {
  it('the publisher uses the user’s connection, leaves it open, and follows its reconnects', async () => {
    const mine = await connect({ servers: nats.url, reconnectTimeWait: 50, maxReconnectAttempts: -1 })
    onTestFinished(async () => mine.close())
    const target = natsPublisher({ connection: mine, prefix: 'events.' })
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }])
    await nats.stop('kill')
    await eventually(async () =>
      expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('lost its connection'),
    )
    await nats.start()
    const event = outboxEvent()
    await eventually(async () => target.probe?.(AbortSignal.timeout(1_000)))
    expect(await target.publish([event], publishContext())).toMatchObject([{ name: 'done' }])
    await target.close?.()
    expect(mine.isClosed()).toBe(false)
    expect((await jetstream(mine).publish('events.mine', 'x')).stream).toBe('EVENTS')
  })
})
