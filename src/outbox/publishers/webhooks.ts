/** Events to subscribed webhook endpoints: each event becomes deliveries, which dispatchers send. */
import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { openDatabase } from '../../postgres/database.ts'
import { untilAborted, within } from '../../timeout.ts'
import { isServerError } from '../../postgres/failures.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { fanOut, fanOutSql, type Outgoing, webhookBody } from '../../webhooks/send/fan-out.ts'
import { checkEventType, checkTenant, isWanted } from '../../webhooks/subscription.ts'
import { done, PermanentError } from '../../worker/completion/outcome.ts'
import { writerOf } from '../../transactions/adapters.ts'
import type { Writer } from '../../transactions/writer.ts'
import type { OutboxEvent } from '../event.ts'
import type { Answer, PublishContext, Publisher } from '../publisher.ts'
import { jsonOf, timeOf } from './envelope.ts'
import {
  answerFor,
  publishTogether,
  refuse,
  throwIfAllSaturated,
  unavailable,
  wholeNumber,
} from './publishing.ts'

export interface WebhooksPublisherOptions {
  /** The database with the endpoints and their deliveries: the outbox's own, or another. */
  readonly connectionString?: string
  /** A pool you have already: a `pg` Pool or a `Database`. The publisher never closes it. */
  readonly db?: Writer
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string
  /** The tenant of an event. Default: none. */
  readonly tenant?: (event: OutboxEvent) => string
  /** Only these types, as an endpoint names them: `order.paid`, `order.*`. Default: all. */
  readonly types?: readonly string[]
  /** How long the database may take for a batch. Default 10,000. */
  readonly timeoutMs?: number
  /** The most events of one statement. Default 100. */
  readonly maxBatch?: number
}

const OPTION_NAMES = namesOf<WebhooksPublisherOptions>({
  connectionString: true,
  db: true,
  schema: true,
  tenant: true,
  types: true,
  timeoutMs: true,
  maxBatch: true,
})

/** One for the statement of a batch, one for the probe. */
const MAX_CONNECTIONS = 2

/**
 * An event is published once its deliveries are committed. They carry its id: if it is published twice, because a relay
 * died in between, each endpoint still gets it once.
 */
export function webhooksPublisher(options: WebhooksPublisherOptions): Publisher {
  refuseUnknownOptions('webhooksPublisher', options, OPTION_NAMES)
  const { schema = 'leasehold', tenant = () => '', types = [] } = options
  const timeoutMs = wholeNumber('webhooks', 'timeoutMs', options.timeoutMs ?? 10_000)
  const maxBatch = wholeNumber('webhooks', 'maxBatch', options.maxBatch ?? 100)
  if (schema === '') refuse('webhooks', 'schema', schema, 'Give the name of a schema.')
  const [problem] = types.flatMap((type, i) => checkEventType(`types[${i}]`, type))
  if (problem !== undefined) refuse('webhooks', 'types', types, `${problem}.`)
  const { writer, close } = connect(options, timeoutMs)
  const statement = fanOutSql(schema)
  const probeStatement = `select 1 as one from ${quoteQualified(schema, 'webhook_endpoints')} limit 1`

  async function bounded<Result>(signal: AbortSignal, run: () => Promise<Result>): Promise<Result> {
    return untilAborted(signal, async () => {
      const running = run()
      // If it commits after all, publishing the event once more adds no delivery.
      if (await within(timeoutMs, running)) return running
      running.catch(() => {})
      throw unavailable('webhooks', `had no answer from the database within ${timeoutMs} ms`)
    })
  }

  async function send(signal: AbortSignal, events: readonly Outgoing[]): Promise<void> {
    try {
      await bounded(signal, async () => fanOut(writer, statement, events))
    } catch (error) {
      throw signal.aborted ? error : classified(error)
    }
  }

  /** Sends each event alone, after the database has refused them together. */
  async function sendEach(signal: AbortSignal, events: readonly Outgoing[]): Promise<Answer[]> {
    const answers: Answer[] = []
    for (const event of events) {
      try {
        await send(signal, [event])
        answers.push(done())
      } catch (error) {
        if (signal.aborted) throw error
        answers.push(answerFor(error))
      }
    }
    return answers
  }

  async function sendTogether(signal: AbortSignal, events: readonly Outgoing[]): Promise<readonly Answer[]> {
    try {
      await send(signal, events)
      return events.map(() => done())
    } catch (error) {
      // One event that the database will never take must not fail the others.
      if (!(error instanceof PermanentError)) throw error
      return events.length === 1 ? [answerFor(error)] : throwIfAllSaturated(await sendEach(signal, events))
    }
  }

  return {
    name: 'webhooks',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      return publishTogether(
        events,
        (event) => (isWanted(types, event.type) ? outgoing(event, tenant(event)) : undefined),
        async (toSend) => sendTogether(signal, toSend),
      )
    },
    async probe(signal) {
      await bounded(signal, async () => writer.query(probeStatement, []))
    },
    close,
  }
}

function outgoing(event: OutboxEvent, tenant: string): Outgoing {
  const [problem] = checkTenant('tenant', tenant)
  // A retry and not dead: once the function is corrected, the event is sent.
  if (problem !== undefined) throw new TypeError(`the option tenant of the webhooks publisher: ${problem}`)
  const { type, orderingKey, headers, eventId, payload } = event
  return {
    type,
    tenant,
    orderingKey,
    headers,
    eventId,
    availableAt: undefined,
    body: webhookBody(type, timeOf(event), jsonOf(payload)),
  }
}

/** SQLSTATE classes that concern the data to be written: data, integrity, program limits. */
const EVENT_ERROR = /^(?:22|23|54)/

/** Any other error concerns the database, including a table that does not exist or may not be written to. */
function classified(error: unknown): Error {
  if (isServerError(error) && EVENT_ERROR.test(error.code ?? '')) {
    return new PermanentError(`it cannot be sent: ${error.message}`)
  }
  return unavailable('webhooks', 'cannot write deliveries', error)
}

function connect(
  { connectionString, db }: WebhooksPublisherOptions,
  timeoutMs: number,
): { readonly writer: ReturnType<typeof writerOf>; readonly close: () => Promise<void> } {
  if (db !== undefined) return { writer: writerOf(db), close: async () => {} }
  if (connectionString === undefined) {
    return refuse('webhooks', 'connectionString', undefined, 'Give either connectionString or db.')
  }
  // The error does not repeat it: it may contain a password.
  if (!/^postgres(?:ql)?:\/\//.test(connectionString)) {
    refuse('webhooks', 'connectionString', undefined, 'Give a URL that begins with postgresql://.')
  }
  const own = openDatabase({
    url: connectionString,
    applicationName: 'leasehold webhooks publisher',
    maxConnections: MAX_CONNECTIONS,
    queryTimeoutMs: timeoutMs,
  })
  return { writer: writerOf(own), close: async () => own.close() }
}
