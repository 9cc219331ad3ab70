import { LeaseholdError } from '../errors.ts'
import { retryPolicy, type RetryPolicy } from '../lease/retry-policy.ts'
import { checkText, describeValue, isWhole } from '../messages/validate.ts'
import { namesOf, unknownNames } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { HandlerLog } from '../worker/context.ts'

/** A job, as `plan` gets it. */
export interface SyncJob<Params = unknown> {
  readonly id: string
  readonly matrixId: string
  readonly params: Params
  /** Chunks that were synced before the job was created are synced once more. */
  readonly force: boolean
}

/** A part of a matrix. */
export interface SyncChunk<Query = unknown> {
  readonly matrixId: string
  /** What the plan yielded. */
  readonly query: Query
  readonly hash: string
}

interface SyncContext {
  /** The fencing token: grows with every claim. */
  readonly token: bigint
  /** 1 for the first. */
  readonly attempt: number
  /** Fires when the lease is lost or the runner has to stop. Stop working then. */
  readonly signal: AbortSignal
  readonly log: HandlerLog
  /** The runner's own connections, for handlers that have none: `db.transaction(async (tx) => …)`. */
  readonly db: Database
  /** Waits until this many calls may be made to the source. All runners share its rate. */
  readonly call: (calls?: number) => Promise<void>
}

export type PlanContext = SyncContext

export interface ChunkContext extends SyncContext {
  /**
   * Completes the chunk inside the handler's own transaction: its rows and its checkpoint commit together, so that the
   * effect happens exactly once. Throws `FENCED_OFF` when the lease is no longer current: let the transaction roll back.
   */
  readonly settleIn: (tx: Queryable, synced: Synced) => Promise<void>
}

/** The result of a chunk. */
export interface Synced {
  readonly rows: number
}

/** The external system, whose calls are limited for all runners together. */
export interface SyncSource {
  readonly name: string
  readonly perSecond: number
  /** Calls that may be made at once after a time without calls. Default 1. */
  readonly burst?: number
}

/** How a chunk or a plan that failed is retried. */
export interface SyncRetry extends RetryPolicy {
  /** After this many failed attempts it has failed for good. Expired leases count as attempts. Default 25. */
  readonly maxAttempts: number
}

/** How one kind of matrix is synced. */
export interface SyncDefinition<Query = unknown, Params = unknown> {
  /** Yields the query of each chunk. It may be an async generator, so that chunks are synced while the plan goes on. */
  plan(
    job: SyncJob<Params>,
    context: PlanContext,
  ): Iterable<Query> | AsyncIterable<Query> | Promise<Iterable<Query>>
  /** Syncs one chunk. Returns its result, unless it has settled in its own transaction. */
  syncChunk(chunk: SyncChunk<Query>, context: ChunkContext): Promise<Synced | void>
  /** Identifies a chunk within its matrix. Default: a hash of the query. */
  hash?(query: Query): string
  readonly source?: SyncSource
  /** How many chunks of this definition a runner syncs at once. Default 4. */
  readonly concurrency?: number
  readonly retry?: Partial<SyncRetry>
  /** What a failed chunk means: `finish` syncs the other chunks and then fails the job, `stop` fails it at once. Default `finish`. */
  readonly onChunkFailure?: 'finish' | 'stop'
}

/** With the default backoff, a release that crashes for an hour uses up about a dozen attempts. */
const DEFAULT_MAX_ATTEMPTS = 25

const NAME = /^[A-Za-z0-9][\w.-]{0,99}$/
const FIELDS = namesOf<SyncDefinition>({
  plan: true,
  syncChunk: true,
  hash: true,
  source: true,
  concurrency: true,
  retry: true,
  onChunkFailure: true,
})
const SOURCE_FIELDS = namesOf<SyncSource>({ name: true, perSecond: true, burst: true })
const RETRY_FIELDS = namesOf<SyncRetry>({
  firstMs: true,
  factor: true,
  longestMs: true,
  jitter: true,
  maxAttempts: true,
})

/** Refuses a definition that cannot work, naming all problems. */
export function checkDefinition(name: string, definition: SyncDefinition): void {
  const given: unknown = definition
  if (typeof given !== 'object' || given === null)
    throw new LeaseholdError(
      'SETTING_INVALID',
      `The sync ${name} cannot work: its definition is ${describeValue(given)}.`,
      { remedy: 'Give an object with plan and syncChunk.' },
    )
  const { source, concurrency, onChunkFailure, retry } = definition
  const isFunction = (field: 'plan' | 'syncChunk' | 'hash'): boolean =>
    typeof definition[field] === 'function'
  const policies: readonly unknown[] = ['finish', 'stop', undefined]
  const problems = [
    ...(NAME.test(name)
      ? []
      : [`its name ${JSON.stringify(name)} must be of letters, digits, ".", "_" and "-"`]),
    ...(isFunction('plan') ? [] : ['plan must be a function that yields chunks']),
    ...(isFunction('syncChunk') ? [] : ['syncChunk must be a function that does one chunk']),
    ...(!('hash' in definition) || isFunction('hash') ? [] : ['hash must be a function']),
    ...(concurrency === undefined || (Number.isInteger(concurrency) && concurrency >= 1)
      ? []
      : [`concurrency is ${concurrency}, but must be a whole number from 1`]),
    ...(policies.includes(onChunkFailure)
      ? []
      : [`onChunkFailure is ${JSON.stringify(onChunkFailure)}, but must be finish or stop`]),
    ...(source === undefined ? [] : sourceProblems(source)),
    ...(retry === undefined ? [] : unknownNames(new Object(retry), RETRY_FIELDS, 'field of retry')),
    ...unknownNames(definition, FIELDS, 'field'),
  ]
  if (problems.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The sync ${name} cannot work: ${problems.join('; ')}.`)
}

/** Completes the policy of a definition and refuses one that cannot work. */
export function syncRetry({
  maxAttempts = DEFAULT_MAX_ATTEMPTS,
  ...policy
}: Partial<SyncRetry> = {}): SyncRetry {
  if (Number.isInteger(maxAttempts) && maxAttempts >= 1) return { ...retryPolicy(policy), maxAttempts }
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The retry policy cannot work: retry.maxAttempts is ${maxAttempts}, but must be a whole number from 1.`,
  )
}

const MAX_SOURCE_BYTES = 500
const MAX_INT = 2_147_483_647
/** One call in eleven days; and more than a database could count. */
const MIN_PER_SECOND = 1e-6
const MAX_PER_SECOND = 1e6

function sourceProblems(source: SyncSource): string[] {
  const { name, perSecond, burst = 1 } = source
  return [
    ...checkText('source.name', name, 'the name of the external system'),
    ...(typeof name === 'string' && Buffer.byteLength(name) > MAX_SOURCE_BYTES
      ? [`source.name is ${describeValue(name)}, but can have at most ${MAX_SOURCE_BYTES} bytes`]
      : []),
    ...(perSecond >= MIN_PER_SECOND && perSecond <= MAX_PER_SECOND
      ? []
      : [`source.perSecond is ${perSecond}, but must be from ${MIN_PER_SECOND} to ${MAX_PER_SECOND}`]),
    ...(isWhole(burst, 1, MAX_INT)
      ? []
      : [`source.burst is ${burst}, but must be a whole number from 1 to ${MAX_INT}`]),
    ...unknownNames(source, SOURCE_FIELDS, 'field of source'),
  ]
}
