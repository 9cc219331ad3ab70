import type {
  AnyPayloads,
  EventPayloads,
  EventSchemas,
  PayloadsOf,
  SchemasOf,
} from '../../messages/schemas.ts'
import {
  type ProducerOptions,
  producerRules,
  checkEvents,
  type CheckOwn,
  describeValue,
} from '../../messages/validate.ts'
import { withTraceHeaders } from '../../messages/trace.ts'
import { unknownNames } from '../../nearest.ts'
import type { Writer } from '../../transactions/writer.ts'
import { writerOf } from '../../transactions/adapters.ts'
import { checkTenant } from '../subscription.ts'
import { fanOut, fanOutSql, type Sent, TRACE_HEADERS, webhookBody } from './fan-out.ts'

/** An event as a producer sends it. */
export type NewWebhook<Payloads extends EventPayloads = AnyPayloads> = {
  readonly [Type in keyof Payloads & string]: {
    readonly type: Type
    readonly payload: Payloads[Type]
    /** Whose event it is: only endpoints of this tenant receive it. Default: the empty text, the default tenant. */
    readonly tenant?: string | undefined
    /** An ordered endpoint receives the events of one key one at a time, in the order in which they were sent. */
    readonly orderingKey?: string | undefined
    /** A uuid, the `webhook-id`. An endpoint gets one delivery of it, however often it is sent. */
    readonly eventId?: string | undefined
    /** The trace of the event, if it is not the active one. No other headers are sent. */
    readonly headers?: TraceHeaders | undefined
    /** The event is not delivered before this time. */
    readonly availableAt?: Date | undefined
  }
}[keyof Payloads & string]

export type TraceHeaders = { readonly [Name in (typeof TRACE_HEADERS)[number]]?: string }

export type WebhooksOptions<Schemas = EventSchemas> = ProducerOptions<Schemas>

// A misspelt name must not be ignored: the compiler sees that these are all names.
const FIELD_NAMES = Object.keys({
  type: true,
  payload: true,
  tenant: true,
  orderingKey: true,
  eventId: true,
  headers: true,
  availableAt: true,
} satisfies Record<keyof NewWebhook, true>)
const OPTION_NAMES = Object.keys({
  schema: true,
  events: true,
  maxPayloadBytes: true,
} satisfies Record<keyof WebhooksOptions, true>)

export interface Webhooks<Payloads extends EventPayloads = AnyPayloads> {
  readonly send: Send<Payloads>
}

export interface Send<Payloads extends EventPayloads = AnyPayloads> {
  /**
   * Sends events in the caller's transaction: writes a delivery for every endpoint that has subscribed to the event. The
   * deliveries exist exactly if the transaction commits.
   *
   * @param tx the transaction: a `pg` client, the `sql` of postgres.js, a Kysely, Drizzle, Prisma, Knex or TypeORM
   *   transaction, a transaction of Leasehold's own `Database`, or any `{ query(text, values) }`. Given a pool, the call is a
   *   transaction of its own.
   * @param events one event or any number of them; their deliveries are written in one statement, all or none.
   * @returns for each event, in the order given, its id and how many deliveries were written.
   */
  (tx: Writer, events: readonly NewWebhook<Payloads>[]): Promise<readonly Sent[]>
  (tx: Writer, event: NewWebhook<Payloads>): Promise<Sent>
  (
    tx: Writer,
    events: NewWebhook<Payloads> | readonly NewWebhook<Payloads>[],
  ): Promise<Sent | readonly Sent[]>
}

/**
 * Makes a `send` that checks the types of events and, given schemas, their payloads.
 *
 * ```ts
 * const webhooks = createWebhooks<{ 'order.paid': { id: string } }>()
 * await webhooks.send(tx, { type: 'order.paid', payload: { id: 'o-1' }, tenant: 'acme' })
 * ```
 */
export function createWebhooks<Schemas extends EventSchemas>(
  options: WebhooksOptions<Schemas> & { readonly events: Schemas },
): Webhooks<PayloadsOf<Schemas>>
export function createWebhooks<Payloads extends EventPayloads = AnyPayloads>(
  options?: WebhooksOptions<SchemasOf<Payloads>>,
): Webhooks<Payloads>
export function createWebhooks(options: WebhooksOptions = {}): Webhooks {
  const isObject = typeof options === 'object' && options !== null && !Array.isArray(options)
  const { schema, ...checks } = producerRules(
    'createWebhooks',
    isObject ? options : {},
    isObject
      ? unknownNames(options, OPTION_NAMES, 'option')
      : [`they are ${describeValue(options)}, but must be an object`],
  )
  const rules = { ...checks, target: 'these webhooks', verb: 'send' }
  const statement = fanOutSql(schema)

  async function write(
    tx: Writer,
    events: readonly unknown[],
    labelOf: (index: number) => string,
  ): Promise<readonly Sent[]> {
    const writer = writerOf(tx)
    const checked = await checkEvents(events, labelOf, rules, checkOwn)
    if (checked.length === 0) return []
    const now = new Date()
    const traced = await withTraceHeaders(checked)
    return fanOut(
      writer,
      statement,
      traced.map((event) => ({ ...event, body: webhookBody(event.type, now, event.payload) })),
    )
  }

  async function send(tx: Writer, events: readonly NewWebhook[]): Promise<readonly Sent[]>
  async function send(tx: Writer, event: NewWebhook): Promise<Sent>
  async function send(tx: Writer, events: NewWebhook | readonly NewWebhook[]): Promise<Sent | readonly Sent[]>
  async function send(
    tx: Writer,
    given: NewWebhook | readonly NewWebhook[],
  ): Promise<Sent | readonly Sent[]> {
    if (isList(given)) return write(tx, given, (i) => `events[${i}]`)
    const [sent] = await write(tx, [given], () => 'event')
    if (sent === undefined) throw new Error('send returned no result for an event')
    return sent
  }

  return { send }
}

/**
 * Sends events in the caller's transaction, without checking their types or payloads; `createWebhooks` does that.
 *
 * ```ts
 * await send(tx, { type: 'order.paid', payload: { id: 'o-1' } })
 * ```
 */
export const send: Send = createWebhooks().send

const checkOwn: CheckOwn<{ readonly tenant: string }> = (event, label) => {
  const { tenant = '', headers } = event
  return {
    problems: [
      ...unknownNames(event, FIELD_NAMES, 'field').map((problem) => `${label} has the ${problem}`),
      ...checkTenant(`${label}.tenant`, tenant),
      ...checkTraceHeaders(`${label}.headers`, headers),
    ],
    // If it is not a text, the problems above refuse the event.
    own: { tenant: String(tenant) },
  }
}

/** Refuses every header but those of the trace, because endpoints belong to strangers. */
function checkTraceHeaders(path: string, headers: unknown): string[] {
  // A value that is not an object is reported by the checks that all events share.
  if (typeof headers !== 'object' || headers === null) return []
  const allowed: readonly string[] = TRACE_HEADERS
  return Object.keys(headers)
    .filter((name) => !allowed.includes(name.toLowerCase()))
    .map(
      (name) =>
        `${path} has ${describeValue(name)}, but only ${allowed.join(' and ')} are sent with an event; set other headers at the endpoint`,
    )
}

/** Array.isArray does not narrow a union to its readonly array. */
function isList(given: NewWebhook | readonly NewWebhook[]): given is readonly NewWebhook[] {
  return Array.isArray(given)
}
