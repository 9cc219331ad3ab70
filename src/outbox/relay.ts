/** The worker of the outbox: hands events to a publisher and decides what a failure means for an event. */
import { LeaseholdError } from '../errors.ts'
import type { RetryPolicy } from '../lease/retry-policy.ts'
import { isTracing, withTraces } from '../messages/trace.ts'
import type { HandlerContext } from '../worker/context.ts'
import { dead, type Outcome, PermanentError, retry, SaturatedError } from '../worker/completion/outcome.ts'
import type { WorkerSettings } from '../worker/settings.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { applyRetention, type Retention } from './admin/retention.ts'
import { Batches } from './batches.ts'
import type { OutboxEvent } from './event.ts'
import { type Answer, checkedAnswers, type Publisher } from './publisher.ts'
import { type OnFailure, type OutboxRow, outboxTable } from './table.ts'

export interface RelayOptions {
  readonly publisher: Publisher
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** What becomes of an ordering key when an event of it fails. Default `block`. */
  readonly onFailure?: OnFailure
  readonly settings?: Partial<WorkerSettings>
  /** How long a failed event waits for its next attempt. The maximum of attempts is stored in the event (`maxAttempts`). */
  readonly retry?: Partial<RetryPolicy> & {
    /** An event that fails at this age, by the database's clock, is dead. Default: no limit. */
    readonly maxAgeMs?: number
  }
  /** How long finished events stay in the table; `false`: this relay removes none. */
  readonly retention?: Retention | false
  readonly bucket?: number
}

/** The name under which the outbox's worker is started, woken and configured. */
export const OUTBOX = 'outbox'

const PROBE_EVERY_MS = 5_000
const RETENTION_EVERY_MS = 60_000
const DEFAULT_MAX_BATCH = 100

/** The worker of the outbox: hand it to `startRuntime`, or list it under `workers` in `leasehold.config`. */
export function relay(options: RelayOptions): WorkDeclaration<OutboxRow> {
  refuseInvalidOptions(options)
  const { publisher, schema, onFailure = 'block', settings, retention = {}, bucket } = options
  const { maxAgeMs, ...retryPolicy } = options.retry ?? {}
  const maxBatch = publisher.maxBatch ?? DEFAULT_MAX_BATCH
  const limits = { onFailure, maxAgeMs }
  return {
    name: OUTBOX,
    table: outboxTable({ schema, onFailure, retry: retryPolicy }),
    wake: true,
    handle:
      maxBatch === 1 ? publishOneByOne(publisher, limits) : publishInBatches(publisher, maxBatch, limits),
    // Enough slots to fill a batch.
    settings: { ...(maxBatch === 1 ? {} : { concurrency: maxBatch }), ...settings },
    ...(bucket === undefined ? {} : { bucket }),
    ...(publisher.probe === undefined
      ? {}
      : { probe: { everyMs: PROBE_EVERY_MS, check: async (signal) => publisher.probe?.(signal) } }),
    ...(retention === false
      ? {}
      : {
          maintenance: {
            everyMs: RETENTION_EVERY_MS,
            run: async (db, signal) => applyRetention(db, { ...retention, schema, signal }),
          },
        }),
    close: async () => publisher.close?.(),
  }
}

type Handle = WorkDeclaration<OutboxRow>['handle']

/** Under which failures an event is dead instead of being retried. The maximum of attempts is the table's. */
interface RetryLimits {
  readonly onFailure: OnFailure
  readonly maxAgeMs: number | undefined
}

function publishOneByOne(publisher: Publisher, limits: RetryLimits): Handle {
  return async (context) => {
    try {
      const events = [eventOf(context)]
      const answers = isTracing()
        ? await withTraces(events, publisher.name, async (traced) => publisher.publish(traced, context))
        : await publisher.publish(events, context)
      // Most events take this way, which allocates nothing more.
      if (answers === undefined) return undefined
      const answer: Answer | undefined = checkedAnswers(answers, 1)?.[0]
      if (answer instanceof SaturatedError) throw answer
      return limitRetries(limits, answer, context)
    } catch (error) {
      return outcomeOfError(limits, error, context)
    }
  }
}

function publishInBatches(publisher: Publisher, maxBatch: number, limits: RetryLimits): Handle {
  const batches = new Batches(maxBatch, async (events, context) =>
    withTraces(events, publisher.name, async (traced) => publisher.publish(traced, context)),
  )
  return async (context) => {
    try {
      return limitRetries(limits, await batches.add(eventOf(context), context), context)
    } catch (error) {
      return outcomeOfError(limits, error, context)
    }
  }
}

/** Turns a retry into dead where the ordering policy or the age of the event asks for it (LIFE-08). */
function limitRetries(
  { onFailure, maxAgeMs }: RetryLimits,
  outcome: Outcome | void,
  context: HandlerContext<OutboxRow>,
): Outcome | void {
  if (outcome === undefined || outcome.name !== 'retry') return outcome
  // The relay has to stop, or has lost the lease. That is no failure of the event; the worker decides what follows.
  if (context.signal.aborted) throw context.signal.reason
  const error = outcome.args['error'] ?? 'the publisher gave no reason'
  const { row } = context
  if (onFailure !== 'block' && row.ordering_key !== null) return dead(error)
  const isTooOld =
    maxAgeMs !== undefined && context.databaseTime().getTime() - asDate(row.created_at).getTime() >= maxAgeMs
  if (isTooOld) return dead(error)
  return { ...outcome, args: { ...outcome.args, error } }
}

function outcomeOfError(
  limits: RetryLimits,
  error: unknown,
  context: HandlerContext<OutboxRow>,
): Outcome | void {
  // The worker releases the event without counting an attempt, and pauses claiming.
  if (error instanceof SaturatedError) throw error
  if (error instanceof PermanentError) return dead(error)
  return limitRetries(limits, retry({ error }), context)
}

function eventOf({ row, token, attempt }: HandlerContext<OutboxRow>): OutboxEvent {
  return {
    id: row.id,
    eventId: row.event_id,
    type: row.event_type,
    payload: row.payload,
    orderingKey: row.ordering_key ?? undefined,
    headers: textHeaders(row.headers),
    createdAt: asDate(row.created_at),
    attempt,
    token,
  }
}

/** Of an infinite time, `pg` makes a number. Then the Date is invalid, and publishers refuse the event. */
function asDate(time: Date | number | string): Date {
  return time instanceof Date ? time : new Date(time)
}

/** Headers that were written with SQL may hold any JSON; brokers take only texts. */
function textHeaders(headers: OutboxRow['headers']): Readonly<Record<string, string>> {
  let texts: Record<string, string> | undefined
  // The object was parsed from JSON, so for-in meets only own properties. It is usually empty, and then nothing is copied.
  for (const name in headers) {
    const value: unknown = headers[name]
    if (typeof value === 'string') continue
    texts ??= { ...headers }
    texts[name] = headerJson(name, value)
  }
  return texts ?? headers
}

function headerJson(name: string, value: unknown): string {
  try {
    return JSON.stringify(value)
  } catch {
    // Written before the table had its limits: the stack of V8 ends at a few thousand levels.
    throw new PermanentError(`the header ${name} is nested too deeply to be written as JSON`)
  }
}

function refuseInvalidOptions({ publisher, onFailure, retry: given }: RelayOptions): void {
  const policies: readonly unknown[] = ['block', 'skip', 'park', undefined]
  if (!policies.includes(onFailure)) {
    throw new LeaseholdError('SETTING_INVALID', `onFailure is ${JSON.stringify(onFailure)}.`, {
      remedy: 'Give block, skip or park.',
    })
  }
  if (typeof publisher?.publish !== 'function') {
    throw new LeaseholdError(
      'SETTING_INVALID',
      'The relay has no publisher: `publisher.publish` is no function.',
      {
        remedy: 'Give it one of leasehold/publishers/*, or an object with publish(events, context).',
      },
    )
  }
  const { maxBatch } = publisher
  if (maxBatch !== undefined && (!Number.isInteger(maxBatch) || maxBatch < 1)) {
    throw new LeaseholdError(
      'SETTING_INVALID',
      `The maxBatch of the publisher ${publisher.name} is ${maxBatch}.`,
      {
        remedy: 'Give a whole number from 1.',
      },
    )
  }
  const maxAgeMs = given?.maxAgeMs
  if (maxAgeMs !== undefined && !(maxAgeMs > 0)) {
    throw new LeaseholdError('SETTING_INVALID', `retry.maxAgeMs is ${maxAgeMs}.`, {
      remedy: 'Give a number of milliseconds above 0, or leave it out.',
    })
  }
}
