import { LeaseholdError } from '../errors.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { checkEventId, checkText, isWhole } from '../messages/validate.ts'
import { transactionOf, writerOf } from '../transactions/adapters.ts'
import type { Writer } from '../transactions/writer.ts'

/** Whether the effect ran and what it returned, or that it had run before. */
export type Once<Result> =
  | { readonly ran: true; readonly result: Result }
  | { readonly ran: false; readonly result: undefined }

export interface InboxOptions {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string | undefined
}

/**
 * Runs an effect once for an event, however often the event arrives, as long as everything the effect does is part of the
 * caller's transaction.
 *
 * ```ts
 * await db.transaction(async (tx) => {
 *   await once(tx, 'billing', event.eventId, async () => addToInvoice(tx, event.payload))
 * })
 * ```
 *
 * A concurrent call for the same consumer and event waits for the first one's transaction. If that commits, the effect
 * does not run a second time; if it rolls back, the effect runs here.
 *
 * @param consumer the name of the consumer: each consumer processes each event once.
 * @param eventId the event's id as it arrived (`leasehold-event-id`).
 * @param effect when it throws, the event is not remembered; let the error roll the transaction back.
 */
export async function once<Result>(
  tx: Writer,
  consumer: string,
  eventId: string,
  effect: () => Promise<Result> | Result,
  { schema = 'leasehold' }: InboxOptions = {},
): Promise<Once<Result>> {
  refuse([...checkConsumer(consumer), ...checkEventId('eventId', eventId)])
  const writer = await transactionOf(tx, 'once()')
  const { rows } = await writer.query(rememberSql(schema), [consumer, eventId])
  if (rows.length === 0) return { ran: false, result: undefined }
  try {
    return { ran: true, result: await effect() }
  } catch (error) {
    // For a caller that catches the error and commits all the same. In a failed transaction this statement fails too, and
    // then the entry is rolled back anyway.
    await writer.query(forgetSql(schema), [consumer, eventId]).catch(() => undefined)
    throw error
  }
}

/** The primary key of the table has it, and an index entry has a limit. */
const MAX_CONSUMER_BYTES = 255

function checkConsumer(consumer: unknown): string[] {
  const bytes = typeof consumer === 'string' ? Buffer.byteLength(consumer) : 0
  return bytes > MAX_CONSUMER_BYTES
    ? [`consumer has ${bytes} bytes, but can have at most ${MAX_CONSUMER_BYTES}`]
    : checkText('consumer', consumer, 'the name of the consumer')
}

export interface ForgetOptions extends InboxOptions {
  /** The most rows of one DELETE. Default 10,000. */
  readonly batch?: number | undefined
  readonly signal?: AbortSignal | undefined
}

/**
 * Removes entries of events that were processed so long ago that they will not be delivered any more, in batches, so that
 * no transaction gets long. Give it a pool or a database, not a transaction. Returns how many entries it removed.
 */
export async function forgetInbox(
  db: Writer,
  olderThanMs: number,
  { schema = 'leasehold', batch = 10_000, signal }: ForgetOptions = {},
): Promise<number> {
  refuse([
    ...(Number.isFinite(olderThanMs) && olderThanMs >= 0
      ? []
      : [`olderThanMs is ${olderThanMs}, but must be a number of milliseconds from 0`]),
    ...(isWhole(batch, 1, 1_000_000)
      ? []
      : [`batch is ${batch}, but must be a whole number from 1 to 1000000`]),
  ])
  const writer = writerOf(db)
  let forgotten = 0
  for (;;) {
    if (signal?.aborted === true) return forgotten
    const { rows } = await writer.query(forgetOldSql(schema), [String(olderThanMs), String(batch)])
    const count = Number(rows[0]?.['forgotten'] ?? 0)
    forgotten += count
    if (count < batch) return forgotten
  }
}

/** The unique index makes a concurrent insert wait for the transaction of the first. */
function rememberSql(schema: string): string {
  return `insert into ${quoteQualified(schema, 'inbox')} (consumer, event_id)
values ($1::text, $2::text::uuid)
on conflict do nothing
returning true as remembered`
}

function forgetSql(schema: string): string {
  return `delete from ${quoteQualified(schema, 'inbox')}
where consumer = $1::text and event_id = $2::text::uuid`
}

/**
 * Removes the oldest entries; `$1` is their age in milliseconds and `$2` the maximum number. Concurrent calls skip each
 * other's rows. Rows are deleted by ctid, which cannot change while they are locked: a join by the primary key would be
 * planned as a sequential scan.
 */
export function forgetOldSql(schema: string): string {
  const inbox = quoteQualified(schema, 'inbox')
  return `/* leasehold:forget inbox */
with old as materialized (
  select ctid
  from ${inbox}
  where processed_at < now() - $1::text::float8 * interval '1 millisecond'
  order by processed_at
  limit $2::text::int
  for update skip locked
),
forgotten as (
  delete from ${inbox} where ctid = any (array(select ctid from old)) returning 1
)
select count(*)::int as forgotten from forgotten`
}

function refuse(problems: readonly string[]): void {
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `${problems.join('; ')}.`, { remedy: 'Correct what is named.' })
}
