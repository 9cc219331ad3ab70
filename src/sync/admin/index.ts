/** What those who operate sync look at and change. */
export { cancelJob, type CancelledJob } from './cancel.ts'
export { retryFailed, type RetriedJob } from './retry.ts'
export type { JobChange } from './change.ts'
export { type JobFilter, type JobPage, type JobPageOptions, type ListedJob, listJobs } from './browse.ts'
export { type ChunkPage, type ChunkPageOptions, type ChunkSummary, listChunks } from './chunks.ts'
export type { ChunkCounts } from './counts.ts'
export type { JobPhase, JobSummary } from './job.ts'
export {
  type JobProgress,
  progress,
  progressOfAll,
  type ProgressOfAll,
  type ProgressOfAllOptions,
} from './progress.ts'
export { type SyncRetention, syncUpkeep, type SyncUpkeepDone, type SyncUpkeepOptions } from './upkeep.ts'
