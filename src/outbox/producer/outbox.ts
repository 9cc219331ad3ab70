import { LeaseholdError } from '../../errors.ts'
import { type Enqueued, enqueueStatements, writeEvents } from './enqueue.ts'
import { type AnyPayloads, type EventPayloads, type NewEvent } from '../event.ts'
import { activeHeaders, hasTraceParent } from '../trace.ts'
import { type CheckedEvent, checkEvents, checkMaxAttempts, type EventRules, isWhole } from './validate.ts'
import { type EventSchemas, type PayloadsOf, type SchemasOf } from './validate-schema.ts'
import { type Writer, writerOf } from './writers.ts'

export interface OutboxOptions<Schemas = EventSchemas> {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string | undefined
  /**
   * A Standard Schema (Zod, Valibot, ArkType, …) for each event type. A payload is checked before anything is written,
   * and what its schema returns is what is written. Types that have no schema are refused.
   */
  readonly events?: Schemas | undefined
  /** The largest payload, as JSON. Default 262,144 (256 KiB). */
  readonly maxPayloadBytes?: number | undefined
  /** After so many failed attempts an event is dead; `null`: never. Default 25. An event can say otherwise. */
  readonly maxAttempts?: number | null | undefined
}

export interface Outbox<Payloads extends EventPayloads = AnyPayloads> {
  readonly enqueue: Enqueue<Payloads>
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
  (tx: Writer, events: readonly NewEvent<Payloads>[]): Promise<readonly Enqueued[]>
  (tx: Writer, event: NewEvent<Payloads>): Promise<Enqueued>
  (
    tx: Writer,
    events: NewEvent<Payloads> | readonly NewEvent<Payloads>[],
  ): Promise<Enqueued | readonly Enqueued[]>
}

const DEFAULT_MAX_PAYLOAD_BYTES = 262_144
const DEFAULT_MAX_ATTEMPTS = 25

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
  const rules = rulesOf(options)
  const statements = enqueueStatements(options.schema ?? 'leasehold')

  async function write(
    tx: Writer,
    events: readonly unknown[],
    labelOf: (index: number) => string,
  ): Promise<readonly Enqueued[]> {
    const writer = writerOf(tx)
    const checked = await checkEvents(events, labelOf, rules)
    if (checked.length === 0) return []
    return writeEvents(writer, statements, await withTraceHeaders(checked))
  }

  async function enqueue(tx: Writer, events: readonly NewEvent[]): Promise<readonly Enqueued[]>
  async function enqueue(tx: Writer, event: NewEvent): Promise<Enqueued>
  async function enqueue(
    tx: Writer,
    events: NewEvent | readonly NewEvent[],
  ): Promise<Enqueued | readonly Enqueued[]>
  async function enqueue(
    tx: Writer,
    given: NewEvent | readonly NewEvent[],
  ): Promise<Enqueued | readonly Enqueued[]> {
    if (isList(given)) return write(tx, given, (i) => `events[${i}]`)
    const [enqueued] = await write(tx, [given], () => 'event')
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

function rulesOf(options: OutboxOptions): EventRules {
  const { events: schemas, maxPayloadBytes = DEFAULT_MAX_PAYLOAD_BYTES } = options
  const maxAttempts = options.maxAttempts === undefined ? DEFAULT_MAX_ATTEMPTS : options.maxAttempts
  const problems = [
    ...checkMaxAttempts('maxAttempts', maxAttempts),
    ...(isWhole(maxPayloadBytes, 1, Number.MAX_SAFE_INTEGER)
      ? []
      : [`maxPayloadBytes is ${maxPayloadBytes}, but must be a whole number from 1`]),
    ...(options.schema === '' ? [`schema is '', but must be the name of a schema`] : []),
    ...Object.entries(schemas ?? {}).flatMap(([type, schema]) =>
      isStandardSchema(schema) ? [] : [`events[${JSON.stringify(type)}] is no Standard Schema (version 1)`],
    ),
  ]
  if (problems.length === 0) return { schemas, maxPayloadBytes, maxAttempts }
  throw new LeaseholdError('SETTING_INVALID', `The options of createOutbox: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

function isStandardSchema(schema: unknown): boolean {
  if ((typeof schema !== 'object' && typeof schema !== 'function') || schema === null) return false
  const standard: unknown = Reflect.get(schema, '~standard')
  return typeof standard === 'object' && standard !== null && Reflect.get(standard, 'version') === 1
}

/** Array.isArray does not see a readonly array in a union. */
function isList(given: NewEvent | readonly NewEvent[]): given is readonly NewEvent[] {
  return Array.isArray(given)
}

/** The trace that the events were written in travels with them, unless the producer has given another. */
async function withTraceHeaders(events: readonly CheckedEvent[]): Promise<readonly CheckedEvent[]> {
  const active = await activeHeaders()
  if (active === undefined) return events
  return events.map((event) =>
    hasTraceParent(event.headers) ? event : { ...event, headers: { ...active, ...event.headers } },
  )
}
