/** How the attempts at an endpoint went in the last 24 hours, hour by hour. */
import { ALONG_INDEX, type BrowseOptions, readOnly } from '../../operations/browse.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { endpointNotFound } from '../endpoints/endpoint.ts'
import { deliveriesOf, endpointsOf } from './filter.ts'

export interface EndpointHealth {
  readonly id: string
  /** 24, the oldest first; the last is the current hour. */
  readonly hours: readonly HourOfAttempts[]
  /** The last ten attempts that failed, the newest first. */
  readonly failures: readonly FailedAttempt[]
  /** There may be more attempts than were read: only the newest deliveries are. */
  readonly partial: boolean
}

export interface HourOfAttempts {
  readonly from: Date
  /** Attempts that succeeded, and those that failed. */
  readonly delivered: number
  readonly failed: number
  /** Of the attempts whose duration is known; null: there are none. */
  readonly medianMs: number | null
}

export interface FailedAttempt {
  readonly deliveryId: string
  readonly at: Date
  readonly status: number | null
  readonly errorCode: string
}

const HOURS = 24
const HOUR_MS = 3_600_000
const MAX_FAILURES = 10

/** The newest deliveries of each endpoint are found in its index: in each bucket so many, of which each endpoint has its part. */
const MAX_SCANNED = 100_000
/** Of those, the newest, and their newest attempts. */
const MAX_DELIVERIES = 10_000
const MAX_ATTEMPTS = 20_000

const READING = { what: 'Reading the attempts', remedy: 'Allow more time.' }

/** Fails if there is no such endpoint. */
export async function readEndpointHealth(
  db: Database,
  id: string,
  options: BrowseOptions = {},
): Promise<EndpointHealth> {
  const [health] = await readHealthOfEndpoints(db, [id], options)
  if (health === undefined) throw endpointNotFound(id)
  return health
}

/** In the order of the ids; of endpoints that do not exist there is none. */
export async function readHealthOfEndpoints(
  db: Database,
  ids: readonly string[],
  options: BrowseOptions = {},
): Promise<EndpointHealth[]> {
  const { schema } = options
  return readOnly(db, options, READING, async (tx) => {
    const { rows: known } = await tx.query<{ id: string }>({
      text: `select id::text as id from ${endpointsOf(schema)} where id = any ($1::uuid[])`,
      values: [ids],
    })
    await tx.query({ text: ALONG_INDEX })
    const read: ReadAttempts[] = []
    for (const bucket of await ownBuckets(tx, schema))
      read.push(
        await attemptsIn(
          tx,
          schema,
          bucket,
          known.map(({ id }) => id),
        ),
      )
    const since = Math.max(...read.map((each) => each.since))
    const partial = read.some((each) => each.partial)
    const attempts = read.flatMap((each) => each.attempts)
    const order = ids.map((id) => id.toLowerCase())
    return known
      .toSorted((a, b) => order.indexOf(a.id) - order.indexOf(b.id))
      .map(({ id }) => {
        const own = attempts.filter(([endpointId]) => endpointId === id)
        return { ...healthOf(own, since), id, partial }
      })
  })
}

/** Endpoint, delivery, when it was recorded in ms since 1970, error code, HTTP status, and duration in ms. */
type Attempt = readonly [string, string, number, string | null, number | null, number | null]

interface ReadAttempts {
  /** The start of the first hour, in ms since 1970. */
  readonly since: number
  readonly partial: boolean
  readonly attempts: readonly Attempt[]
}

async function attemptsIn(
  tx: Queryable,
  schema: string | undefined,
  bucket: number,
  ids: readonly string[],
): Promise<ReadAttempts> {
  const table = deliveriesOf(schema)
  const ofEach = Math.ceil(MAX_SCANNED / Math.max(1, ids.length))
  const { rows } = await tx.query<Omit<ReadAttempts, 'since'> & { since: string }>({
    text: `with span as materialized (
  select date_bin('1 hour', now(), timestamptz '2000-01-01 00:00+00') - ${HOURS - 1} * interval '1 hour' as since
),
-- An attempt is recorded in the delivery, which may have been written long before.
newest as materialized (
  select d.* from unnest($2::uuid[]) as among (value) cross join lateral (
    -- As in lists of endpoints (src/operations/browse.ts), only the index of endpoints has the rows in this order.
    select endpoint_id, id from ${table}
    where endpoint_id = any (array[among.value]) and bucket = $1::smallint
    order by endpoint_id desc, id desc limit $3::int
  ) as d
),
chosen as materialized (
  select id from newest order by id desc limit ${MAX_DELIVERIES}
),
attempt as materialized (
  select d.endpoint_id, d.id, (entry ->> 'recorded_at')::timestamptz as recorded_at, entry
  from chosen
  -- The limit keeps it from being joined as a whole table.
  cross join lateral (
    select * from ${table} as r where r.bucket = $1::smallint and r.id = chosen.id limit 1
  ) as d
  cross join lateral jsonb_array_elements(d.history) as entry
  where (entry ->> 'recorded_at')::timestamptz >= (select since from span)
  order by recorded_at desc limit ${MAX_ATTEMPTS}
)
select (extract(epoch from since) * 1000)::text as since,
  exists (select from newest group by endpoint_id having count(*) = $3::int)
    or (select count(*) = ${MAX_DELIVERIES} from chosen)
    or (select count(*) = ${MAX_ATTEMPTS} from attempt) as partial,
  (select coalesce(jsonb_agg(jsonb_build_array(endpoint_id, id::text, floor(extract(epoch from recorded_at) * 1000),
    entry -> 'error_code', entry -> 'status', entry -> 'duration_ms')), '[]') from attempt) as attempts
from span`,
    values: [bucket, ids, ofEach],
  })
  return rows[0] === undefined
    ? { since: 0, partial: false, attempts: [] }
    : { ...rows[0], since: Number(rows[0].since) }
}

function healthOf(attempts: readonly Attempt[], since: number): Pick<EndpointHealth, 'hours' | 'failures'> {
  const failures = attempts
    .toSorted(([, , a], [, , b]) => b - a)
    .flatMap(([, deliveryId, at, errorCode, status]) =>
      errorCode === null ? [] : [{ deliveryId, at: new Date(at), status, errorCode }],
    )
  return {
    hours: Array.from({ length: HOURS }, (_, hour) => {
      const from = since + hour * HOUR_MS
      const own = attempts.filter(([, , at]) => at >= from && at < from + HOUR_MS)
      const failed = own.filter(([, , , errorCode]) => errorCode !== null).length
      return {
        from: new Date(from),
        delivered: own.length - failed,
        failed,
        medianMs: median(own.flatMap(([, , , , , durationMs]) => durationMs ?? [])),
      }
    }),
    failures: failures.slice(0, MAX_FAILURES),
  }
}

function median(values: readonly number[]): number | null {
  const sorted = values.toSorted((a, b) => a - b)
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]]
  return low === undefined || high === undefined ? null : (low + high) / 2
}
