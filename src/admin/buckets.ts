/** Operators read and change all buckets, one statement for each, so that it concerns one shard of a distributed table. */
export { bucketsIn } from '../lease/backlog.ts'

/** Smaller than every id. */
export const BEFORE_FIRST = '-9223372036854775808'
