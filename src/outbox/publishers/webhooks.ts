/** Events to the endpoints that want them: each becomes deliveries, which dispatchers send. */
import type { OutboxEvent } from '../event.ts'
import type { Answer, PublishContext, Publisher } from '../publisher.ts'
import { openDatabase } from '../../postgres/database.ts'
import { within } from '../../postgres/deadline.ts'
import { isServerError } from '../../postgres/failures.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { type Writer, writerOf } from '../../transactions/writers.ts'
import { fanOut, fanOutSql, type Outgoing, webhookBody } from '../../webhooks/send/fan-out.ts'
import { checkEventType, checkTenant, isWanted } from '../../webhooks/subscription.ts'
import { PermanentError } from '../../worker/completion/outcome.ts'
import { refuse, wholeNumber } from './options.ts'
import { answerTo, DONE, settled } from './publish-each.ts'
import { untilAborted } from '../../worker/waiting.ts'
import { unavailable } from './unavailable.ts'

export interface WebhooksPublisherOptions {
  /** The database with the endpoints and their deliveries: the outbox's own, or another. */
  readonly connectionString?: string
  /** A pool you have already: a `pg` Pool or a `Database`. The publisher never closes it. */
  readonly db?: Writer
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string
  /** Whose event it is. Default: nobody's in particular. */
  readonly tenant?: (event: OutboxEvent) => string
  /** Only these types, as an endpoint names them: `order.paid`, `order.*`. Default: all. */
  readonly types?: readonly string[]
  /** How long the database may take for a batch. Default 10,000. */
  readonly timeoutMs?: number
  /** The most events of one statement. Default 100. */
  readonly maxBatch?: number
}

/** For a statement at a time and a probe. */
const MAX_CONNECTIONS = 2

/**
 * An event is published once its deliveries are committed. They have its id: published twice, because a relay died in
 * between, it is sent to each endpoint once.
 */
export function webhooksPublisher(options: WebhooksPublisherOptions): Publisher {
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
      // Should it be committed after all: sent again it is the same event.
      if (await within(timeoutMs, running)) return running
      running.catch(() => {})
      throw unavailable('webhooks', `had no answer of the database within ${timeoutMs} ms`)
    })
  }

  async function send(signal: AbortSignal, events: readonly Outgoing[]): Promise<void> {
    try {
      await bounded(signal, async () => fanOut(writer, statement, events))
    } catch (error) {
      throw signal.aborted ? error : meaningOf(error)
    }
  }

  /** What becomes of each alone, once the database has refused all of them together. */
  async function sendEach(signal: AbortSignal, events: readonly Outgoing[]): Promise<Answer[]> {
    const answers: Answer[] = []
    for (const event of events) {
      try {
        await send(signal, [event])
        answers.push(DONE)
      } catch (error) {
        if (signal.aborted) throw error
        answers.push(answerTo(error))
      }
    }
    return answers
  }

  /** An answer where there is nothing to send: nobody asked for it, or it cannot be sent. */
  function prepared(event: OutboxEvent): Outgoing | Answer {
    if (!isWanted(types, event.type)) return DONE
    try {
      return outgoing(event, tenant(event))
    } catch (error) {
      return answerTo(error)
    }
  }

  return {
    name: 'webhooks',
    maxBatch,
    async publish(events: readonly OutboxEvent[], { signal }: PublishContext) {
      const ready = events.map(prepared)
      const toSend = ready.filter(isOutgoing)
      const answers = ready.map((each): Answer => (isOutgoing(each) ? DONE : each))
      if (toSend.length === 0) return answers
      try {
        await send(signal, toSend)
        return answers
      } catch (error) {
        // One that the database will never take is no reason to give up the others.
        if (!(error instanceof PermanentError)) throw error
        const each = toSend.length === 1 ? [answerTo(error)] : await sendEach(signal, toSend)
        const alone = each.values()
        return settled(ready.map((one) => (isOutgoing(one) ? (alone.next().value ?? DONE) : one)))
      }
    },
    async probe(signal) {
      await bounded(signal, async () => writer.query(probeStatement, []))
    },
    close,
  }
}

function isOutgoing(each: Outgoing | Answer): each is Outgoing {
  return 'body' in each
}

function outgoing(event: OutboxEvent, tenant: string): Outgoing {
  const [problem] = checkTenant('tenant', tenant)
  // Whoever wrote the function can put it right, and then it is sent.
  if (problem !== undefined) throw new TypeError(`the option tenant of the webhooks publisher: ${problem}`)
  const { type, orderingKey, headers, eventId, createdAt, payload } = event
  return {
    type,
    tenant,
    orderingKey,
    headers,
    eventId,
    availableAt: undefined,
    body: webhookBody(type, createdAt, JSON.stringify(payload ?? null)),
  }
}

/** SQLSTATE classes that speak of what was to be written: data, integrity, limits of size. */
const OF_THE_EVENT = /^(?:22|23|54)/

/** Anything else is the database's trouble, also a table that is not there yet or may not be written to. */
function meaningOf(error: unknown): Error {
  if (isServerError(error) && OF_THE_EVENT.test(error.code ?? '')) {
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
  // It may hold a password: it is not repeated.
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
