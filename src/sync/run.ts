import { retryDelay } from '../lease/retry-policy.ts'
import type { Database } from '../postgres/database.ts'
import { isLockConflict } from '../postgres/failures.ts'
import type { HandlerContext } from '../worker/context.ts'
import { pause } from '../worker/loop.ts'
import { untilAborted } from '../worker/waiting.ts'
import {
  dead,
  done,
  type Outcome,
  PermanentError,
  retry,
  SaturatedError,
  settleAs,
} from '../worker/completion/outcome.ts'
import { inBatches } from './batches.ts'
import {
  type ChunkContext,
  type PlanContext,
  type SyncDefinition,
  type SyncRetry,
  syncRetry,
} from './definition.ts'
import { doneWith, hashOf, iterableOf } from './returned.ts'
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
import type { ChunkRow, JobRow } from './table.ts'

export interface RunOptions {
  readonly schema: string
  /** Of each definition. */
  readonly policies: ReadonlyMap<string, SyncRetry>
  readonly lookEveryMs: number
  /** The longest that a chunk waits for its source while it is leased. */
  readonly longestWaitMs: number
}

const NO_CHUNKS: ChunkCounts = { open: 0, failed: 0, forsaken: 0, first_error: null }
/** Chunks of a plan that are written together, and how long the first of them waits for the others. */
const PLAN_BATCH = { most: 500, waitMs: 100 }
/** How often a batch is written again that met others in another order. */
const MOST_CONFLICTS = 5

/** What is done with a job, and with a chunk. */
export class Run {
  readonly #definitions: ReadonlyMap<string, SyncDefinition>
  readonly #options: RunOptions
  #db: Database | undefined

  constructor(definitions: ReadonlyMap<string, SyncDefinition>, options: RunOptions) {
    this.#definitions = definitions
    this.#options = options
  }

  get #schema(): string {
    return this.#options.schema
  }

  async open(db: Database): Promise<void> {
    this.#db = db
    return Promise.resolve()
  }

  /** A job is planned once, and then looked at until its chunks are done. */
  async job(context: HandlerContext<JobRow>): Promise<Outcome> {
    const { row } = context
    if (row.planned_at !== null) return this.#look(context)
    const exhausted = this.#exhausted(row)
    if (exhausted !== undefined) return this.#giveUp(row, dead(exhausted))
    try {
      // A plan that hears no signal must not keep its slot.
      return await untilAborted(context.signal, async () => this.#plan(context))
    } catch (error) {
      if (error instanceof Postponed) return settleAs('waiting', { delay_ms: error.delayMs })
      const outcome = this.#failed(row.definition, context, error)
      return outcome.outcome === 'dead' ? this.#giveUp(row, outcome) : outcome
    }
  }

  /** A job that ends with a plan that is not whole: nobody waits for the chunks that it has. */
  async #giveUp({ id }: JobRow, outcome: Outcome): Promise<Outcome> {
    await this.#database.query(unwant(this.#schema, id))
    return outcome
  }

  async chunk(context: HandlerContext<ChunkRow>): Promise<Outcome | undefined> {
    const { row } = context
    const { definition: name, matrix_id: matrixId, chunk_hash: hash, chunk_query: query } = row
    const exhausted = this.#exhausted(row)
    if (exhausted !== undefined) return settleAs('exhausted', { error: exhausted })
    const definition = this.#definition(name)
    let [started, settled] = [false, false]
    const chunkContext: ChunkContext = {
      ...this.#contextOf(definition, context),
      settleIn: async (tx, synced) => {
        await context.settleIn(tx, doneWith(synced))
        settled = true
      },
    }
    try {
      await chunkContext.call()
      started = true
      const synced = await untilAborted(context.signal, async () =>
        definition.syncChunk({ matrixId, query, hash }, chunkContext),
      )
      return settled ? undefined : doneWith(synced)
    } catch (error) {
      if (error instanceof Postponed) return settleAs('postponed', { delay_ms: error.delayMs })
      // Told to stop while it waited for the source: no attempt was made (D9).
      if (!started && context.signal.aborted) return settleAs('postponed', { delay_ms: 0 })
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
    return settleAs('waiting', { delay_ms: this.#options.lookEveryMs })
  }

  /** What was cut short is not the row's fault, nor is a far side that has no room: the worker knows what to do. */
  #failed(name: string, { attempt, signal }: HandlerContext<object>, error: unknown): Outcome {
    if (signal.aborted || error instanceof SaturatedError) throw error
    const policy = this.#policy(name)
    if (attempt >= policy.maxAttempts || error instanceof PermanentError) return dead(error)
    return retry({ error, delayMs: retryDelay(attempt, policy, Math.random) })
  }

  /**
   * Why a row must not be started, if its attempts are used up. A failure of its own would have ended it; the last
   * attempt therefore ended with its lease or its process, and another one could kill this process too.
   */
  #exhausted({ definition, attempts }: JobRow | ChunkRow): string | undefined {
    const { maxAttempts } = this.#policy(definition)
    if (attempts < maxAttempts) return undefined
    return `given up after ${attempts} of ${maxAttempts} attempts: its workers died, lost the database, took longer than three leases, or had to stop`
  }

  #policy(name: string): SyncRetry {
    return this.#options.policies.get(name) ?? syncRetry()
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
      const withinMs = this.#options.longestWaitMs
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
