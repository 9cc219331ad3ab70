/**
 * Events to topics of Kafka, through a producer you have: one of `kafkajs`, or of the KafkaJS face of
 * `@confluentinc/kafka-javascript`. Connecting it, and closing it, is yours.
 */
import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { untilAborted, within } from '../../timeout.ts'
import { done, type Outcome, PermanentError, retry, SaturatedError } from '../../worker/completion/outcome.ts'
import type { OutboxEvent } from '../event.ts'
import type { Answer, PublishContext, Publisher } from '../publisher.ts'
import { BINDINGS, encode, type Envelope, usableEnvelope } from './envelope.ts'
import { publishEach, publishTogether, refuse, unavailable, wholeNumber } from './publishing.ts'

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
  /** The topic, or where an event goes. Default `leasehold`: with its type, a producer could choose any topic. */
  readonly topic?: string | ((event: OutboxEvent) => string)
  readonly envelope?: Envelope
  /** How long the acknowledgement of a batch may take. Default 30000. */
  readonly timeoutMs?: number
  /** The most events of one call. Default 100. */
  readonly maxBatch?: number
  /** Whether the brokers are well; a producer cannot be asked. `async () => { await admin.describeCluster() }` */
  readonly probe?: (signal: AbortSignal) => Promise<void>
}

const OPTION_NAMES = namesOf<KafkaPublisherOptions>({
  producer: true,
  topic: true,
  envelope: true,
  timeoutMs: true,
  maxBatch: true,
  probe: true,
})

const ALL_REPLICAS = -1

interface PreparedMessage {
  readonly event: OutboxEvent
  readonly topic: string
  readonly message: KafkaMessage
}

/** Publishes to topics of Kafka through your producer. An event is published when the producer has confirmed it. */
export function kafkaPublisher(options: KafkaPublisherOptions): Publisher {
  refuseUnknownOptions('kafkaPublisher', options, OPTION_NAMES)
  const { producer, topic = 'leasehold', probe } = options
  const envelope = usableEnvelope('kafka', options.envelope)
  const timeoutMs = wholeNumber('kafka', 'timeoutMs', options.timeoutMs ?? 30_000)
  const maxBatch = wholeNumber('kafka', 'maxBatch', options.maxBatch ?? 100)
  if (topic === '') refuse('kafka', 'topic', topic, 'Give the name of a topic.')
  const topicOf = typeof topic === 'function' ? topic : () => topic
  // librdkafka has acks in its configuration and refuses them here; it alone can be flushed.
  const isLibrdkafka = 'flush' in producer
  const acks = isLibrdkafka ? {} : { acks: ALL_REPLICAS }

  // Built for each call: producers modify the messages they get.
  function kafkaMessage(event: OutboxEvent): KafkaMessage {
    const { headers, contentType, body } = encode(event, envelope, BINDINGS.kafka)
    return {
      key: event.orderingKey ?? event.eventId,
      value: body,
      headers: { ...headers, 'content-type': contentType },
      timestamp: String(event.createdAt.getTime()),
    }
  }

  async function sendOne(event: OutboxEvent): Promise<Outcome> {
    try {
      const record = { topic: topicOf(event), messages: [kafkaMessage(event)], ...acks }
      return refusals(await producer.send(record)).get(record.topic) ?? done()
    } catch (error) {
      throw classified(error)
    }
  }

  function unanswered(): SaturatedError {
    return unavailable('kafka', `had no acknowledgement within ${timeoutMs} ms`)
  }

  async function sendEach(events: readonly OutboxEvent[], signal: AbortSignal) {
    return publishEach(events, {
      signal,
      timeoutMs,
      send: sendOne,
      unansweredError: async () => unanswered(),
    })
  }

  /** `undefined` when the batch was refused and the error does not say which message caused it. */
  async function sendBatch(batch: readonly PreparedMessage[]): Promise<readonly Outcome[] | undefined> {
    const byTopic = new Map<string, KafkaMessage[]>()
    for (const { topic: name, message } of batch) {
      const group = byTopic.get(name)
      if (group === undefined) byTopic.set(name, [message])
      else group.push(message)
    }
    const topicMessages = [...byTopic].map(([name, messages]) => ({ topic: name, messages }))
    try {
      const refused = refusals(await producer.sendBatch({ topicMessages, ...acks }))
      return batch.map(({ topic: name }) => refused.get(name) ?? done())
    } catch (error) {
      const reason = classified(error)
      if (reason instanceof SaturatedError) throw reason
      return undefined
    }
  }

  async function sendTogether(
    batch: readonly PreparedMessage[],
    signal: AbortSignal,
  ): Promise<readonly Answer[]> {
    const sent = sendBatch(batch)
    if (!(await untilAborted(signal, async () => within(timeoutMs, sent)))) {
      // Whatever becomes of it later is ignored.
      sent.catch(() => {})
      throw unanswered()
    }
    const outcomes = await sent
    if (outcomes !== undefined) return outcomes
    // Messages that were accepted are sent twice, with the same event id, so that one bad event does not fail the others.
    const events = batch.map(({ event }) => event)
    return sendEach(events, signal)
  }

  return {
    name: 'kafka',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      // librdkafka batches by itself and answers for each message.
      if (isLibrdkafka || events.length === 1) return sendEach(events, signal)
      return publishTogether(
        events,
        (event) => ({ event, topic: topicOf(event), message: kafkaMessage(event) }),
        async (batch) => sendTogether(batch, signal),
      )
    },
    ...(probe === undefined ? {} : { probe }),
  }
}

/** Topics of which a partition answered with an error. The metadata do not say which message it was. */
function refusals(metadata: readonly KafkaRecordMetadata[] | undefined): Map<string | undefined, Outcome> {
  const refused = (metadata ?? []).filter(({ errorCode }) => errorCode !== undefined && errorCode !== 0)
  return new Map(
    refused.map(({ topicName, errorCode }) => [
      topicName,
      retry({ error: new Error(`the topic '${topicName}' answered with error code ${errorCode}`) }),
    ]),
  )
}

const BROKER_UNAVAILABLE_NAMES = new Set([
  'KafkaJSConnectionError',
  'KafkaJSConnectionClosedError',
  'KafkaJSRequestTimeoutError',
  'KafkaJSBrokerNotFound',
  'KafkaJSLockTimeout',
  'KafkaJSTimeout',
])

/** Error codes of librdkafka: transport, all brokers down, timed out, message timed out, queue full, not connected. */
const LIBRDKAFKA_UNAVAILABLE_CODES = new Set([-195, -187, -185, -192, -184, -172])
/** Error codes of the protocol: no leader, not the leader, timed out, no coordinator, too few replicas, storage. */
const CLUSTER_UNAVAILABLE_CODES = new Set([5, 6, 7, 8, 9, 13, 19, 20, 56])
const MESSAGE_TOO_LARGE_CODES = new Set([10, 18])

/** Tells brokers that are unavailable, and an event that is too large, from any other error of either producer. */
function classified(error: unknown): unknown {
  const chain = causes(error)
  const codes = chain.map((each) => ('code' in each ? Number(each.code) : Number.NaN))
  if (codes.some((code) => MESSAGE_TOO_LARGE_CODES.has(code))) return new PermanentError(chain[0]?.message)
  const isUnavailable =
    codes.some((code) => LIBRDKAFKA_UNAVAILABLE_CODES.has(code) || CLUSTER_UNAVAILABLE_CODES.has(code)) ||
    chain.some(
      ({ name, message }) => BROKER_UNAVAILABLE_NAMES.has(name) || /producer is disconnected/i.test(message),
    )
  return isUnavailable ? unavailable('kafka', 'cannot reach the brokers', error) : error
}

/** The error and its causes: kafkajs wraps the error of the last retry. */
function causes(error: unknown): Error[] {
  if (!(error instanceof Error)) return []
  const wrapped = 'errors' in error && Array.isArray(error.errors) ? error.errors : []
  return [error, ...causes(error.cause), ...wrapped.flatMap((each) => causes(each))]
}
