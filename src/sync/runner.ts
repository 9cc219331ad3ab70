import { inspect } from 'node:util'
import { LeaseholdError } from '../errors.ts'
import { type Database } from '../postgres/database.ts'
import { isLockConflict } from '../postgres/failures.ts'
import { retryDelay, retryPolicy, type RetryPolicy } from '../runtime/back-off.ts'
import { type HandlerContext } from '../runtime/context.ts'
import { fixedLanes } from '../runtime/fixed-lanes.ts'
import { pause } from '../runtime/loop.ts'
import { untilAborted } from '../runtime/until-aborted.ts'
import {
  dead,
  done,
  type Outcome,
  PermanentError,
  retry,
  SaturatedError,
  settleAs,
} from '../runtime/outcome.ts'
import { type WorkerSettings } from '../runtime/settings.ts'
import { type WorkDeclaration } from '../runtime/work-declaration.ts'
import { inBatches } from './batches.ts'
import { chunkHash } from './chunk-hash.ts'
import { type ChunkContext, type PlanContext, type Synced, type SyncDefinition } from './definition.ts'
import {
  type ChunkCounts,
  countOpen,
  type PlannedChunk,
  reserve,
  unwant,
  want,
  wakeChunks,
  writeChunks,
} from './sql.ts'
import { type SyncRetention, syncUpkeep } from './operator/upkeep.ts'
import { chunkTable, type ChunkRow, jobTable, type JobRow } from './table.ts'

export interface RunnerOptions {
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** Of those who plan jobs and see to their end. */
  readonly jobs?: Partial<WorkerSettings>
  /** Of those who do chunks. */
  readonly chunks?: Partial<WorkerSettings>
  /** How often a job is looked at while its chunks are being done. Default 1000. */
  readonly lookEveryMs?: number
  /** How long ended jobs are kept; `false`: for ever. Default 30 days. */
  readonly retention?: SyncRetention | false
}

/** The names under which the two workers of a runner are started, woken and set; `--only sync` means both. */
export const SYNC = 'sync'
export const SYNC_JOBS = 'sync-jobs'

/** SYNC-10 */
const JOB_SETTINGS = { leaseMs: 300_000, heartbeatMs: 60_000, prefetch: 0, claimLoops: 1 } as const
const CHUNK_SETTINGS = { leaseMs: 120_000, heartbeatMs: 30_000, prefetch: 0, claimLoops: 1 } as const

const DEFAULT_CONCURRENCY = 4
const DEFAULT_ATTEMPTS = 5
const NO_CHUNKS: ChunkCounts = { open: 0, failed: 0, forsaken: 0, first_error: null }
/** Jobs of one definition that a runner plans at once. */
const JOBS_AT_ONCE = 4
const PLAN_ATTEMPTS = 10
const UPKEEP_EVERY_MS = 600_000
/** Chunks of a plan that are written together, and how long the first of them waits for the others. */
const PLAN_BATCH = { most: 500, waitMs: 100 }
/** How often a batch is written again that met others in another order. */
const MOST_CONFLICTS = 5
const LONGEST_LOOK_MS = 3_600_000

/** The two workers that do what is defined: one plans jobs and sees to their end, the other does chunks. */
export function runner(
  definitions: ReadonlyMap<string, SyncDefinition>,
  options: RunnerOptions = {},
): [WorkDeclaration<JobRow>, WorkDeclaration<ChunkRow>] {
  if (definitions.size === 0) {
    throw new LeaseholdError('SETTING_INVALID', 'There is nothing to run: no sync is defined.', {
      remedy: "Call sync.define('name', { plan, syncChunk }) before sync.runner().",
    })
  }
  const run = new Run(definitions, options)
  const { schema, jobs, chunks, retention = {} } = options
  const rooms = new Map(
    [...definitions].map(([name, { concurrency }]) => [name, concurrency ?? DEFAULT_CONCURRENCY]),
  )
  const mostAttempts = Math.max(
    ...[...run.policies.values()].map(({ maxAttempts }) => maxAttempts ?? DEFAULT_ATTEMPTS),
  )
  const laneOf = ({ definition }: { readonly definition: string }): string => definition
  return [
    {
      name: SYNC_JOBS,
      role: SYNC,
      table: jobTable({ schema, maxAttempts: PLAN_ATTEMPTS }),
      wake: true,
      handle: async (context) => run.job(context),
      lanes: fixedLanes({
        rooms: new Map([...definitions.keys()].map((name) => [name, JOBS_AT_ONCE])),
        laneOf,
      }),
      settings: { ...JOB_SETTINGS, concurrency: JOBS_AT_ONCE * definitions.size, ...jobs },
      ...(retention === false
        ? {}
        : {
            upkeep: {
              everyMs: UPKEEP_EVERY_MS,
              run: async (db, stop) => syncUpkeep(db, { ...retention, schema }, stop),
            },
          }),
      open: async ({ db }) => run.open(db),
    },
    {
      name: SYNC,
      table: chunkTable({ schema, maxAttempts: mostAttempts }),
      wake: true,
      handle: async (context) => run.chunk(context),
      lanes: fixedLanes({ rooms, laneOf }),
      settings: { ...CHUNK_SETTINGS, concurrency: sum(rooms.values()), ...chunks },
      open: async ({ db }) => run.open(db),
    },
  ]
}

class Run {
  readonly policies: ReadonlyMap<string, RetryPolicy>
  readonly #definitions: ReadonlyMap<string, SyncDefinition>
  readonly #schema: string
  readonly #lookEveryMs: number
  readonly #longestWaitMs: number
  #db: Database | undefined

  constructor(
    definitions: ReadonlyMap<string, SyncDefinition>,
    { schema, lookEveryMs = 1_000, chunks }: RunnerOptions,
  ) {
    if (!(lookEveryMs > 0 && lookEveryMs <= LONGEST_LOOK_MS)) {
      throw new LeaseholdError('SETTING_INVALID', `lookEveryMs of the runner is ${String(lookEveryMs)}.`, {
        remedy: `Give a number of milliseconds above 0, at most ${LONGEST_LOOK_MS}.`,
      })
    }
    this.#longestWaitMs = (chunks?.leaseMs ?? CHUNK_SETTINGS.leaseMs) / 2
    this.#definitions = definitions
    this.#schema = schema ?? 'leasehold'
    this.#lookEveryMs = lookEveryMs
    this.policies = new Map(
      [...definitions].map(([name, definition]) => [
        name,
        retryPolicy({ maxAttempts: DEFAULT_ATTEMPTS, ...definition.retry }),
      ]),
    )
  }

  async open(db: Database): Promise<void> {
    this.#db = db
    return Promise.resolve()
  }

  /** A job is planned once, and then looked at until its chunks are done. */
  async job(context: HandlerContext<JobRow>): Promise<Outcome> {
    if (context.row.planned_at !== null) return this.#look(context)
    try {
      // A plan that hears no signal must not keep its slot.
      return await untilAborted(context.signal, async () => this.#plan(context))
    } catch (error) {
      if (error instanceof Postponed) return settleAs('waiting', { delay_ms: error.delayMs })
      const outcome = this.#failed(context.row.definition, context, error)
      if (outcome.outcome === 'dead') await this.#database.query(unwant(this.#schema, context.row.id))
      return outcome
    }
  }

  async chunk(context: HandlerContext<ChunkRow>): Promise<Outcome | undefined> {
    const { row } = context
    const { definition: name, matrix_id: matrixId, chunk_hash: hash, chunk_query: query } = row
    const definition = this.#definition(name)
    let settled = false
    const chunkContext: ChunkContext = {
      ...this.#contextOf(definition, context),
      settleIn: async (tx, synced) => {
        await context.settleIn(tx, doneWith(synced))
        settled = true
      },
    }
    try {
      await chunkContext.call()
      const synced = await untilAborted(context.signal, async () =>
        definition.syncChunk({ matrixId, query, hash }, chunkContext),
      )
      return settled ? undefined : doneWith(synced)
    } catch (error) {
      if (error instanceof Postponed) return settleAs('postponed', { delay_ms: error.delayMs })
      return this.#failed(name, context, error)
    }
  }

  async #plan(context: HandlerContext<JobRow>): Promise<Outcome> {
    const { row, signal } = context
    const definition = this.#definition(row.definition)
    const { id, matrix_id: matrixId, params, force } = row
    const chunks = await definition.plan(
      { id, matrixId, params, force },
      this.#contextOf(definition, context),
    )
    let position = 0
    for await (const queries of inBatches(iterableOf(chunks), PLAN_BATCH)) {
      signal.throwIfAborted()
      const batch = queries.map((query, i) => ({
        hash: hashOf(definition, row.definition, query),
        query: JSON.stringify(query),
        position: position + i,
      }))
      position += queries.length
      await this.#write(context, batch)
    }
    // Looked at again at once: its chunks may all be done.
    return settleAs('planned', { delay_ms: 0 })
  }

  /** Chunks can be done while the plan goes on. */
  async #write(context: HandlerContext<JobRow>, batch: readonly PlannedChunk[]): Promise<void> {
    const { row, worker: owner, token } = context
    const unique = [...new Map(batch.map((chunk) => [chunk.hash, chunk])).values()]
    const statement = writeChunks(this.#schema, { id: row.id, owner, token }, unique)
    for (let tries = 1; ; tries += 1) {
      try {
        await this.#database.query(statement)
        break
      } catch (error) {
        // Another plan, or an operator, had the same chunks in another order.
        if (!isLockConflict(error) || tries === MOST_CONFLICTS) throw error
      }
    }
    await this.#database.query(wakeChunks(this.#schema))
  }

  async #look({ row }: HandlerContext<JobRow>): Promise<Outcome> {
    const { rows } = await this.#database.query<ChunkCounts>(countOpen(this.#schema, row.id))
    const { open, failed, forsaken, first_error: firstError } = rows[0] ?? NO_CHUNKS
    const stops = this.#definition(row.definition).onChunkFailure === 'stop'
    if (failed > 0 && (open === 0 || stops)) {
      if (open > 0) await this.#database.query(unwant(this.#schema, row.id))
      return dead(
        `${failed} ${failed === 1 ? 'chunk' : 'chunks'} failed; the first: ${firstError ?? 'without a reason'}`,
      )
    }
    if (open === 0) return done()
    if (forsaken > 0) {
      await this.#database.query(want(this.#schema, row.id))
      await this.#database.query(wakeChunks(this.#schema))
    }
    return settleAs('waiting', { delay_ms: this.#lookEveryMs })
  }

  /** What was cut short is not the row's fault, nor is a far side that has no room: the worker knows what to do. */
  #failed(name: string, { attempt, signal }: HandlerContext<object>, error: unknown): Outcome {
    if (signal.aborted || error instanceof SaturatedError) throw error
    const policy = this.policies.get(name) ?? retryPolicy()
    const last = policy.maxAttempts !== undefined && attempt >= policy.maxAttempts
    if (last || error instanceof PermanentError) return dead(error)
    return retry({ error, delayMs: retryDelay(attempt, policy, Math.random) })
  }

  #contextOf(
    definition: SyncDefinition,
    { token, attempt, signal, log }: HandlerContext<object>,
  ): PlanContext {
    const call = async (calls = 1): Promise<void> => {
      const { source } = definition
      if (!Number.isInteger(calls) || calls < 1)
        throw new PermanentError(`call(${calls}) cannot be: give a whole number of calls from 1`)
      if (source === undefined) return
      const withinMs = this.#longestWaitMs
      const { rows } = await this.#database.query<{ wait_ms: number | null }>(
        reserve(this.#schema, source, calls, withinMs),
      )
      const wait = rows[0]?.wait_ms ?? undefined
      // Nothing was reserved: others are before it for longer than a lease should wait.
      if (wait === undefined) throw new Postponed(withinMs * (0.5 + Math.random() / 2))
      await pause(wait, signal)
      signal.throwIfAborted()
    }
    return { token, attempt, signal, log, db: this.#database, call }
  }

  #definition(name: string): SyncDefinition {
    const definition = this.#definitions.get(name)
    if (definition !== undefined) return definition
    throw new PermanentError(`this runner has no definition ${JSON.stringify(name)}`)
  }

  get #database(): Database {
    if (this.#db === undefined) throw new TypeError('the runner was not opened')
    return this.#db
  }
}

/** There is no room at the source for so long: the row waits without a lease, and without an attempt. */
class Postponed extends Error {
  override readonly name = 'Postponed'
  readonly delayMs: number

  constructor(delayMs: number) {
    super(`the source has no room for ${Math.round(delayMs)} ms`)
    this.delayMs = delayMs
  }
}

function iterableOf<Query>(
  chunks: Iterable<Query> | AsyncIterable<Query>,
): Iterable<Query> | AsyncIterable<Query> {
  const given: unknown = chunks
  const isIterable =
    typeof given === 'object' && given !== null && (Symbol.iterator in given || Symbol.asyncIterator in given)
  if (isIterable) return chunks
  throw new PermanentError(`plan returned ${inspect(given, { depth: 0 })}, but must return or yield chunks`)
}

function hashOf(definition: SyncDefinition, name: string, query: unknown): string {
  if (query === undefined)
    throw new PermanentError('plan yielded undefined, but must yield the query of a chunk')
  if (definition.hash === undefined) return chunkHash(name, query)
  const hash: unknown = definition.hash(query)
  if (typeof hash === 'string' && hash !== '') return hash
  throw new PermanentError(
    `hash of ${name} returned ${inspect(hash, { depth: 0 })}, but must return a text that is not empty`,
  )
}

function doneWith(synced: Synced | void): Outcome {
  const given: unknown = synced
  if (given !== undefined && (typeof given !== 'object' || given === null || !('rows' in given)))
    throw new PermanentError(
      `syncChunk returned ${inspect(given, { depth: 0 })}, but must return { rows }, or settle itself`,
    )
  const rows = synced?.rows ?? 0
  if (Number.isSafeInteger(rows) && rows >= 0) return done({ rows })
  throw new PermanentError(
    `syncChunk brought ${rows} rows, but must return { rows } with a whole number from 0`,
  )
}

function sum(numbers: Iterable<number>): number {
  return [...numbers].reduce((total, number) => total + number, 0)
}
