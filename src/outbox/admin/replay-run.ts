/** The way of a replay through the table: batch after batch, in the order of ids, each with its entry in the audit. */
import { BEFORE_FIRST } from '../../admin/buckets.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { recordReplay, type ReplayRecord } from './replay-audit.ts'
import { type Batch, type Place, REPLAY_BATCH, replayBatch } from './replay-sql.ts'

/** For those who want to follow a replay, and to stop it. */
export interface Following {
  /** Stops after the batch that is being written. */
  readonly signal?: AbortSignal | undefined
  /** Called after each batch; the next one waits for it. */
  readonly onProgress?: ((progress: ReplayProgress) => void | Promise<void>) | undefined
}

export interface ReplayProgress {
  readonly replay: string
  readonly matched: number
  /** Also by those who were at it before. */
  readonly replayed: number
}

export interface Ran {
  /** Names the replay in the audit; undefined when nothing was changed. */
  readonly replay: string | undefined
  readonly replayed: number
  /** How many of them had been published, and how many were dead; in a dry run, how many would be replayed. */
  readonly published: number
  readonly dead: number
  /** How many were replayed by those who were at it before. */
  readonly replayedBefore: number
  readonly firstId: string | undefined
  readonly lastId: string | undefined
  /** When the last of them may be published. */
  readonly lastDueAt: Date | undefined
  /** False: it was stopped before its end. */
  readonly finished: boolean
}

export interface RunOptions extends Following {
  readonly schema: string
  readonly principal: string
}

/** What one transaction did, and where the next goes on; undefined: that was the end. */
interface Step {
  readonly batch: Batch
  readonly record: ReplayRecord
  readonly next: Place | undefined
}

export async function runReplay(db: Database, begun: ReplayRecord, options: RunOptions): Promise<Ran> {
  const { signal, onProgress } = options
  const ran = { published: 0, dead: 0, lastDue: 0 }
  let record = begun
  let place = begun.place ?? following(begun.upTo, undefined)
  while (place !== undefined) {
    if (signal?.aborted === true) break
    const step = await takeStep(db, record, place, options)
    ran.published += step.batch.published
    ran.dead += step.batch.dead
    ran.lastDue = step.batch.lastDue ?? ran.lastDue
    record = step.record
    place = step.next
    if (step.batch.replayed > 0) {
      await onProgress?.({ replay: record.replay, matched: record.matched, replayed: record.replayed })
    }
  }
  const replayed = record.replayed - begun.replayed
  return {
    replay: record.replayed === 0 ? undefined : record.replay,
    replayed,
    published: ran.published,
    dead: ran.dead,
    replayedBefore: begun.replayed,
    firstId: record.firstId ?? undefined,
    lastId: record.lastId ?? undefined,
    lastDueAt: replayed === 0 ? undefined : new Date(ran.lastDue * 1_000),
    finished: place === undefined,
  }
}

async function takeStep(
  db: Database,
  record: ReplayRecord,
  place: Place,
  { schema, principal }: RunOptions,
): Promise<Step> {
  const { filter, statuses, asOf, nextDue, limit, rate } = record
  const room = Math.min(REPLAY_BATCH, limit === null ? REPLAY_BATCH : limit - record.replayed)
  const upTo = record.upTo.find(({ bucket }) => bucket === place.bucket)?.id ?? BEFORE_FIRST
  const stretch = { bucket: place.bucket, after: place.id, upTo }
  return db.transaction(async (tx) => {
    const pace = { rate: rate ?? undefined, nextDue }
    const batch = await replayBatch(tx, { schema, filter, statuses, asOf }, stretch, pace, room)
    const replayed = record.replayed + batch.replayed
    const next = replayed === limit ? undefined : nextPlace(record, place, batch, room)
    const changed: ReplayRecord = {
      ...record,
      replayed,
      firstId: record.firstId ?? batch.firstId ?? null,
      lastId: batch.lastId ?? record.lastId,
      nextDue: batch.lastDue === undefined || rate === null ? nextDue : batch.lastDue + 1 / rate,
      place: next ?? place,
      finishedAt: next === undefined ? new Date().toISOString() : null,
    }
    // A stretch without a match is nothing to record, unless it is the end of something.
    if (batch.replayed > 0 || (next === undefined && replayed > 0)) {
      await recordReplay(tx, schema, principal, changed)
    }
    if (batch.replayed > 0) await tx.query({ text: `select ${quoteQualified(schema, 'wake')}('outbox')` })
    return { batch, record: changed, next }
  })
}

function nextPlace({ upTo }: ReplayRecord, { bucket }: Place, batch: Batch, room: number): Place | undefined {
  if (batch.replayed === room && batch.lastId !== undefined) return { bucket, id: batch.lastId }
  if (batch.full && batch.lookedTo !== undefined) return { bucket, id: batch.lookedTo }
  return following(upTo, bucket)
}

/** The beginning of the next bucket. */
function following(upTo: readonly Place[], bucket: number | undefined): Place | undefined {
  const next = upTo[bucket === undefined ? 0 : upTo.findIndex((end) => end.bucket === bucket) + 1]
  return next === undefined ? undefined : { bucket: next.bucket, id: BEFORE_FIRST }
}
