/**
 * Sync: long imports in chunks. A crash costs one chunk, not the job.
 *
 * - **A job is planned once**: its definition yields chunks, and each is a checkpoint that outlives the job.
 * - **A chunk is synced by one worker at a time**, under a lease of its own. With `settleIn` its rows and its checkpoint
 *   commit together, so that its effect happens exactly once.
 * - **A job is completed when its chunks are**, whichever runners synced them. Chunks that were synced before are skipped,
 *   unless the job asks for fresher data.
 * - **No status can get stuck**: states are derived from the lease and the end times whenever they are read.
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
export { chunkHash } from './plan.ts'
export { chunkTable, type ChunkRow, jobTable, type JobRow, type SyncTableOptions } from './table.ts'
export { SYNC_STATES, type SyncState, TRANSITIONS } from './transitions.ts'
export * from './admin/index.ts'
