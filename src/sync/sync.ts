import { LeaseholdError } from '../errors.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Writer } from '../transactions/writer.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { checkDefinition, type SyncDefinition } from './definition.ts'
import { enqueueJob, type Enqueued, type NewJob } from './enqueue.ts'
import { runner, RUNNER_OPTIONS, type RunnerOptions } from './runner.ts'
import type { ChunkRow, JobRow } from './table.ts'

export interface SyncOptions {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string
}

export interface Sync {
  /** Defines how one kind of matrix is planned and synced. Returns a handle that enqueues jobs of it. */
  define<Query, Params = unknown>(name: string, definition: SyncDefinition<Query, Params>): Defined<Params>
  /**
   * Enqueues a job in the caller's transaction. A matrix has one open job at a time: if there is one, its id is returned
   * and nothing is written, unless `parallel` is set.
   */
  enqueue(tx: Writer, name: string, job: NewJob): Promise<Enqueued>
  /** The workers for all definitions: hand them to `startRuntime`, or list them under `workers` in `leasehold.config`. */
  runner(options?: Omit<RunnerOptions, 'schema'>): [WorkDeclaration<JobRow>, WorkDeclaration<ChunkRow>]
}

export interface Defined<Params> {
  readonly name: string
  enqueue(tx: Writer, job: NewJob<Params>): Promise<Enqueued>
}

/**
 * Long imports as jobs that are synced in chunks.
 *
 * ```ts
 * const sync = createSync()
 * const tempo = sync.define('ins-tempo', {
 *   plan: async ({ matrixId }) => (await yearsOf(matrixId)).map((year) => ({ year })),
 *   syncChunk: async ({ matrixId, query }, { settleIn }) => importYear(matrixId, query.year, settleIn),
 * })
 * await tempo.enqueue(db, { matrixId: 'POP105A' })
 * ```
 */
export function createSync(options: SyncOptions = {}): Sync {
  refuseUnknownOptions('createSync', options, namesOf<SyncOptions>({ schema: true }))
  const { schema = 'leasehold' } = options
  const definitions = new Map<string, SyncDefinition>()
  return {
    define(name, definition) {
      checkDefinition(name, definition)
      if (definitions.has(name)) {
        throw new LeaseholdError('SETTING_INVALID', `The sync ${name} is defined already.`, {
          remedy: 'Each name stands for one definition.',
        })
      }
      definitions.set(name, definition)
      return { name, enqueue: async (tx, job) => enqueueJob(tx, schema, name, job) }
    },
    // The definition may live in another process than the one that enqueues.
    enqueue: async (tx, name, job) => enqueueJob(tx, schema, name, job),
    runner: (options = {}) => {
      refuseUnknownOptions('sync.runner', options, RUNNER_OPTIONS)
      return runner(definitions, { ...options, schema })
    },
  }
}
