/** The worker of the outbox: hands events to a publisher and decides what a failure means for an event. */
import { LeaseholdError } from '../errors.ts'
import type { RetryPolicy } from '../lease/retry-policy.ts'
import { isTracing, withTraces } from '../messages/trace.ts'
import type { HandlerContext } from '../worker/context.ts'
import { dead, type Outcome, PermanentError, SaturatedError } from '../worker/completion/outcome.ts'
import { namesOf, refuseUnknownOptions, unknownNames } from '../nearest.ts'
import { describeValue, isWhole } from '../messages/validate.ts'
import { tokenAsText } from '../stringifiable.ts'
import { DECLARED_SETTING_NAMES, type DeclaredSettings } from '../worker/settings.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { repeatedRetention, type Retention } from './admin/retention.ts'
import { Batches } from './batches.ts'
import type { OutboxEvent } from './event.ts'
import { type Answer, checkedAnswers, type Publisher, reasonOf } from './publisher.ts'
import { type OnFailure, type OutboxRow, outboxTable } from './table.ts'

export interface RelayOptions {
  readonly publisher: Publisher
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** What becomes of an ordering key when an event of it fails. Default `block`. */
  readonly onFailure?: OnFailure
  readonly settings?: DeclaredSettings
  /** How long a failed event waits for its next attempt. The maximum of attempts is stored in the event (`maxAttempts`). */
  readonly retry?: Partial<RetryPolicy> & {
    /** An event that fails at this age, by the database's clock, is dead. Default: no limit. */
    readonly maxAgeMs?: number
  }
  /** How long finished events stay in the table; `false`: this relay removes none. */
  readonly retention?: Retention | false
}

/** The name under which the outbox's worker is started, woken and configured. */
export const OUTBOX = 'outbox'

const PROBE_EVERY_MS = 5_000
const RETENTION_EVERY_MS = 60_000
const DEFAULT_MAX_BATCH = 100

/** The worker of the outbox: hand it to `startRuntime`, or list it under `workers` in `leasehold.config`. */
export function relay(options: RelayOptions): WorkDeclaration<OutboxRow> {
  refuseInvalidOptions(options)
  const { publisher, schema, onFailure = 'block', settings, retention = {} } = options
  const { maxAgeMs, ...retryPolicy } = options.retry ?? {}
  const maxBatch = publisher.maxBatch ?? DEFAULT_MAX_BATCH
  const limits = { onFailure, maxAgeMs }
  return {
    name: OUTBOX,
    table: outboxTable({ schema, onFailure, retry: retryPolicy }),
    wake: true,
    handle:
      maxBatch === 1 ? publishOneByOne(publisher, limits) : publishInBatches(publisher, maxBatch, limits),
    describe: ({ event_type: eventType, ordering_key: key }) =>
      key === null ? { eventType } : { eventType, orderingKey: key },
    // Enough slots to fill a batch.
    settings: { ...(maxBatch === 1 ? {} : { concurrency: maxBatch }), ...settings },
    bucket: 'all',
    ...(publisher.probe === undefined
      ? {}
      : { probe: { everyMs: PROBE_EVERY_MS, check: async (signal) => publisher.probe?.(signal) } }),
    ...(retention === false
      ? {}
      : {
          maintenance: {
            everyMs: RETENTION_EVERY_MS,
            settings: retention,
            run: repeatedRetention({ ...retention, schema }),
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
      const events = [new RelayedEvent(context)]
      const answers = isTracing()
        ? await withTraces(events, publisher.name, async (traced) => publisher.publish(traced, context))
        : await publisher.publish(events, context)
      // Most events take this way, which allocates nothing more.
      if (answers === undefined) return undefined
      const answer: Answer | undefined = checkedAnswers(answers, 1)?.[0]
      if (answer instanceof Error) throw answer
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
      return limitRetries(limits, await batches.add(new RelayedEvent(context), context), context)
    } catch (error) {
      return outcomeOfError(limits, error, context)
    }
  }
}

/** Turns a retry into dead where the ordering policy or the age of the event asks for it (LIFE-08). */
function limitRetries(
  limits: RetryLimits,
  outcome: Outcome | void,
  context: HandlerContext<OutboxRow>,
): Outcome | void {
  if (outcome === undefined || outcome.name !== 'retry') return outcome
  const error = outcome.args['error'] ?? 'the publisher gave no reason'
  if (isLastFailure(limits, context)) return dead(error)
  return { ...outcome, args: { ...outcome.args, error } }
}

function isLastFailure({ onFailure, maxAgeMs }: RetryLimits, context: HandlerContext<OutboxRow>): boolean {
  const { row, signal } = context
  // The relay has to stop, or has lost the lease. That is no failure of the event; the worker decides what follows.
  if (signal.aborted) throw signal.reason
  if (onFailure !== 'block' && row.ordering_key !== null) return true
  return (
    maxAgeMs !== undefined && context.databaseTime().getTime() - asDate(row.created_at).getTime() >= maxAgeMs
  )
}

/**
 * What follows from an error that a publisher threw, or returned for the event. It is thrown on where that is possible: the
 * worker reports a thrown error with its stack. After a `SaturatedError` it releases the event and pauses claiming.
 */
function outcomeOfError(limits: RetryLimits, thrown: unknown, context: HandlerContext<OutboxRow>): Outcome {
  if (thrown instanceof SaturatedError || thrown instanceof PermanentError) throw thrown
  const error = reasonOf(thrown)
  if (!isLastFailure(limits, context)) throw error
  if (error instanceof Error) throw permanent(error)
  return dead(error)
}

/** A `PermanentError` that reads like the error it was made of. */
function permanent(cause: Error): PermanentError {
  const error = new PermanentError(cause.message, { cause })
  Object.defineProperty(error, 'name', { value: cause.name })
  return Object.assign(error, { stack: cause.stack })
}

/** An event as publishers get it. JSON.stringify writes its token as a text; a method of a class costs no event anything. */
class RelayedEvent implements OutboxEvent {
  readonly id: string
  readonly eventId: string
  readonly type: string
  readonly payload: unknown
  readonly orderingKey: string | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly createdAt: Date
  readonly attempt: number
  readonly token: bigint

  constructor({ row, token, attempt }: HandlerContext<OutboxRow>) {
    this.id = row.id
    this.eventId = row.event_id
    this.type = row.event_type
    this.payload = row.payload
    this.orderingKey = row.ordering_key ?? undefined
    this.headers = textHeaders(row.headers)
    this.createdAt = asDate(row.created_at)
    this.attempt = attempt
    this.token = token
  }

  toJSON(): object {
    return tokenAsText<OutboxEvent>(this)
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

const OPTION_NAMES = namesOf<RelayOptions>({
  publisher: true,
  schema: true,
  onFailure: true,
  settings: true,
  retry: true,
  retention: true,
})
const RETRY_NAMES = namesOf<NonNullable<RelayOptions['retry']>>({
  firstMs: true,
  factor: true,
  longestMs: true,
  jitter: true,
  maxAgeMs: true,
})
const RETENTION_NAMES = namesOf<Retention>({
  publishedMs: true,
  deadMs: true,
  batch: true,
  pauseMs: true,
})

/** Refuses options that cannot work, with every problem. */
function refuseInvalidOptions(options: RelayOptions): void {
  refuseUnknownOptions('relay', options, OPTION_NAMES)
  // From JavaScript anything may be given.
  const {
    publisher,
    schema,
    onFailure,
    settings,
    retry,
    retention,
  }: { [Name in keyof RelayOptions]: unknown } = options
  const problems = [
    ...publisherProblems(publisher),
    ...(schema === undefined || (typeof schema === 'string' && schema !== '')
      ? []
      : [`schema is ${describeValue(schema)}, but must be the name of a schema`]),
    ...(['block', 'skip', 'park', undefined].some((policy) => policy === onFailure)
      ? []
      : [`onFailure is ${describeValue(onFailure)}, but must be block, skip or park`]),
    ...objectProblems('settings', settings, DECLARED_SETTING_NAMES),
    ...objectProblems('retry', retry, RETRY_NAMES),
    ...(retention === false ? [] : objectProblems('retention', retention, RETENTION_NAMES, ', or false')),
    ...ageProblems(isRecord(retry) ? retry['maxAgeMs'] : undefined),
  ]
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The options of relay: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

function publisherProblems(publisher: unknown): string[] {
  if (!isRecord(publisher) || typeof publisher['publish'] !== 'function') {
    return [
      `publisher is ${describeValue(publisher)}, but must be one of leasehold/publishers/*, or an object with publish(events, context)`,
    ]
  }
  const { maxBatch } = publisher
  return maxBatch === undefined || isWhole(maxBatch, 1, Number.MAX_SAFE_INTEGER)
    ? []
    : [`publisher.maxBatch is ${describeValue(maxBatch)}, but must be a whole number from 1`]
}

function objectProblems(name: string, value: unknown, known: readonly string[], also = ''): string[] {
  if (value === undefined) return []
  if (!isRecord(value)) return [`${name} is ${describeValue(value)}, but must be an object${also}`]
  return unknownNames(value, known).map((problem) => `${name}: ${problem}`)
}

function ageProblems(maxAgeMs: unknown): string[] {
  return maxAgeMs === undefined || (typeof maxAgeMs === 'number' && maxAgeMs > 0)
    ? []
    : [`retry.maxAgeMs is ${describeValue(maxAgeMs)}, but must be a number of milliseconds above 0`]
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
