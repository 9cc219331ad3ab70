/** The statements of a replay. Each looks at a bounded stretch of the table, however few events of it are meant. */
import { type Values, values } from '../../admin/statement-values.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { bucketsOf, outboxOf } from './browse-buckets.ts'
import { type EventFilter, filterSql } from './browse-filter.ts'
import type { Status } from '../transitions.ts'

/** The most events one transaction changes. */
export const REPLAY_BATCH = 1_000

/** The most rows one statement looks at: 20 to 60 ms, so that no lock and no snapshot is held for longer. */
const STRETCH = 50_000

/** What a replay brings back: nothing else is finished (LIFE-09, LIFE-10). */
export const REPLAYABLE = ['PUBLISHED', 'DEAD'] as const satisfies readonly Status[]

/** What is reset, besides when the event is due. */
export const RESET = `status = 'PENDING', attempts = 0, expiries = 0, last_error = null, published_at = null,
    dead_at = null, parked = false`

export type Replayable = (typeof REPLAYABLE)[number]

/** Which events, as they were when the replay began. */
export interface Chosen {
  readonly schema: string
  readonly filter: EventFilter
  readonly statuses: readonly Replayable[]
  /** Seconds since 1970 by the clock of the database. What was finished later is not meant. */
  readonly asOf: number
}

/** A point on the way through the table: everything of the bucket up to this id. */
export interface Place {
  readonly bucket: number
  readonly id: string
}

/** From where to where, in the order of ids. */
export interface Stretch {
  readonly bucket: number
  readonly after: string
  readonly upTo: string
}

export interface Looked {
  /** Everything up to here was looked at; undefined when nothing was left. */
  readonly lookedTo: string | undefined
  /** There may be more behind it. */
  readonly full: boolean
  readonly published: number
  readonly dead: number
}

export interface Batch extends Looked {
  readonly replayed: number
  readonly firstId: string | undefined
  readonly lastId: string | undefined
  /** When the last of them is due, in seconds since 1970. */
  readonly lastDue: number | undefined
}

/** The present, by the clock of the database. */
export async function moment(db: Queryable): Promise<number> {
  const { rows } = await db.query<{ now: number }>({
    text: 'select extract(epoch from now())::float8 as now',
  })
  return rows[0]?.now ?? 0
}

/** Where each bucket ends: events that are written later are not meant. */
export async function endsOfBuckets(db: Queryable, schema: string): Promise<Place[]> {
  const ends: Place[] = []
  for (const bucket of await bucketsOf(db, schema)) {
    const { rows } = await db.query<Place>({
      text: `select $1::smallint as bucket, max(id)::text as id from ${outboxOf(schema)} where bucket = $1::smallint`,
      values: [bucket],
    })
    ends.push(...rows)
  }
  return ends
}

/** Counts what is meant in the next stretch, and changes nothing. */
export async function countStretch(db: Queryable, chosen: Chosen, stretch: Stretch): Promise<Looked> {
  const value = values()
  const { rows } = await db.query<Answer<Looked>>({
    text: `with ${lookedSql(chosen, stretch, value)}
select ${LOOKED},
  count(*) filter (where status = 'PUBLISHED')::int as published,
  count(*) filter (where status = 'DEAD')::int as dead
from ${outboxOf(chosen.schema)} where ${meantSql(chosen, stretch, value)}`,
    values: value.all,
  })
  return present(rows[0])
}

export interface Pace {
  /** Events per second; undefined: all at once. */
  readonly rate: number | undefined
  /** The first moment that is still free, in seconds since 1970. */
  readonly nextDue: number
}

/**
 * Replays the first events of the stretch. Reset are the state, the attempts and expiries, the last error, and what only
 * a finished event has (`published_at`, `dead_at`, `parked`). `lock_token` and `created_at` never are: a worker that still
 * holds a token of the event's former life stays fenced off.
 *
 * Not SKIP LOCKED: whoever holds one of the rows is another replay, or retention, and waiting for it tells whether the
 * row is still there to be replayed, where skipping would leave it out. All of them lock in the order of ids.
 *
 * With a rate each event gets a moment of its own, not before the one of its predecessor in any earlier batch and not
 * before the present: a replay that was held up does not catch up in a burst.
 */
export async function replayBatch(
  tx: Queryable,
  chosen: Chosen,
  stretch: Stretch,
  { rate, nextDue }: Pace,
  limit: number,
): Promise<Batch> {
  const value = values()
  const outbox = outboxOf(chosen.schema)
  const due =
    rate === undefined
      ? 'now()'
      : `greatest(now(), to_timestamp(${value(nextDue, 'float8')})) + make_interval(secs => n / ${value(rate, 'float8')})`
  const { rows } = await tx.query<Answer<Batch>>({
    text: `with ${lookedSql(chosen, stretch, value)},
picked as materialized (
  select id, status from ${outbox}
  where ${meantSql(chosen, stretch, value)}
  order by id limit ${value(limit, 'int')} for update
),
numbered as materialized (
  select id, status, row_number() over (order by id) - 1 as n from picked
),
replayed as (
  update ${outbox} as event
  set ${RESET}, available_at = ${due}
  from numbered
  where event.bucket = ${value(stretch.bucket, 'smallint')} and event.id = numbered.id
    and event.id = any (array(select id from picked))
  returning event.id, numbered.status as was, event.available_at
)
select ${LOOKED}, count(*)::int as replayed,
  count(*) filter (where was = 'PUBLISHED')::int as published, count(*) filter (where was = 'DEAD')::int as dead,
  min(id)::text as "firstId", max(id)::text as "lastId", extract(epoch from max(available_at))::float8 as "lastDue"
from replayed`,
    values: value.all,
  })
  return present(rows[0])
}

const LOOKED = `(select max(id) from looked)::text as "lookedTo", (select count(*) from looked) = ${STRETCH} as full`

/** How far this statement may look: an index leads it there, and a rare filter does not make it read on. */
function lookedSql(chosen: Chosen, { bucket, after, upTo }: Stretch, value: Values): string {
  const { narrow } = filterSql({ ids: chosen.filter.ids }, chosen.statuses, value)
  return `looked as materialized (
  select id from ${outboxOf(chosen.schema)}
  where bucket = ${value(bucket, 'smallint')} and id > ${value(after, 'bigint')} and id <= ${value(upTo, 'bigint')}
    and ${narrow}
  order by id limit ${STRETCH}
)`
}

function meantSql(chosen: Chosen, { bucket, after }: Stretch, value: Values): string {
  return `bucket = ${value(bucket, 'smallint')} and id > ${value(after, 'bigint')}
    and id <= (select max(id) from looked)
    and ${filterSql(chosen.filter, chosen.statuses, value).whole}
    and coalesce(published_at, dead_at) < to_timestamp(${value(chosen.asOf, 'float8')})`
}

/** SQL says null where nothing is. */
type Answer<Row> = { readonly [Field in keyof Row]: Row[Field] | null }

function present<Row extends Looked>(row: Answer<Row> | undefined): Row {
  const fields = Object.entries(row ?? {}).map(([name, value]) => [name, value ?? undefined])
  // An aggregate always answers, with exactly the fields of Row; its counts are never null.
  return Object.fromEntries(fields) as Row
}
