/**
 * The worker of sync: two lease tables, and so two workers. One plans jobs and checks whether their chunks are finished,
 * the other syncs chunks.
 */
import { inspect } from 'node:util'
import { LeaseholdError } from '../errors.ts'
import { describeValue, isWhole } from '../messages/validate.ts'
import { fixedGroups } from '../worker/claiming/groups.ts'
import { retryDelay } from '../lease/retry-policy.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import { isLockConflict } from '../postgres/failures.ts'
import type { HandlerContext } from '../worker/context.ts'
import { createLoop, type HastenableLoop, pause } from '../worker/loop.ts'
import {
  dead,
  done,
  type Outcome,
  PermanentError,
  retry,
  SaturatedError,
  settleAs,
} from '../worker/completion/outcome.ts'
import { DECLARED_SETTING_NAMES, declaredSettings, type DeclaredSettings } from '../worker/settings.ts'
import { untilAborted } from '../timeout.ts'
import type { WorkDeclaration, WorkerEnvironment } from '../worker/work-declaration.ts'
import {
  type ChunkContext,
  type PlanContext,
  type SyncDefinition,
  type SyncRetry,
  syncRetry,
  type Synced,
} from './definition.ts'
import { plannedChunks } from './plan.ts'
import {
  type ChunkCounts,
  countOpen,
  makeDue,
  type PlanAnswer,
  type PlannedChunk,
  reserve,
  unmarkNeeded,
  wakeChunks,
  markNeeded,
  writeChunks,
} from './sql.ts'
import { applyRetention, type SyncRetention } from './admin/retention.ts'
import { chunkTable, type ChunkRow, jobTable, type JobRow } from './table.ts'

export interface RunnerOptions {
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** Settings of the worker that plans jobs and checks them. */
  readonly jobs?: DeclaredSettings
  /** Settings of the worker that syncs chunks. */
  readonly chunks?: DeclaredSettings
  /** How often the runner asks which jobs have no open chunk any more, while there are planned jobs. Default 1000. */
  readonly checkEveryMs?: number
  /** How long ended jobs stay in the table; `false`: this runner removes none. Default 30 days. */
  readonly retention?: SyncRetention | false
}

/** What `sync.runner` takes: the schema is that of `createSync`. */
export const RUNNER_OPTIONS = namesOf<Omit<RunnerOptions, 'schema'>>({
  jobs: true,
  chunks: true,
  checkEveryMs: true,
  retention: true,
})
const RETENTION_OPTIONS = namesOf<SyncRetention>({
  completedMs: true,
  failedMs: true,
  batch: true,
  pauseMs: true,
})

/** The names under which the two workers of a runner are started, woken and configured; `--only sync` means both. */
export const SYNC = 'sync'
export const SYNC_JOBS = 'sync-jobs'

/** SYNC-10 */
const JOB_SETTINGS = { leaseMs: 300_000, heartbeatMs: 60_000, prefetch: 0, claimLoops: 1 } as const
const CHUNK_SETTINGS = { leaseMs: 120_000, heartbeatMs: 30_000, prefetch: 0, claimLoops: 1 } as const

const DEFAULT_CHUNKS_AT_ONCE = 4
/** Jobs of one definition that a runner plans or checks at once. */
const JOBS_AT_ONCE = 4
/** Of one reservation. */
const MAX_CALLS = 1_000_000
const RETENTION_EVERY_MS = 600_000
const DEFAULT_CHECK_EVERY_MS = 1_000
/**
 * How often it asks while it knows of no planned job. A runner that plans a job, or checks one, knows of it; this is for jobs
 * whose runner has died since, and as long as an idle worker waits for a wake-up that was lost.
 */
const IDLE_CHECK_MS = 5_000
/** A job is counted at the latest after this time, even if nothing was found to have changed. */
const MAX_UNCHECKED_MS = 3_600_000
const MAX_CHECK_EVERY_MS = 3_600_000

/** The two workers for the given definitions. */
export function runner(
  definitions: ReadonlyMap<string, SyncDefinition>,
  options: RunnerOptions = {},
): [WorkDeclaration<JobRow>, WorkDeclaration<ChunkRow>] {
  if (definitions.size === 0) {
    throw new LeaseholdError('SETTING_INVALID', 'There is nothing to run: no sync is defined.', {
      remedy: "Call sync.define('name', { plan, syncChunk }) before sync.runner().",
    })
  }
  const { schema, jobs, chunks, checkEveryMs = DEFAULT_CHECK_EVERY_MS, retention = {} } = options
  if (!(checkEveryMs > 0 && checkEveryMs <= MAX_CHECK_EVERY_MS)) {
    throw new LeaseholdError('SETTING_INVALID', `checkEveryMs of the runner is ${String(checkEveryMs)}.`, {
      remedy: `Give a number of milliseconds above 0, at most ${MAX_CHECK_EVERY_MS}.`,
    })
  }
  refuseUnknownOptions('sync.runner, jobs', jobs ?? {}, DECLARED_SETTING_NAMES)
  refuseUnknownOptions('sync.runner, chunks', chunks ?? {}, DECLARED_SETTING_NAMES)
  if (retention !== false) refuseUnknownOptions('sync.runner, retention', retention, RETENTION_OPTIONS)
  const run = new Runner(definitions, {
    schema: schema ?? 'leasehold',
    policies: new Map([...definitions].map(([name, { retry }]) => [name, syncRetry(retry)])),
    checkEveryMs,
    maxSourceWaitMs: (declaredSettings(chunks).leaseMs ?? CHUNK_SETTINGS.leaseMs) / 2,
  })
  const names = [...definitions.keys()]
  const chunksAtOnce = new Map(
    [...definitions].map(([name, { concurrency }]) => [name, concurrency ?? DEFAULT_CHUNKS_AT_ONCE]),
  )
  // Both tables are grouped by definition, so that a runner claims only rows whose definition it has.
  const groupOf = ({ definition }: { readonly definition: string }): string => definition
  return [
    {
      name: SYNC_JOBS,
      role: SYNC,
      table: jobTable({ schema }),
      wake: true,
      handle: async (context) => run.planOrCheck(context),
      groups: fixedGroups({ rooms: new Map(names.map((name) => [name, JOBS_AT_ONCE])), groupOf }),
      settings: declaredSettings({ ...JOB_SETTINGS, concurrency: JOBS_AT_ONCE * definitions.size }, jobs),
      ...(retention === false
        ? {}
        : {
            maintenance: {
              everyMs: RETENTION_EVERY_MS,
              settings: retention,
              run: async (db, signal) => applyRetention(db, { ...retention, schema, signal }),
            },
          }),
      open: async (environment) => run.openJobs(environment),
      close: async () => run.closeJobs(),
    },
    {
      name: SYNC,
      table: chunkTable({ schema }),
      wake: true,
      handle: async (context) => run.syncChunk(context),
      groups: fixedGroups({ rooms: chunksAtOnce, groupOf }),
      settings: declaredSettings(
        {
          ...CHUNK_SETTINGS,
          concurrency: [...chunksAtOnce.values()].reduce((sum, number) => sum + number, 0),
        },
        chunks,
      ),
      open: async ({ db }) => run.open(db),
    },
  ]
}

interface RunSettings {
  readonly schema: string
  /** By definition. */
  readonly policies: ReadonlyMap<string, SyncRetry>
  readonly checkEveryMs: number
  /** The longest that a chunk waits for its source while it is leased. */
  readonly maxSourceWaitMs: number
}

const NO_CHUNKS: ChunkCounts = { open: 0, failed: 0, orphaned: 0, first_error: null }
/** How often a batch of chunks is written again after a deadlock or a lock timeout. */
const MAX_WRITE_ATTEMPTS = 5

/** A renewal or a check of the job locks it for milliseconds. */
const LOCKED_JOB_RETRY_MS = 50

class Runner {
  readonly #definitions: ReadonlyMap<string, SyncDefinition>
  readonly #settings: RunSettings
  #db: Database | undefined
  /** There may be planned jobs, which wait for their chunks. */
  #jobsWait = false
  #makingDue: HastenableLoop | undefined

  constructor(definitions: ReadonlyMap<string, SyncDefinition>, settings: RunSettings) {
    this.#definitions = definitions
    this.#settings = settings
  }

  async open(db: Database): Promise<void> {
    this.#db = db
    return Promise.resolve()
  }

  async openJobs({ db, worker, events }: WorkerEnvironment): Promise<void> {
    await this.open(db)
    const { schema, checkEveryMs } = this.#settings
    const stopping = [...this.#definitions].filter(([, { onChunkFailure }]) => onChunkFailure === 'stop')
    const statement = makeDue(
      schema,
      [...this.#definitions.keys()],
      stopping.map(([name]) => name),
    )
    this.#makingDue = createLoop({
      name: 'sync jobs with finished chunks',
      work: async () => {
        // A job that begins to wait from here on may be missing in the answer.
        this.#jobsWait = false
        const { rows } = await db.query<{ waiting: boolean }>(statement)
        this.#jobsWait ||= rows[0]?.waiting === true
      },
      pauseMs: () => (this.#jobsWait ? checkEveryMs : Math.max(checkEveryMs, IDLE_CHECK_MS)),
      onError: (error) => {
        this.#jobsWait = true
        events.emit('trouble', { worker, what: 'finding jobs that are finished', error })
      },
    })
    this.#makingDue.start()
  }

  async closeJobs(): Promise<void> {
    await this.#makingDue?.stop()
  }

  /** A job is planned once, and checked when its chunks are finished. */
  async planOrCheck(context: HandlerContext<JobRow>): Promise<Outcome> {
    const { row } = context
    if (row.planned_at !== null) return this.#check(context)
    const exhausted = this.#exhausted(row)
    if (exhausted !== undefined) return this.#giveUp(row, dead(exhausted))
    try {
      // A plan that ignores its signal must not hold its slot.
      return await untilAborted(context.signal, async () => this.#plan(context))
    } catch (error) {
      if (error instanceof NoRoomAtSource) return settleAs('waiting', { delay_ms: error.delayMs })
      const outcome = this.#outcomeOfError(row.definition, context, error)
      return outcome.name === 'dead' ? this.#giveUp(row, outcome) : outcome
    }
  }

  async syncChunk(context: HandlerContext<ChunkRow>): Promise<Outcome | undefined> {
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
      if (error instanceof NoRoomAtSource) return settleAs('postponed', { delay_ms: error.delayMs })
      // The worker stopped while the chunk waited for its source: no attempt was made (D9).
      if (!started && context.signal.aborted) return settleAs('postponed', { delay_ms: 0 })
      return this.#outcomeOfError(name, context, error)
    }
  }

  async #plan(context: HandlerContext<JobRow>): Promise<Outcome> {
    const { row, signal } = context
    const definition = this.#definition(row.definition)
    const { matrix_id: matrixId, params, force } = row
    const { id } = context
    const planned = await definition.plan(
      { id, matrixId, params, force },
      this.#contextOf(definition, context),
    )
    for await (const chunks of plannedChunks(row.definition, definition, planned)) {
      signal.throwIfAborted()
      await this.#writeChunks(context, chunks)
    }
    // The next check is due at once: all chunks may be synced already.
    return settleAs('planned', { delay_ms: 0 })
  }

  async #writeChunks(context: HandlerContext<JobRow>, chunks: readonly PlannedChunk[]): Promise<void> {
    const { row, worker: owner, token } = context
    const statement = writeChunks(this.#settings.schema, { id: row.id, owner, token }, chunks)
    for (let conflicts = 0; ;) {
      try {
        const { rows } = await this.#database.query<PlanAnswer>(statement)
        if (rows[0]?.written !== false) break
        // Until the job is free, or its lease can no longer be trusted.
        await pause(LOCKED_JOB_RETRY_MS, context.signal)
        context.signal.throwIfAborted()
      } catch (error) {
        // Another plan, or an operator's change, locked the same chunks in another order.
        conflicts += 1
        if (!isLockConflict(error) || conflicts === MAX_WRITE_ATTEMPTS) throw error
      }
    }
    // Chunks can be synced while the plan goes on.
    await this.#database.query(wakeChunks(this.#settings.schema))
  }

  async #check({ row }: HandlerContext<JobRow>): Promise<Outcome> {
    const { schema } = this.#settings
    const { rows } = await this.#database.query<ChunkCounts>(countOpen(schema, row.id))
    const { open, failed, orphaned, first_error: firstError } = rows[0] ?? NO_CHUNKS
    const stops = this.#definition(row.definition).onChunkFailure === 'stop'
    if (failed > 0 && (open === 0 || stops)) {
      if (open > 0) await this.#database.query(unmarkNeeded(schema, row.id))
      return dead(
        `${failed} ${failed === 1 ? 'chunk' : 'chunks'} failed; the first: ${firstError ?? 'without a reason'}`,
      )
    }
    if (open === 0) return done()
    if (orphaned > 0) {
      await this.#database.query(markNeeded(schema, row.id))
      await this.#database.query(wakeChunks(schema))
    }
    // `makeDue` finds the job when there is something to do.
    if (!this.#jobsWait) {
      this.#jobsWait = true
      this.#makingDue?.hasten()
    }
    return settleAs('waiting', { delay_ms: MAX_UNCHECKED_MS })
  }

  /** Ends a job whose plan is incomplete. No job waits for the chunks that were planned. */
  async #giveUp({ id }: JobRow, outcome: Outcome): Promise<Outcome> {
    await this.#database.query(unmarkNeeded(this.#settings.schema, id))
    return outcome
  }

  #outcomeOfError(name: string, { attempt, signal }: HandlerContext<object>, error: unknown): Outcome {
    // Neither an interruption nor a source without room is a failure of the row. The worker decides what follows.
    if (signal.aborted || error instanceof SaturatedError) throw error
    const policy = this.#policy(name)
    if (attempt >= policy.maxAttempts || error instanceof PermanentError) return dead(error)
    return retry({ error, delayMs: retryDelay(attempt, policy, Math.random) })
  }

  /**
   * Why a row must not be started, if its attempts are used up. A failure reported by the handler would have ended the row,
   * so its last attempt ended with its lease or its process, and another attempt could kill this process too.
   */
  #exhausted({ definition, attempts }: JobRow | ChunkRow): string | undefined {
    const { maxAttempts } = this.#policy(definition)
    if (attempts < maxAttempts) return undefined
    // The counter may be higher: a lease that expires while its row is being given up is counted, but was no attempt.
    return `given up after ${maxAttempts} ${maxAttempts === 1 ? 'attempt' : 'attempts'}: its workers died, lost the database, took longer than three leases, or had to stop`
  }

  #policy(name: string): SyncRetry {
    return this.#settings.policies.get(name) ?? syncRetry()
  }

  #contextOf(
    definition: SyncDefinition,
    { token, attempt, signal, log }: HandlerContext<object>,
  ): PlanContext {
    const call = async (calls = 1): Promise<void> => {
      const { source } = definition
      if (!isWhole(calls, 1, MAX_CALLS))
        throw new PermanentError(
          `call(${describeValue(calls)}) cannot be: give a whole number of calls from 1 to ${MAX_CALLS}`,
        )
      if (source === undefined) return
      const { schema, maxSourceWaitMs } = this.#settings
      const { rows } = await this.#database.query<{ wait_ms: number | null }>(
        reserve(schema, source, calls, maxSourceWaitMs),
      )
      const waitMs = rows[0]?.wait_ms ?? undefined
      // Nothing was reserved: the calls reserved by others take longer than a leased row should wait.
      if (waitMs === undefined) throw new NoRoomAtSource(maxSourceWaitMs * (0.5 + Math.random() / 2))
      await pause(waitMs, signal)
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

/** The rate of the source allows no call for so long: the row waits without a lease, and no attempt is counted. */
class NoRoomAtSource extends Error {
  override readonly name = 'NoRoomAtSource'
  readonly delayMs: number

  constructor(delayMs: number) {
    super(`the source has no room for ${Math.round(delayMs)} ms`)
    this.delayMs = delayMs
  }
}

/** What `syncChunk` returned as an outcome. A wrong value is permanent: the same definition would return it again. */
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
