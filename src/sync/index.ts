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
export { cancel, resumeCancel, type CancelOptions, type CancelResult } from './admin/cancel.ts'
export { replay, resumeReplay, type ReplayOptions, type ReplayResult } from './admin/replay.ts'
export {
  type JobFilter,
  type JobPage,
  type JobPhase,
  type JobSummary,
  type ListedJob,
  listJobs,
} from './admin/jobs.ts'
export type { ChunkCounts } from './admin/chunk-counts.ts'
export { explainChunk, explainJob } from './admin/explain.ts'
export type { ExplainOptions } from '../operations/explain/explain.ts'
export type { Explanation, Reason } from '../operations/explain/reasons.ts'
export { type ChunkPage, type ChunkPageOptions, type ChunkSummary, listChunks } from './admin/chunks.ts'
export {
  type JobProgress,
  progress,
  progressOfAll,
  type ProgressOfAll,
  type ProgressOfAllOptions,
} from './admin/progress.ts'
export { applyRetention, type SyncRetention } from './admin/retention.ts'
