/**
 * Events to topics of Kafka, through a producer you have: one of `kafkajs`, or of the KafkaJS face of
 * `@confluentinc/kafka-javascript`. Connecting it, and closing it, is yours.
 */
import type { OutboxEvent } from '../event.ts'
import type { PublishContext, Publisher } from '../publisher.ts'
import { within } from '../../postgres/deadline.ts'
import { type Outcome, retry, SaturatedError } from '../../worker/completion/outcome.ts'
import { BINDINGS, encode, type Envelope, usableEnvelope } from './cloudevents.ts'
import { kafkaMeaning } from './kafka-errors.ts'
import { refuse, wholeNumber } from './options.ts'
import { DONE, publishEach } from './publish-each.ts'
import { untilAborted } from '../../worker/waiting.ts'
import { unavailable } from './unavailable.ts'

export interface KafkaMessage {
  key: string
  value: string
  headers: Record<string, string>
  timestamp: string
}

export interface KafkaRecordMetadata {
  readonly topicName?: string
  readonly errorCode?: number
}

/** What is used of a producer. */
export interface KafkaProducer {
  send(record: { topic: string; messages: KafkaMessage[]; acks?: number }): Promise<KafkaRecordMetadata[]>
  sendBatch(batch: {
    topicMessages: { topic: string; messages: KafkaMessage[] }[]
    acks?: number
  }): Promise<KafkaRecordMetadata[]>
}

export interface KafkaPublisherOptions {
  /** Connected. That of `@confluentinc/kafka-javascript` must be made with `acks: -1`, which is its default. */
  readonly producer: KafkaProducer
  /** The topic, or where an event goes. Default: its type. */
  readonly topic?: string | ((event: OutboxEvent) => string)
  readonly envelope?: Envelope
  /** How long the acknowledgement of a batch may take. Default 30000. */
  readonly timeoutMs?: number
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
  /** Whether the brokers are well; a producer cannot be asked. `async () => { await admin.describeCluster() }` */
  readonly probe?: (signal: AbortSignal) => Promise<void>
}

const ALL_REPLICAS = -1

export function kafkaPublisher(options: KafkaPublisherOptions): Publisher {
  const { producer, topic, probe } = options
  const envelope = usableEnvelope('kafka', options.envelope)
  const timeoutMs = wholeNumber('kafka', 'timeoutMs', options.timeoutMs ?? 30_000)
  const maxBatch = wholeNumber('kafka', 'maxBatch', options.maxBatch ?? 100)
  if (topic === '') refuse('kafka', 'topic', topic, 'Give the name of a topic.')
  const topicOf = typeof topic === 'function' ? topic : (event: OutboxEvent) => topic ?? event.type
  // librdkafka has acks in its configuration and refuses them here; it alone can be flushed.
  const isLibrdkafka = 'flush' in producer
  const acks = isLibrdkafka ? {} : { acks: ALL_REPLICAS }

  // Made anew for each call: producers write into the messages they get.
  function messageOf(event: OutboxEvent): KafkaMessage {
    const { headers, contentType, body } = encode(event, envelope, BINDINGS.kafka)
    return {
      key: event.orderingKey ?? event.eventId,
      value: body,
      headers: { ...headers, 'content-type': contentType },
      timestamp: String(event.createdAt.getTime()),
    }
  }

  async function alone(event: OutboxEvent): Promise<Outcome> {
    try {
      const record = { topic: topicOf(event), messages: [messageOf(event)], ...acks }
      return refusals(await producer.send(record)).get(record.topic) ?? DONE
    } catch (error) {
      throw kafkaMeaning(error)
    }
  }

  function silence(): SaturatedError {
    return unavailable('kafka', `had no acknowledgement within ${timeoutMs} ms`)
  }

  async function eachAlone(events: readonly OutboxEvent[], signal: AbortSignal) {
    return publishEach(events, {
      signal,
      timeoutMs,
      send: alone,
      silence: async () => silence(),
    })
  }

  /** `undefined` when something in it was refused, and nobody says what. */
  async function together(events: readonly OutboxEvent[]): Promise<readonly Outcome[] | undefined> {
    const byTopic = new Map<string, OutboxEvent[]>()
    for (const event of events) {
      const group = byTopic.get(topicOf(event))
      if (group === undefined) byTopic.set(topicOf(event), [event])
      else group.push(event)
    }
    const topicMessages = [...byTopic].map(([name, group]) => ({
      topic: name,
      messages: group.map((event) => messageOf(event)),
    }))
    try {
      const refused = refusals(await producer.sendBatch({ topicMessages, ...acks }))
      return events.map((event) => refused.get(topicOf(event)) ?? DONE)
    } catch (error) {
      const meaning = kafkaMeaning(error)
      if (meaning instanceof SaturatedError) throw meaning
      return undefined
    }
  }

  return {
    name: 'kafka',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      // librdkafka batches by itself and answers for each message.
      if (isLibrdkafka || events.length === 1) return eachAlone(events, signal)
      const sent = together(events)
      if (!(await untilAborted(signal, async () => within(timeoutMs, sent)))) {
        // Its end is heard, and nobody's any more.
        sent.catch(() => {})
        throw silence()
      }
      const outcomes = await sent
      // What had got through arrives once more, with the same event id: better than to fail for a neighbour.
      return outcomes ?? eachAlone(events, signal)
    },
    ...(probe === undefined ? {} : { probe }),
  }
}

/** Topics of which a partition answered with an error; of which message it was, metadata do not say. */
function refusals(metadata: readonly KafkaRecordMetadata[] | undefined): Map<string | undefined, Outcome> {
  const refused = (metadata ?? []).filter(({ errorCode }) => errorCode !== undefined && errorCode !== 0)
  return new Map(
    refused.map(({ topicName, errorCode }) => [
      topicName,
      retry({ error: new Error(`the topic '${topicName}' answered with error code ${errorCode}`) }),
    ]),
  )
}
