/** The reasons for which a row is not running, and the words in which each source of them writes its own. */
import { sentence } from '../../errors.ts'
import { relative } from '../../figures.ts'

/** Every reason there is. `docs/operations/explain.md` describes each; a test compares the two. */
export const REASON_CODES = [
  // Nothing keeps the row from running.
  'claimable',
  // The row itself
  'finished',
  'dead',
  'notClaimable',
  'scheduled',
  'retryWait',
  'resting',
  'leased',
  'leaseExpired',
  'suspect',
  // Its ordering key
  'waitsForRow',
  'keyParked',
  // The database
  'rowLocked',
  'tableLocked',
  'refused',
  'oldSnapshot',
  // Worker processes
  'noWorker',
  'workersStopping',
  'workersPaused',
  'noReaper',
  'bucketNotServed',
  'groupNotServed',
  // Webhooks
  'endpointDeleted',
  'endpointDisabled',
  'circuitOpen',
  'circuitProbing',
  'concurrencyLimit',
  'rateLimit',
  'noSecretKey',
  'secretUnreadable',
  // Sync
  'sourceRateLimit',
  'waitsForChunks',
  'notNeeded',
] as const

export type ReasonCode = (typeof REASON_CODES)[number]

export interface Reason {
  readonly code: ReasonCode
  /** One sentence, with the figures. */
  readonly text: string
  readonly since?: Date
  /** When this reason ends, if nothing else happens. */
  readonly until?: Date
  /** What it depends on: the id of a row, of a worker process or of an endpoint, or the pid of a session. */
  readonly by?: string
  /** The command line, or the SQL, that would change it. */
  readonly command?: string
}

/**
 * - `claimable`: as far as the row itself is concerned, a worker could claim it now.
 * - `waiting`: something has to happen first, or a time has to come.
 * - `leased`: a worker has it. `expired`: the lease is over, and nobody has taken the row back.
 * - `finished`: it will not be claimed any more, unless it is replayed.
 * - `unknown`: another session has locked the whole table, or waits to lock it, so that the row cannot be read.
 */
export const ROW_STATES = ['claimable', 'waiting', 'leased', 'expired', 'finished', 'unknown'] as const

export type RowState = (typeof ROW_STATES)[number]

export interface Explanation {
  /** `schema.table` */
  readonly table: string
  readonly id: string
  readonly state: RowState
  /** At least one. */
  readonly reasons: readonly Reason[]
}

type Details = {
  readonly [Field in 'since' | 'until' | 'by' | 'command']?: Reason[Field] | null | undefined
}

/** A reason without the fields that are not known. */
export function reason(code: ReasonCode, text: string, details: Details = {}): Reason {
  const known = Object.entries(details).filter(([, value]) => value !== undefined && value !== null)
  return { code, text, ...Object.fromEntries(known) }
}

/** `2026-01-31T08:15:02.125Z (2 h ago)` */
export function at(moment: Date, now: Date): string {
  return `${moment.toISOString()} (${relative(moment, now)})`
}

/** The same behind a word, or nothing if the moment is not known. */
export function when(word: string, moment: Date | null, now: Date): string {
  return moment === null ? '' : ` ${word} ${at(moment, now)}`
}

const MAX_ERROR_CHARACTERS = 300

/** The last error as the end of a sentence. */
export function because(error: string | null): string {
  if (error === null || error === '') return '.'
  const text = error.length > MAX_ERROR_CHARACTERS ? `${error.slice(0, MAX_ERROR_CHARACTERS)}…` : error
  return `: ${sentence(text)}`
}
