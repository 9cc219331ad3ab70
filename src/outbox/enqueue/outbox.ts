import { type ProducerOptions, producerRules } from '../../messages/rules.ts'
import { withTraceHeaders } from '../../messages/trace-headers.ts'
import { checkEvents, type CheckOwn } from '../../messages/validate.ts'
import { isWhole, shown } from '../../messages/validate-fields.ts'
import type { EventSchemas, PayloadsOf, SchemasOf } from '../../messages/validate-schema.ts'
import { transactionOf, type Writer, writerOf } from '../../transactions/writers.ts'
import type { AnyPayloads, EventPayloads, NewEvent } from '../event.ts'
import {
  type CheckedOutboxEvent,
  type Enqueued,
  enqueueStatements,
  serializeKeys,
  writeEvents,
} from './enqueue.ts'

export interface OutboxOptions<Schemas = EventSchemas> extends ProducerOptions<Schemas> {
  /** After so many failed attempts an event is dead; `null`: never. Default 25. An event can say otherwise. */
  readonly maxAttempts?: number | null | undefined
}

export interface Outbox<Payloads extends EventPayloads = AnyPayloads> {
  readonly enqueue: Enqueue<Payloads>
}

export interface EnqueueOptions {
  /**
   * Publish the events of a key in the order in which their transactions commit. Other transactions that serialize the
   * same key wait until this one ends; without it, two that overlap are published in the order in which they called
   * `enqueue`. Needs a transaction.
   */
  readonly serialize?: boolean | undefined
}

export interface Enqueue<Payloads extends EventPayloads = AnyPayloads> {
  /**
   * Writes events in the caller's transaction: they are published if it commits, and were never there if it does not.
   *
   * @param tx whatever holds the transaction: a `pg` client, the `sql` of postgres.js, a Kysely, Drizzle, Prisma or
   *   Knex transaction, a transaction of Leasehold's own `Database`, or any `{ query(text, values) }`. Outside a
   *   transaction (a pool) the call is one by itself.
   * @param events one event or any number of them; they are written in one statement, all or none.
   * @returns for each event, in the order given, its ids and whether it was written or had been there before.
   */
  (tx: Writer, events: readonly NewEvent<Payloads>[], options?: EnqueueOptions): Promise<readonly Enqueued[]>
  (tx: Writer, event: NewEvent<Payloads>, options?: EnqueueOptions): Promise<Enqueued>
  (
    tx: Writer,
    events: NewEvent<Payloads> | readonly NewEvent<Payloads>[],
    options?: EnqueueOptions,
  ): Promise<Enqueued | readonly Enqueued[]>
}

const DEFAULT_MAX_ATTEMPTS = 25
const MAX_INT = 2_147_483_647

/**
 * The producer's side of an outbox.
 *
 * ```ts
 * const outbox = createOutbox<{ 'order.paid': { id: string } }>()
 * await outbox.enqueue(tx, { type: 'order.paid', payload: { id: 'o-1' }, orderingKey: 'o-1' })
 * ```
 */
export function createOutbox<Schemas extends EventSchemas>(
  options: OutboxOptions<Schemas> & { readonly events: Schemas },
): Outbox<PayloadsOf<Schemas>>
export function createOutbox<Payloads extends EventPayloads = AnyPayloads>(
  options?: OutboxOptions<SchemasOf<Payloads>>,
): Outbox<Payloads>
export function createOutbox(options: OutboxOptions = {}): Outbox {
  const maxAttempts = options.maxAttempts === undefined ? DEFAULT_MAX_ATTEMPTS : options.maxAttempts
  const { schema, ...checks } = producerRules(
    'createOutbox',
    options,
    checkMaxAttempts('maxAttempts', maxAttempts),
  )
  const rules = { ...checks, place: 'this outbox', verb: 'enqueue' }
  const statements = enqueueStatements(schema)
  const checkOwn: CheckOwn<Pick<CheckedOutboxEvent, 'maxAttempts'>> = (event, label) => {
    const { maxAttempts: own = maxAttempts } = event
    // Looked at beside it: where it is no such thing, the problem is what counts.
    return {
      problems: checkMaxAttempts(`${label}.maxAttempts`, own),
      own: { maxAttempts: own as number | null },
    }
  }

  async function write(
    tx: Writer,
    events: readonly unknown[],
    labelOf: (index: number) => string,
    { serialize = false }: EnqueueOptions,
  ): Promise<readonly Enqueued[]> {
    const writer = serialize ? await transactionOf(tx, 'enqueue with serialize') : writerOf(tx)
    const checked = await checkEvents(events, labelOf, rules, checkOwn)
    if (checked.length === 0) return []
    if (serialize) await serializeKeys(writer, statements, checked)
    return writeEvents(writer, statements, await withTraceHeaders(checked))
  }

  async function enqueue(
    tx: Writer,
    events: readonly NewEvent[],
    options?: EnqueueOptions,
  ): Promise<readonly Enqueued[]>
  async function enqueue(tx: Writer, event: NewEvent, options?: EnqueueOptions): Promise<Enqueued>
  async function enqueue(
    tx: Writer,
    events: NewEvent | readonly NewEvent[],
    options?: EnqueueOptions,
  ): Promise<Enqueued | readonly Enqueued[]>
  async function enqueue(
    tx: Writer,
    given: NewEvent | readonly NewEvent[],
    options: EnqueueOptions = {},
  ): Promise<Enqueued | readonly Enqueued[]> {
    if (isList(given)) return write(tx, given, (i) => `events[${i}]`, options)
    const [enqueued] = await write(tx, [given], () => 'event', options)
    if (enqueued === undefined) throw new Error('one event was written, and none was reported')
    return enqueued
  }

  return { enqueue }
}

/**
 * Writes events in the caller's transaction, without types or schemas of their payloads; `createOutbox` has those.
 *
 * ```ts
 * await enqueue(tx, { type: 'order.paid', payload: { id: 'o-1' } })
 * ```
 */
export const enqueue: Enqueue = createOutbox().enqueue

/** `maxAttempts`, of an event or of all. */
function checkMaxAttempts(path: string, value: unknown): string[] {
  if (value === null || isWhole(value, 1, MAX_INT)) return []
  return [`${path} is ${shown(value)}, but must be a whole number from 1 to ${MAX_INT}, or null for no limit`]
}

/** Array.isArray does not see a readonly array in a union. */
function isList(given: NewEvent | readonly NewEvent[]): given is readonly NewEvent[] {
  return Array.isArray(given)
}
