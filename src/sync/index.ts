/**
 * Sync: long imports in chunks. A crash costs one chunk, not the job.
 *
 * - **A job is planned once**: its definition yields chunks, and each is a checkpoint that outlives the job.
 * - **A chunk is done by one worker at a time**, under a lease of its own; with `settleIn` its rows and its checkpoint
 *   commit together, so that its effect is there exactly once.
 * - **A job is completed when its chunks are**, whoever did them. What was synced before is skipped, unless a job says
 *   otherwise.
 * - **No status can get stuck**: the state of a row is what its lease and its ends say at the moment somebody asks.
 */
export { createSync, type Defined, type Sync, type SyncOptions } from './sync.ts'
export type { Enqueued, NewJob } from './enqueue.ts'
export type {
  ChunkContext,
  PlanContext,
  SyncChunk,
  SyncDefinition,
  SyncJob,
  SyncRetry,
  SyncSource,
  Synced,
} from './definition.ts'
export type { RunnerOptions } from './runner.ts'
export { chunkHash } from './chunk-hash.ts'
export { chunkTable, type ChunkRow, jobTable, type JobRow, type SyncTableOptions } from './table.ts'
export { SYNC_STATES, type SyncState, TRANSITIONS } from './transitions.ts'
export * from './admin/index.ts'
