/**
 * Replay: finished events are published once more (LIFE-09, LIFE-10).
 *
 * - Only PUBLISHED and DEAD events are replayed; what is under way already is left alone.
 * - Reset: `status` to PENDING, `attempts` and `expiries` to 0, `last_error`, `published_at` and `dead_at` to null,
 *   `parked` to false, and `available_at` to when it may be published. Never reset: `lock_token`, `created_at`,
 *   `event_id`. Consumers therefore recognise the event, and a worker of its former life stays fenced off. Where a relay
 *   has a maximum age, an event that is older gets one attempt.
 * - The events of a key are published in the order of their ids, as ever. Until a replayed event is published, later
 *   events of its key wait for it, also when a rate puts it off.
 * - Meant is what was finished when the replay began. An event that is finished once more while the replay runs is not
 *   replayed once more: the replay passes each id once, and leaves out what was finished after its beginning.
 * - Each batch is one short transaction, with its entry in the audit. A replay that is stopped or dies leaves the rest
 *   as it was; `resume` goes on where it ended.
 */
import { randomUUID } from 'node:crypto'
import { BEFORE_FIRST } from '../../admin/buckets.ts'
import { checkPrincipal } from '../../admin/request-checks.ts'
import type { Database } from '../../postgres/database.ts'
import type { EventFilter } from './browse-filter.ts'
import { readReplay } from './replay-audit.ts'
import { checkReplay } from './replay-check.ts'
import { type Following, type Ran, runReplay } from './replay-run.ts'
import { type Chosen, countStretch, endsOfBuckets, moment, type Place } from './replay-sql.ts'

export interface ReplayOptions extends Following {
  readonly schema?: string | undefined
  /** Row ids and event ids. With a filter as well, what is in both. */
  readonly ids?: readonly string[] | undefined
  readonly filter?: EventFilter | undefined
  /** Counts, and changes nothing. */
  readonly dryRun?: boolean | undefined
  /** Events per second. Default: all at once. Two replays at the same time have a rate each. */
  readonly rate?: number | undefined
  /** No more than so many, the oldest first. */
  readonly limit?: number | undefined
  /** Who asks for it. A dry run needs neither this nor a reason. */
  readonly principal?: string | undefined
  readonly reason?: string | undefined
}

export interface Replayed extends Ran {
  readonly dryRun: boolean
  /** How many events were meant when the replay began. */
  readonly matched: number
}

/** Replays by id or by filter. */
export async function replay(db: Database, options: ReplayOptions): Promise<Replayed> {
  const { filter, statuses, principal, reason } = checkReplay(options)
  const { schema = 'leasehold', rate, limit, dryRun = false } = options
  const asOf = await moment(db)
  const upTo = await endsOfBuckets(db, schema)
  const found = await countMatching(db, { schema, filter, statuses, asOf }, upTo, options.signal)
  if (found === undefined) return { ...NOTHING, published: 0, dead: 0, dryRun, matched: 0, finished: false }
  const matched = Math.min(found.published + found.dead, limit ?? Infinity)
  if (dryRun || matched === 0) return { ...NOTHING, ...found, dryRun, matched }
  const begun = {
    replay: randomUUID(),
    reason,
    filter,
    statuses,
    rate: rate ?? null,
    limit: limit ?? null,
    matched,
    replayed: 0,
    firstId: null,
    lastId: null,
    asOf,
    upTo,
    place: null,
    nextDue: asOf,
    startedAt: new Date(asOf * 1_000).toISOString(),
    finishedAt: null,
  }
  return { ...(await runReplay(db, begun, { ...options, schema, principal })), dryRun, matched }
}

export interface ResumeOptions extends Following {
  readonly schema?: string | undefined
  readonly principal: string
}

/** Goes on with a replay that was stopped or died: the same events at the same rate, for the same reason. */
export async function resumeReplay(db: Database, replay: string, options: ResumeOptions): Promise<Replayed> {
  const { schema = 'leasehold' } = options
  const principal = checkPrincipal(options.principal, 'replay')
  const begun = await readReplay(db, schema, replay)
  const ran = await runReplay(db, begun, { ...options, schema, principal })
  return { ...ran, dryRun: false, matched: begun.matched }
}

const NOTHING = {
  replay: undefined,
  replayed: 0,
  replayedBefore: 0,
  firstId: undefined,
  lastId: undefined,
  lastDueAt: undefined,
  finished: true,
}

/** Undefined when it was told to stop. */
async function countMatching(
  db: Database,
  chosen: Chosen,
  ends: readonly Place[],
  signal: AbortSignal | undefined,
): Promise<{ published: number; dead: number } | undefined> {
  const sum = { published: 0, dead: 0 }
  for (const { bucket, id: upTo } of ends) {
    let after = BEFORE_FIRST
    for (let more = true; more;) {
      if (signal?.aborted === true) return undefined
      const found = await countStretch(db, chosen, { bucket, after, upTo })
      sum.published += found.published
      sum.dead += found.dead
      after = found.lookedTo ?? after
      more = found.full
    }
  }
  return sum
}
