import type { AnyPayloads, EventPayloads } from '../../messages/event-payloads.ts'
import { type ProducerOptions, producerRules } from '../../messages/rules.ts'
import { withTraceHeaders } from '../../messages/trace-headers.ts'
import { checkEvents, type CheckOwn } from '../../messages/validate.ts'
import { shown } from '../../messages/validate-fields.ts'
import type { EventSchemas, PayloadsOf, SchemasOf } from '../../messages/validate-schema.ts'
import { type Writer, writerOf } from '../../transactions/writers.ts'
import { checkTenant } from '../tenant.ts'
import { webhookBody } from './body.ts'
import { type NewWebhook, type Sent, TRACE_HEADERS } from './event.ts'
import { fanOut } from './fan-out.ts'
import { fanOutSql } from './fan-out-sql.ts'

export type WebhooksOptions<Schemas = EventSchemas> = ProducerOptions<Schemas>

export interface Webhooks<Payloads extends EventPayloads = AnyPayloads> {
  readonly send: Send<Payloads>
}

export interface Send<Payloads extends EventPayloads = AnyPayloads> {
  /**
   * Sends events in the caller's transaction: a delivery is written for every endpoint that wants the event, which goes
   * out if the transaction commits, and was never there if it does not.
   *
   * @param tx whatever holds the transaction: a `pg` client, the `sql` of postgres.js, a Kysely, Drizzle, Prisma or
   *   Knex transaction, a transaction of Leasehold's own `Database`, or any `{ query(text, values) }`. Outside a
   *   transaction (a pool) the call is one by itself.
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
 * The sender's side of webhooks.
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
  const { schema, ...checks } = producerRules('createWebhooks', options)
  const rules = { ...checks, place: 'these webhooks', verb: 'send' }
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
    if (sent === undefined) throw new Error('one event was sent, and none was reported')
    return sent
  }

  return { send }
}

/**
 * Sends events in the caller's transaction, without types or schemas of their payloads; `createWebhooks` has those.
 *
 * ```ts
 * await send(tx, { type: 'order.paid', payload: { id: 'o-1' } })
 * ```
 */
export const send: Send = createWebhooks().send

const checkOwn: CheckOwn<{ readonly tenant: string }> = (event, label) => {
  const { tenant = '', headers } = event
  return {
    problems: [...checkTenant(`${label}.tenant`, tenant), ...checkTrace(`${label}.headers`, headers)],
    // Where it is no text, the problem is what counts.
    own: { tenant: String(tenant) },
  }
}

/** Whatever else a producer would like to send along: a stranger would get it. */
function checkTrace(path: string, headers: unknown): string[] {
  // What is no object is told of with the other headers.
  if (typeof headers !== 'object' || headers === null) return []
  const allowed: readonly string[] = TRACE_HEADERS
  return Object.keys(headers)
    .filter((name) => !allowed.includes(name.toLowerCase()))
    .map(
      (name) =>
        `${path} has ${shown(name)}, but only ${allowed.join(' and ')} travel with an event; others are set at the endpoint`,
    )
}

/** Array.isArray does not see a readonly array in a union. */
function isList(given: NewWebhook | readonly NewWebhook[]): given is readonly NewWebhook[] {
  return Array.isArray(given)
}
