/** Producers in the two shapes that the Kafka publisher takes. They record what they are given. */
import type {
  KafkaMessage,
  KafkaProducer,
  KafkaRecordMetadata,
} from '../../../src/outbox/publishers/kafka.ts'

interface Sent extends KafkaMessage {
  readonly topic: string
  readonly acks: number | undefined
}

type Rule = (sent: Sent) => void

/** Answers as kafkajs does: one promise for a batch, which fails as a whole. */
export function kafkaJsProducer(rule: Rule = () => {}) {
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
export function librdkafkaProducer(rule: Rule = () => {}) {
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
