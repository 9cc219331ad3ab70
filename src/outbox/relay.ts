import { LeaseholdError } from '../errors.ts'
import type { RetryPolicy } from '../lease/retry-policy.ts'
import type { HandlerContext } from '../worker/context.ts'
import { dead, type Outcome, PermanentError, retry, SaturatedError } from '../worker/completion/outcome.ts'
import type { WorkerSettings } from '../worker/settings.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { checkedAnswers } from './answers.ts'
import { Batches } from './batches.ts'
import type { OutboxEvent } from './event.ts'
import type { Answer, Publisher } from './publisher.ts'
import { applyRetention, type Retention } from './admin/retention.ts'
import { isTracing } from '../messages/trace-api.ts'
import { withTraces } from './trace.ts'
import { type OnFailure, type OutboxRow, outboxTable } from './table.ts'

export interface RelayOptions {
  readonly publisher: Publisher
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** What becomes of an ordering key when an event of it fails. Default `block`. */
  readonly onFailure?: OnFailure
  readonly settings?: Partial<WorkerSettings>
  /** How long a failed event waits; how often it is tried at most stands in the event itself (`maxAttempts`). */
  readonly retry?: Partial<RetryPolicy> & {
    /** An event that fails at this age, by the database's clock, is dead. Default: no limit. */
    readonly maxAgeMs?: number
  }
  /** How long finished events are kept; `false`: for ever, or until somebody else removes them. */
  readonly retention?: Retention | false
  readonly bucket?: number
}

/** The name under which the outbox's worker is started, woken and set. */
export const OUTBOX = 'outbox'

const PROBE_EVERY_MS = 5_000
const RETENTION_EVERY_MS = 60_000
const DEFAULT_MAX_BATCH = 100

/** The worker of the outbox: hand it to `startRuntime`, or list it under `workers` in `leasehold.config`. */
export function relay(options: RelayOptions): WorkDeclaration<OutboxRow> {
  const { publisher, schema, onFailure = 'block', settings, retention = {}, bucket } = options
  const { maxAgeMs, ...retryPolicy } = options.retry ?? {}
  refuseUnknown(options)
  const maxBatch = publisher.maxBatch ?? DEFAULT_MAX_BATCH
  const limits = { onFailure, maxAgeMs }
  return {
    name: OUTBOX,
    table: outboxTable({ schema, onFailure, retry: retryPolicy }),
    wake: true,
    handle: maxBatch === 1 ? oneByOne(publisher, limits) : inBatches(publisher, maxBatch, limits),
    // A publisher that takes batches gets them: as many slots as fill one.
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

function oneByOne(publisher: Publisher, limits: Limits): Handle {
  return async (context) => {
    try {
      const events = [eventOf(context)]
      const answers = isTracing()
        ? await publishTraced(publisher, events, context)
        : await publisher.publish(events, context)
      // The way of most events, and nothing more is made for it.
      return answers === undefined ? undefined : answered(limits, answers, context)
    } catch (error) {
      return failed(limits, error, context)
    }
  }
}

async function publishTraced(
  publisher: Publisher,
  events: readonly OutboxEvent[],
  context: HandlerContext<OutboxRow>,
): Promise<readonly Answer[] | void> {
  return withTraces(events, publisher.name, async (traced) => publisher.publish(traced, context))
}

function answered(limits: Limits, answers: unknown, context: HandlerContext<OutboxRow>): Outcome | void {
  const answer = checkedAnswers(answers, 1)?.[0]
  return answer instanceof SaturatedError ? failed(limits, answer, context) : within(limits, answer, context)
}

function inBatches(publisher: Publisher, maxBatch: number, limits: Limits): Handle {
  const batches = new Batches<OutboxRow>(maxBatch, async (rows, context) =>
    withTraces(rows.map(eventOf), publisher.name, async (events) => publisher.publish(events, context)),
  )
  return async (context) => {
    try {
      return within(limits, await batches.add(context), context)
    } catch (error) {
      return failed(limits, error, context)
    }
  }
}

interface Limits {
  readonly onFailure: OnFailure
  readonly maxAgeMs: number | undefined
}

/** A failure that is one too many is dead (LIFE-08). The limit of attempts is the table's. */
function within(
  { onFailure, maxAgeMs }: Limits,
  outcome: Outcome | void,
  context: HandlerContext<OutboxRow>,
): Outcome | void {
  if (outcome === undefined || outcome.outcome !== 'retry') return outcome
  // A relay that has to stop, or has lost the lease, is not the event's fault; the worker knows what to do.
  if (context.signal.aborted) throw context.signal.reason
  const error = outcome.args['error'] ?? 'the publisher gave no reason'
  const { row } = context
  if (onFailure !== 'block' && row.ordering_key !== null) return dead(error)
  const isTooOld =
    maxAgeMs !== undefined && context.databaseTime().getTime() - row.created_at.getTime() >= maxAgeMs
  if (isTooOld) return dead(error)
  return { ...outcome, args: { ...outcome.args, error } }
}

function failed(limits: Limits, error: unknown, context: HandlerContext<OutboxRow>): Outcome | void {
  // Nobody's fault: the runtime gives the event back, and rests.
  if (error instanceof SaturatedError) throw error
  if (error instanceof PermanentError) return dead(error)
  return within(limits, retry({ error }), context)
}

function eventOf({ row, token, attempt }: HandlerContext<OutboxRow>): OutboxEvent {
  return {
    id: row.id,
    eventId: row.event_id,
    type: row.event_type,
    payload: row.payload,
    orderingKey: row.ordering_key ?? undefined,
    headers: textHeaders(row.headers),
    createdAt: row.created_at,
    attempt,
    token,
  }
}

/** Whoever writes with SQL may write other things than texts; brokers take nothing else. */
function textHeaders(headers: OutboxRow['headers']): Readonly<Record<string, string>> {
  let texts: Record<string, string> | undefined
  // They were read from JSON: there is nothing but what is theirs, and mostly nothing at all.
  for (const name in headers) {
    const value: unknown = headers[name]
    if (typeof value === 'string') continue
    texts ??= { ...headers }
    texts[name] = JSON.stringify(value) ?? ''
  }
  return texts ?? headers
}

function refuseUnknown({ publisher, onFailure, retry: given }: RelayOptions): void {
  const policies: readonly unknown[] = ['block', 'skip', 'park', undefined]
  if (!policies.includes(onFailure)) {
    throw new LeaseholdError('SETTING_INVALID', `onFailure is ${JSON.stringify(onFailure)}.`, {
      remedy: 'It is block, skip or park.',
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
