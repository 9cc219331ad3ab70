/** The producer's side of the outbox: checks events and writes them in the caller's transaction, in one statement. */
import { LeaseholdError } from '../../errors.ts'
import { eventsText } from '../../messages/json.ts'
import type {
  AnyPayloads,
  EventPayloads,
  EventSchemas,
  PayloadsOf,
  SchemasOf,
} from '../../messages/schemas.ts'
import { withTraceHeaders } from '../../messages/trace.ts'
import {
  type CheckedEvent,
  checkEvents,
  type CheckOwn,
  isWhole,
  type ProducerOptions,
  producerRules,
  describeValue,
} from '../../messages/validate.ts'
import { namesOf, refuseUnknownOptions, unknownNames } from '../../nearest.ts'
import { transactionOf, writerOf } from '../../transactions/adapters.ts'
import { nameOf, type Often } from '../../transactions/naming.ts'
import type { AdaptedWriter, Writer, WriterRow } from '../../transactions/writer.ts'
import type { NewEvent } from '../event.ts'
import { enqueueManySql, enqueueOneSql, serializeSql } from './sql.ts'

export interface OutboxOptions<Schemas = EventSchemas> extends ProducerOptions<Schemas> {
  /** An event is dead after this many failed attempts; `null`: never. Default 25. Each event can set its own. */
  readonly maxAttempts?: number | null | undefined
  /**
   * Whether the statement that writes one event is prepared, which halves what the server pays for it. Default: where it is
   * safe, which is on a client of `pg` without a pooler before it, and with postgres.js. `true`: also behind a pooler that
   * knows prepared statements, on a `Database`, and with Knex. `false`: never.
   */
  readonly prepare?: boolean | undefined
}

export interface Outbox<Payloads extends EventPayloads = AnyPayloads> {
  readonly enqueue: Enqueue<Payloads>
}

export interface EnqueueOptions {
  /**
   * Publish the events of a key in the order in which their transactions commit. Other transactions that serialize the
   * same key wait until this one ends. Without it, the events of two transactions that overlap are published in the order
   * in which `enqueue` was called. Needs a transaction.
   */
  readonly serialize?: boolean | undefined
}

/** What became of an event that was given to `enqueue`. */
export interface Enqueued {
  /** The id of its row in the outbox. */
  readonly id: string
  /** By which consumers recognise the event; generated where none was given. */
  readonly eventId: string
  /** `true`: an event of this id exists already, `id` is its row, and nothing was written. */
  readonly duplicate: boolean
}

export interface Enqueue<Payloads extends EventPayloads = AnyPayloads> {
  /**
   * Writes events in the caller's transaction: they are published if it commits, and never existed if it does not.
   *
   * @param tx whatever holds the transaction: a `pg` client, the `sql` of postgres.js, a Kysely, Drizzle, Prisma,
   *   Knex or TypeORM transaction, a transaction of Leasehold's own `Database`, or any `{ query(text, values) }`. Outside a
   *   transaction (a pool) the call is a transaction of its own.
   * @param event one event, or an array of events; an array is written in one statement, all or none.
   * @returns for one event one `Enqueued`; for an array an array of the same length, in the same order.
   */
  (tx: Writer, event: NewEvent<Payloads>, options?: EnqueueOptions): Promise<Enqueued>
  (tx: Writer, events: readonly NewEvent<Payloads>[], options?: EnqueueOptions): Promise<readonly Enqueued[]>
  (
    tx: Writer,
    events: NewEvent<Payloads> | readonly NewEvent<Payloads>[],
    options?: EnqueueOptions,
  ): Promise<Enqueued | readonly Enqueued[]>
}

const OPTION_NAMES = namesOf<OutboxOptions>({
  schema: true,
  events: true,
  maxPayloadBytes: true,
  maxAttempts: true,
  prepare: true,
})
const ENQUEUE_OPTION_NAMES = namesOf<EnqueueOptions>({ serialize: true })
const FIELD_NAMES = namesOf<NewEvent>({
  type: true,
  payload: true,
  orderingKey: true,
  headers: true,
  availableAt: true,
  eventId: true,
  maxAttempts: true,
})

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
  refuseUnknownOptions('createOutbox', options, OPTION_NAMES)
  const maxAttempts = options.maxAttempts === undefined ? DEFAULT_MAX_ATTEMPTS : options.maxAttempts
  const { schema, ...checks } = producerRules('createOutbox', options, [
    ...checkMaxAttempts('maxAttempts', maxAttempts),
    ...checkPrepare(options.prepare),
  ])
  const rules = { ...checks, target: 'this outbox', verb: 'enqueue' }
  // The texts do not depend on the events: they are built once.
  const statements = {
    enqueueOne: enqueueOneSql(schema),
    enqueueMany: enqueueManySql(schema),
    serialize: serializeSql(schema),
  }
  const often: Often = {
    name: nameOf('enqueue', statements.enqueueOne),
    prepare: options.prepare,
    processIdIn: (rows) => Number(wordsOf(rows)[3]),
  }
  const checkOwn: CheckOwn<Pick<CheckedOutboxEvent, 'maxAttempts'>> = (event, label) => {
    const { maxAttempts: own = maxAttempts } = event
    return {
      problems: [
        // A misspelt field must not be ignored: without its ordering key, say, an event has no order.
        ...unknownNames(event, FIELD_NAMES, 'field').map((problem) => `${label} has the ${problem}`),
        ...checkMaxAttempts(`${label}.maxAttempts`, own),
      ],
      // If it is anything else, the problem above refuses the event.
      own: { maxAttempts: own as number | null },
    }
  }

  async function write(
    tx: Writer,
    events: readonly unknown[],
    labelOf: (index: number) => string,
    options: EnqueueOptions,
  ): Promise<readonly Enqueued[]> {
    const { serialize = false } = checkedOptions(options)
    const writer = serialize ? await transactionOf(tx, 'enqueue with serialize') : writerOf(tx)
    const checked = await checkEvents(events, labelOf, rules, checkOwn)
    if (checked.length === 0) return []
    if (serialize) await serializeKeys(writer, statements, checked)
    const traced = await withTraceHeaders(checked)
    const [only] = traced
    return only !== undefined && traced.length === 1
      ? [await writeEvent(writer, statements, often, only)]
      : writeEvents(writer, statements, traced)
  }

  async function enqueue(tx: Writer, event: NewEvent, options?: EnqueueOptions): Promise<Enqueued>
  async function enqueue(
    tx: Writer,
    events: readonly NewEvent[],
    options?: EnqueueOptions,
  ): Promise<readonly Enqueued[]>
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
 * Writes events in the caller's transaction, without types or schemas for their payloads; `createOutbox` has those.
 *
 * ```ts
 * await enqueue(tx, { type: 'order.paid', payload: { id: 'o-1' } })
 * ```
 */
export const enqueue: Enqueue = createOutbox().enqueue

function checkedOptions(options: EnqueueOptions): EnqueueOptions {
  refuseUnknownOptions('enqueue', options, ENQUEUE_OPTION_NAMES)
  const serialize: unknown = options.serialize
  if (serialize === undefined || typeof serialize === 'boolean') return options
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The options of enqueue: serialize is ${describeValue(serialize)}, but must be true or false.`,
    { remedy: 'Correct the options named.' },
  )
}

function checkMaxAttempts(path: string, value: unknown): string[] {
  if (value === null || isWhole(value, 1, MAX_INT)) return []
  return [
    `${path} is ${describeValue(value)}, but must be a whole number from 1 to ${MAX_INT}, or null for no limit`,
  ]
}

function checkPrepare(value: unknown): string[] {
  return value === undefined || typeof value === 'boolean'
    ? []
    : [`prepare is ${describeValue(value)}, but must be true, false or left out`]
}

/** Array.isArray does not narrow a readonly array in a union. */
function isList(given: NewEvent | readonly NewEvent[]): given is readonly NewEvent[] {
  return Array.isArray(given)
}

type CheckedOutboxEvent = CheckedEvent & { readonly maxAttempts: number | null }

type Statements = Readonly<Record<'enqueueOne' | 'enqueueMany' | 'serialize', string>>

/**
 * Makes the order of each key its order of commit: other transactions that serialize the key wait until this one ends. It
 * is a statement of its own, so that ids are assigned after the lock has been taken.
 */
async function serializeKeys(
  writer: AdaptedWriter,
  statements: Statements,
  events: readonly CheckedOutboxEvent[],
): Promise<void> {
  const keys = new Set(events.flatMap(({ orderingKey }) => (orderingKey === undefined ? [] : [orderingKey])))
  if (keys.size > 0) await writer.query(statements.serialize, [JSON.stringify([...keys])])
}

/** Writes one event, and reads `<id> <event id> written|found <process id>`. */
async function writeEvent(
  writer: AdaptedWriter,
  statements: Statements,
  often: Often,
  event: CheckedOutboxEvent,
): Promise<Enqueued> {
  const { eventId, type, orderingKey, payload, headers, availableAt, maxAttempts } = event
  const values = [
    eventId ?? null,
    type,
    orderingKey ?? null,
    payload,
    JSON.stringify(headers),
    availableAt ?? null,
    maxAttempts === null ? null : String(maxAttempts),
  ]
  const { rows } = await writer.query(statements.enqueueOne, values, often)
  const [id, writtenId, outcome] = wordsOf(rows)
  if (id === undefined || writtenId === undefined) throw neitherWrittenNorFound(event)
  return { id, eventId: writtenId, duplicate: outcome === 'found' }
}

function wordsOf(rows: readonly WriterRow[]): readonly string[] {
  const answer = rows[0]?.['event']
  return typeof answer === 'string' ? answer.split(' ') : []
}

/** Writes the events in one statement, and reports on them in the order in which they were given. */
async function writeEvents(
  writer: AdaptedWriter,
  statements: Statements,
  events: readonly CheckedOutboxEvent[],
): Promise<readonly Enqueued[]> {
  /** Where each event id was first given; any later event of the same id is a duplicate. */
  const positions = new Map<string, number>()
  for (const [position, { eventId }] of events.entries())
    if (eventId !== undefined && !positions.has(eventId)) positions.set(eventId, position)
  const isFirst = ({ eventId }: CheckedOutboxEvent, position: number): boolean =>
    eventId === undefined || positions.get(eventId) === position

  const texts = events.flatMap((event, position) =>
    isFirst(event, position) ? [eventText(event, position)] : [],
  )
  const { rows } = await writer.query(statements.enqueueMany, [eventsText(texts)])
  const ids = idsIn(rows)
  const written = new Set(rows.flatMap((row) => (row['written'] === true ? [row['event']] : [])))
  // The others were written without an id, in the order in which they were given: that is the order of their rows.
  const generated = [...ids]
    .filter(([eventId]) => !positions.has(eventId))
    .sort(([, a], [, b]) => (BigInt(a) < BigInt(b) ? -1 : 1))
    .values()
  return events.map((event, position) => {
    const eventId = event.eventId ?? generated.next().value?.[0]
    const id = eventId === undefined ? undefined : ids.get(eventId)
    if (eventId === undefined || id === undefined) throw neitherWrittenNorFound(event)
    return { id, eventId, duplicate: !isFirst(event, position) || !written.has(eventId) }
  })
}

function idsIn(rows: readonly WriterRow[]): ReadonlyMap<string, string> {
  return new Map(
    rows.flatMap(({ event, id }) =>
      typeof event === 'string' && typeof id === 'string' ? [[event, id] as const] : [],
    ),
  )
}

function eventText(event: CheckedOutboxEvent, position: number): string {
  const { eventId, type, orderingKey, headers, availableAt, maxAttempts, payload } = event
  const fields = JSON.stringify({
    position,
    event_id: eventId,
    event_type: type,
    ordering_key: orderingKey,
    headers,
    available_at: availableAt,
    max_attempts: maxAttempts,
  })
  // The payload is JSON already.
  return `${fields.slice(0, -1)},"payload":${payload}}`
}

function neitherWrittenNorFound({ type, eventId }: CheckedOutboxEvent): LeaseholdError {
  return new LeaseholdError(
    'WRITER_INVALID',
    `The ${type} event${eventId === undefined ? '' : ` ${eventId}`} was neither written nor found: what was given as the transaction did not answer with rows, or somebody removed the event at that moment.`,
    { remedy: 'Its query(text, values) must resolve to the rows, or to { rows }.' },
  )
}
