import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { recording } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'
import { createOutbox, enqueue } from './enqueue/enqueue.ts'
import { handlers } from './publishers/handlers.ts'
import { httpPublisher } from './publishers/http.ts'
import { kafkaPublisher } from './publishers/kafka.ts'
import { natsPublisher } from './publishers/nats.ts'
import { rabbitPublisher } from './publishers/rabbitmq.ts'
import { redisPublisher } from './publishers/redis.ts'
import { stdoutPublisher } from './publishers/stdout.ts'
import { webhooksPublisher } from './publishers/webhooks.ts'
import { relay } from './relay.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

/** Calls a function as plain JavaScript can, with anything. */
function fromJavaScript(call: (...given: never[]) => unknown, ...given: unknown[]): () => unknown {
  return () => call(...(given as never[]))
}

describe('relay', () => {
  const publisher = recording()
  it.each([
    [{ publisher, onfailure: 'park' }, 'unknown option onfailure (did you mean onFailure?)'],
    [{ publisher, retrys: {} }, 'unknown option retrys (did you mean retry?)'],
    [{ publisher, onFailure: 'wait' }, "onFailure is 'wait', but must be block, skip or park"],
    [
      { publisher: {} },
      'publisher is {}, but must be one of leasehold/publishers/*, or an object with publish',
    ],
    [{}, 'publisher is undefined, but must be one of'],
    [
      { publisher: { ...publisher, maxBatch: 0 } },
      'publisher.maxBatch is 0, but must be a whole number from 1',
    ],
    [
      { publisher, retry: { maxAgeMs: 0 } },
      'retry.maxAgeMs is 0, but must be a number of milliseconds above 0',
    ],
    [{ publisher, retry: { firstms: 1 } }, 'retry: unknown option firstms (did you mean firstMs?)'],
    [{ publisher, retry: 5 }, 'retry is 5, but must be an object'],
    [
      { publisher, retention: { publishedMS: 1 } },
      'retention: unknown option publishedMS (did you mean publishedMs?)',
    ],
    [{ publisher, retention: true }, 'retention is true, but must be an object, or false'],
    [
      { publisher, settings: { concurency: 5 } },
      'settings: unknown option concurency (did you mean concurrency?)',
    ],
    [{ publisher, schema: '' }, "schema is '', but must be the name of a schema"],
    [undefined, 'The options of relay: a value of type undefined was given, but they must be an object'],
  ])('relay(%o) is refused: %s', (options, message) => {
    expect(fromJavaScript(relay, options)).toThrow(message)
    expect(fromJavaScript(relay, options)).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  })

  it('one error lists all problems', () => {
    expect(fromJavaScript(relay, { publisher: 1, onFailure: 2 })).toThrow(
      /publisher is 1.*; onFailure is 2.*\. Correct/,
    )
  })
})

describe('createOutbox', () => {
  it.each([
    [{ maxAttemps: 3 }, 'The options of createOutbox: unknown option maxAttemps (did you mean maxAttempts?)'],
    [{ schema: 5 }, 'schema is 5, but must be the name of a schema'],
    [{ maxPayloadBytes: '10' }, "maxPayloadBytes is '10', but must be a whole number"],
    [{ maxAttempts: '3' }, "maxAttempts is '3', but must be a whole number"],
    [{ events: 'order.paid' }, "events is 'order.paid', but must be an object of schemas"],
    [null, 'The options of createOutbox: null was given, but they must be an object'],
  ])('createOutbox(%o) is refused: %s', (options, message) => {
    expect(fromJavaScript(createOutbox, options)).toThrow(message)
  })
})

describe('enqueue', () => {
  const event = { type: 'order.paid', payload: 1 }
  it.each([
    [event, { serialise: true }, 'SETTING_INVALID', 'unknown option serialise (did you mean serialize?)'],
    [event, { serialize: 'yes' }, 'SETTING_INVALID', "serialize is 'yes', but must be true or false"],
    [event, 5, 'SETTING_INVALID', 'The options of enqueue: a value of type number was given'],
    [
      { ...event, ordering_key: 'a' },
      undefined,
      'EVENT_INVALID',
      'event has the unknown field ordering_key (did you mean orderingKey?)',
    ],
    [
      [event, { ...event, avaliableAt: new Date() }],
      undefined,
      'EVENT_INVALID',
      'events[1] has the unknown field avaliableAt (did you mean availableAt?)',
    ],
  ])('enqueue(db, %o, %o) is refused, and nothing is written', async (given, options, code, message) => {
    const outcome = enqueue(db, given as never, options as never)
    await expect(outcome).rejects.toMatchObject({ code, message: expect.stringContaining(message) })
    const { rows } = await db.query({ text: 'select 1 from leasehold.outbox' })
    expect(rows).toEqual([])
  })
})

it.each([
  ['natsPublisher', natsPublisher],
  ['rabbitPublisher', rabbitPublisher],
  ['redisPublisher', redisPublisher],
  ['kafkaPublisher', kafkaPublisher],
  ['httpPublisher', httpPublisher],
  ['stdoutPublisher', stdoutPublisher],
  ['webhooksPublisher', webhooksPublisher],
])('%s refuses an option that it does not know, with a suggestion', (name, publisher) => {
  const message = `The options of ${name}: unknown option maxbatches (did you mean maxBatch?)`
  expect(fromJavaScript(publisher, { maxbatches: 5 })).toThrow(message)
})

it('handlers refuses options that it does not know, and handlers that are no functions', () => {
  expect(fromJavaScript(handlers, {}, { otherwize: 'dead' })).toThrow(
    'The options of handlers: unknown option otherwize (did you mean otherwise?)',
  )
  expect(fromJavaScript(handlers, { 'order.paid': 'ship' })).toThrow(
    "The option 'order.paid' of the handlers publisher cannot be 'ship'. Give a function",
  )
})
