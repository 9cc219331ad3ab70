import { LeaseholdError } from '../errors.ts'
import type { Writer } from '../transactions/writer.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { checkDefinition, type SyncDefinition } from './definition.ts'
import { enqueueJob, type Enqueued, type NewJob } from './enqueue.ts'
import { runner, type RunnerOptions } from './runner.ts'
import type { ChunkRow, JobRow } from './table.ts'

export interface SyncOptions {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string
}

export interface Sync {
  /** How one kind of matrix is planned and synced. Returns a handle that asks for jobs of it. */
  define<Query, Params = unknown>(name: string, definition: SyncDefinition<Query, Params>): Defined<Params>
  /**
   * Asks for a job, in the caller's transaction. There is one at a time for a matrix: where one is active already,
   * that is the answer, unless `parallel` is asked for.
   */
  enqueue(tx: Writer, name: string, job: NewJob): Promise<Enqueued>
  /** The workers that do what is defined: hand them to `startRuntime`, or list them under `workers` in `leasehold.config`. */
  runner(options?: Omit<RunnerOptions, 'schema'>): [WorkDeclaration<JobRow>, WorkDeclaration<ChunkRow>]
}

export interface Defined<Params> {
  readonly name: string
  enqueue(tx: Writer, job: NewJob<Params>): Promise<Enqueued>
}

/**
 * Jobs that are done in chunks.
 *
 * ```ts
 * const sync = createSync()
 * const tempo = sync.define('ins-tempo', {
 *   plan: async ({ matrixId }) => (await yearsOf(matrixId)).map((year) => ({ year })),
 *   syncChunk: async ({ matrixId, query }, { settleIn }) => { … },
 * })
 * await tempo.enqueue(db, { matrixId: 'POP105A' })
 * ```
 */
export function createSync({ schema = 'leasehold' }: SyncOptions = {}): Sync {
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
    // Those who ask for a job need not be those who do it: the definition may live in another process.
    enqueue: async (tx, name, job) => enqueueJob(tx, schema, name, job),
    runner: (options = {}) => runner(definitions, { ...options, schema }),
  }
}
