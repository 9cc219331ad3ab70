import { PermanentError } from '../../worker/completion/outcome.ts'
import { unavailable } from './unavailable.ts'

const OF_THE_BROKERS = new Set([
  'KafkaJSConnectionError',
  'KafkaJSConnectionClosedError',
  'KafkaJSRequestTimeoutError',
  'KafkaJSBrokerNotFound',
  'KafkaJSLockTimeout',
  'KafkaJSTimeout',
])

/** Codes of librdkafka: transport, all brokers down, timed out, message timed out, queue full, not connected. */
const OF_THE_TRANSPORT = new Set([-195, -187, -185, -192, -184, -172])
/** Codes of the protocol: no leader, not the leader, timed out, no coordinator, too few replicas, storage. */
const OF_THE_CLUSTER = new Set([5, 6, 7, 8, 9, 13, 19, 20, 56])
const MESSAGE_TOO_LARGE = new Set([10, 18])

/** What an error of either producer means for the events that were sent. */
export function kafkaMeaning(error: unknown): unknown {
  const chain = causes(error)
  const codes = chain.map((each) => ('code' in each ? Number(each.code) : Number.NaN))
  if (codes.some((code) => MESSAGE_TOO_LARGE.has(code))) return new PermanentError(chain[0]?.message)
  const isAway =
    codes.some((code) => OF_THE_TRANSPORT.has(code) || OF_THE_CLUSTER.has(code)) ||
    chain.some(({ name, message }) => OF_THE_BROKERS.has(name) || /producer is disconnected/i.test(message))
  return isAway ? unavailable('kafka', 'cannot reach the brokers', error) : error
}

/** The error and what it came from: kafkajs wraps what it gave up on. */
function causes(error: unknown): Error[] {
  if (!(error instanceof Error)) return []
  const wrapped = 'errors' in error && Array.isArray(error.errors) ? error.errors : []
  return [error, ...causes(error.cause), ...wrapped.flatMap((each) => causes(each))]
}
