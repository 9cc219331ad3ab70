import { createClient, createClientPool, createCluster, type RedisClientType } from 'redis'
import { afterAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'

import { eventually } from '../../../test/support/brokers/eventually.ts'
import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { useRedis } from '../../../test/support/brokers/broker.ts'
import { publishThroughRestart } from '../../../test/support/brokers/restart.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import type { Publisher } from '../publisher.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { redisPublisher, type RedisPublisherOptions, type RedisStreams } from './redis.ts'

const redis = useRedis()
useQuietProcess()

// Checked by the compiler: a client, a pool and a cluster fit.
export const fits = {
  client: (client: ReturnType<typeof createClient>): RedisStreams => client,
  pool: (pool: ReturnType<typeof createClientPool>): RedisStreams => pool,
  cluster: (cluster: ReturnType<typeof createCluster>): RedisStreams => cluster,
}

let reader: RedisClientType | undefined

/** A client of the test's own, which sees what the server has. */
async function client(): Promise<RedisClientType> {
  if (reader?.isReady === true) return reader
  reader?.destroy()
  reader = createClient({ url: redis.url, RESP: 3 })
  reader.on('error', () => {})
  await reader.connect()
  return reader
}

async function entries(stream = 'events') {
  return (await (await client()).xRange(stream, '-', '+')) ?? []
}

function publisher(options: Partial<RedisPublisherOptions> = {}): Publisher {
  const made = redisPublisher({ url: redis.url, stream: 'events', ...options })
  onTestFinished(async () => made.close?.())
  return made
}

async function failure(publishing: Promise<unknown>): Promise<unknown> {
  return publishing.then(
    () => undefined,
    (error: unknown) => error,
  )
}

beforeEach(async () => {
  await (await client()).flushAll()
})
afterAll(() => reader?.destroy())

describe('what arrives', () => {
  it('LIFE-05: an event that is done is in the stream: payload, id, token and the producer’s headers', async () => {
    const event = outboxEvent()
    expect(await publisher().publish([event], publishContext())).toEqual([{ name: 'done', args: {} }])
    const [entry] = await entries()
    const { payload, ...fields } = entry?.message ?? {}
    expect(JSON.parse(String(payload))).toEqual(event.payload)
    expect(fields).toEqual({
      traceparent: event.headers['traceparent'],
      'leasehold-event-id': event.eventId,
      'leasehold-event-type': 'order.paid',
      'leasehold-ordering-key': 'customer-7',
      'leasehold-token': '9007199254740993',
      'leasehold-attempt': '2',
      'content-type': 'application/json',
    })
  })

  it('headers of an event cannot replace the fields of the publisher, in whatever case they are written', async () => {
    const headers = {
      'Leasehold-Token': '1',
      'leasehold-event-id': 'forged',
      'Content-Type': 'text/html',
      Payload: 'forged',
      payload: 'forged',
      mine: 'yes',
    }
    const event = outboxEvent({ headers })
    await publisher().publish([event], publishContext())
    const [entry] = await entries()
    expect(Object.keys(entry?.message ?? {}).sort()).toEqual([
      'content-type',
      ...['attempt', 'event-id', 'event-type', 'ordering-key', 'token'].map((name) => `leasehold-${name}`),
      'mine',
      'payload',
    ])
    expect(entry?.message).toMatchObject({
      payload: JSON.stringify(event.payload),
      'leasehold-event-id': event.eventId,
      'leasehold-token': '9007199254740993',
    })
  })

  it('an event goes to one stream, whatever type its producer gives it, or to the chosen stream', async () => {
    const target = redisPublisher({ url: redis.url })
    onTestFinished(async () => target.close?.())
    await target.publish([outboxEvent()], publishContext())
    await publisher({ stream: ({ type }) => `eu:${type}` }).publish([outboxEvent()], publishContext())
    expect(await entries('leasehold')).toHaveLength(1)
    expect(await entries('eu:order.paid')).toHaveLength(1)
  })

  it('a stream with a length is trimmed', async () => {
    await publisher({ maxLength: 100, maxBatch: 1_000 }).publish(outboxEvents(1_000), publishContext())
    const kept = (await entries()).length
    expect(kept).toBeGreaterThanOrEqual(100)
    expect(kept).toBeLessThan(1_000)
  })

  it('a CloudEvent in structured mode is one document', async () => {
    const event = outboxEvent()
    const envelope = { cloudevents: 'structured', source: '/orders' } as const
    await publisher({ envelope }).publish([event], publishContext())
    const [entry] = await entries()
    expect(entry?.message['content-type']).toBe('application/cloudevents+json; charset=UTF-8')
    expect(JSON.parse(entry?.message['payload'] ?? '')).toMatchObject({
      specversion: '1.0',
      id: event.eventId,
      source: '/orders',
      data: event.payload,
    })
  })
})

describe('what fails', () => {
  it('LIFE-17: each event has its own outcome; a key that is no stream is a retry', async () => {
    await (await client()).set('taken', 'x')
    const target = publisher({ stream: ({ type }) => type })
    const events = outboxEvents(3, (index) => ({ type: index === 1 ? 'taken' : 'events' }))
    expect(await target.publish(events, publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'retry', args: { error: expect.stringMatching(/stream 'taken' .*WRONGTYPE/) } },
      { name: 'done' },
    ])
    const ids = (await entries()).map(({ message }) => message['leasehold-event-id'])
    expect(ids).toEqual([events[0]?.eventId, events[2]?.eventId])
  })

  it('RULE-020-042: a server out of memory saturates', async () => {
    const operator = await client()
    await operator.configSet('maxmemory', '1')
    onTestFinished(async () => void (await (await client()).configSet('maxmemory', '0')))
    const error = await failure(publisher().publish(outboxEvents(3), publishContext()))
    expect(error).toBeInstanceOf(SaturatedError)
    expect(error).toMatchObject({ message: expect.stringContaining('OOM') })
  })

  it('a signal that fires ends the wait, and nothing is reported as done', async () => {
    const target = publisher()
    await target.publish([outboxEvent()], publishContext())
    await redis.freeze()
    onTestFinished(() => redis.thaw())
    const controller = new AbortController()
    const publishing = target.publish(outboxEvents(3), publishContext(controller.signal))
    controller.abort(new Error('lease lost'))
    await expect(publishing).rejects.toThrow('lease lost')
  })

  it('the publisher refuses invalid options, and does not repeat the URL with its password', () => {
    expect(() => redisPublisher({})).toThrow('Give either url or client.')
    expect(() => publisher({ maxLength: 1.5 })).toThrow('maxLength')
    expect(() => publisher({ stream: '' })).toThrow('Give the name of a stream.')
    const refused = () => publisher({ url: 'http://user:secret@127.0.0.1' })
    expect(refused).toThrow('redis:// or rediss://')
    expect(refused).not.toThrow('secret')
  })
})

describe('when the server is unavailable', () => {
  it('LIFE-18: the batch is released without an attempt, and is published once the server is back', async () => {
    const target = publisher()
    const events = outboxEvents(20)
    await target.publish(events.slice(0, 10), publishContext())
    await redis.stop('kill')
    const rest = events.slice(10)
    await expect(target.publish(rest, publishContext())).rejects.toBeInstanceOf(SaturatedError)
    await expect(target.probe?.(AbortSignal.timeout(5_000))).rejects.toBeInstanceOf(Error)
    await redis.start()
    await target.probe?.(AbortSignal.timeout(5_000))
    expect(await target.publish(rest, publishContext())).toHaveLength(10)
    const ids = (await entries()).map(({ message }) => message['leasehold-event-id'])
    expect(ids).toEqual(events.map(({ eventId }) => eventId))
  })

  it.each(['kill', 'graceful'] as const)(
    'LIFE-18: while it restarts (%s) under load no event is lost, none is dead, none counts an attempt',
    async (how) => {
      const events = outboxEvents(4_000)
      const restart = async (): Promise<void> => redis.restart(how)
      const passage = await publishThroughRestart(publisher(), events, restart)
      expect(passage).toMatchObject({ done: 4_000, surprises: [] })
      expect(passage.givenBack).toBeGreaterThan(0)
      const arrived = new Set((await entries()).map(({ message }) => message['leasehold-event-id']))
      expect(events.filter(({ eventId }) => !arrived.has(eventId))).toEqual([])
    },
  )

  it('a server that stops answering in the middle of a batch counts as unavailable', async () => {
    const target = publisher({ timeoutMs: 300 })
    await target.publish([outboxEvent()], publishContext())
    await redis.freeze()
    onTestFinished(() => redis.thaw())
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('no reply within 300 ms')
    redis.thaw()
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'done' }])
  })
})

describe('with the user’s own client', () => {
  it('the publisher uses the user’s client, leaves it open, and puts nothing into its offline queue', async () => {
    const mine = createClient({ url: redis.url, socket: { reconnectStrategy: 50 } })
    mine.on('error', () => {})
    await mine.connect()
    onTestFinished(() => mine.destroy())
    const target = redisPublisher({ client: mine, stream: 'events' })
    const events = outboxEvents(2)
    expect(await target.publish(events.slice(0, 1), publishContext())).toMatchObject([{ name: 'done' }])
    await redis.stop('kill')
    await eventually(async () => expect(mine.isReady).toBe(false))
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('lost its connection')
    await redis.start()
    await eventually(async () => target.probe?.(AbortSignal.timeout(1_000)))
    expect(await target.publish(events.slice(1), publishContext())).toMatchObject([{ name: 'done' }])
    await target.close?.()
    expect(await mine.ping()).toBe('PONG')
    const ids = (await entries()).map(({ message }) => message['leasehold-event-id'])
    expect(ids).toEqual(events.map(({ eventId }) => eventId))
  })

  it('the publisher sends nothing through a client that is not ready, which would buffer it and send it later', async () => {
    const sent: string[] = []
    const away = { isReady: false, xAdd: async (key: string) => void sent.push(key) }
    const target = redisPublisher({ client: away, stream: 'events' })
    await expect(target.publish([outboxEvent()], publishContext())).rejects.toBeInstanceOf(SaturatedError)
    expect(sent).toEqual([])
  })

  it('LIFE-17: events that were acknowledged before the connection broke are done', async () => {
    const real = createClient({ url: redis.url })
    real.on('error', () => {})
    await real.connect()
    onTestFinished(() => real.destroy())
    let sent = 0
    const breaking = {
      async xAdd(...args: Parameters<typeof real.xAdd>) {
        sent += 1
        if (sent > 2) throw new Error('Socket closed unexpectedly')
        return real.xAdd(...args)
      },
    }
    const target = redisPublisher({ client: breaking, stream: 'events' })
    expect(await target.publish(outboxEvents(3), publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'done' },
      { name: 'SaturatedError' },
    ])
    expect(await entries()).toHaveLength(2)
  })
})
