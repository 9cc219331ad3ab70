/**
 * How much waits in a lease table, and for how long: for metrics and for operators, who ask often. Every scan goes along
 * an index that claims use and ends after a bounded number of rows, so that a table of a million rows is not read for
 * the sake of a number on a screen.
 */
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { inspectTable, type TableShape } from './inspect.ts'
import { and, type LeaseStatement, list, type Parameters, parameters, statement } from './statement.ts'
import { type LeaseTable, tableName } from './table.ts'
import {
  claimableOrExpired,
  inBucket,
  noneInFlight,
  orderBy,
  orderingOf,
  rowIdSql,
  suspects,
  type TableSql,
  tableSql,
  withoutKey,
} from './table-sql.ts'

/** A walk visits at most this many ordering keys, or groups: about 100 ms. */
const MAX_STEPS = 10_000

/** In a table that is not claimed in the order of its moments, the oldest is that of the next rows, this many. */
const MAX_SCANNED = 10_000

/** The age is that of everything scanned. */
const NO_LIMIT = 2_147_483_647

/** Reads how many seconds the oldest row has waited that could be claimed now; 0 when there is none. */
export type PendingAge = (db: Queryable) => Promise<number | undefined>

/**
 * The age is that of `availableAt` or, without it, of the first column of the order where that is a moment. A table
 * that has neither has no age, and the answer is undefined.
 */
export function pendingAge(table: LeaseTable): PendingAge {
  let shape: TableShape | undefined

  return async (db) => {
    shape ??= await shapeOf(db, table)
    if (momentOf(table, shape) === undefined) return undefined
    return (await oldestOf(db, table, shape))?.ageSeconds ?? 0
  }
}

export interface OldestPending {
  readonly bucket: number | undefined
  readonly id: string
  readonly ageSeconds: number
}

/** The row that could have been claimed for the longest time; undefined when none can. */
export async function oldestPending(db: Queryable, table: LeaseTable): Promise<OldestPending | undefined> {
  return oldestOf(db, table, await shapeOf(db, table))
}

async function oldestOf(
  db: Queryable,
  table: LeaseTable,
  shape: TableShape,
): Promise<OldestPending | undefined> {
  const t = tableSql(table, shape)
  const [first] = table.order
  const isInOrder = first?.direction === 'asc' && first.column === momentOf(table, shape)
  const scanned = isInOrder ? 1 : MAX_SCANNED
  const found = await inEachBucket(db, t, async (bucket) => {
    const { oldest, age } = await read(db, backlog(t, shape), {
      bucket,
      scanned,
      limit: NO_LIMIT,
      steps: MAX_STEPS,
    })
    return oldest === null || age === null ? [] : [{ bucket, id: oldest, ageSeconds: Math.max(0, age) }]
  })
  return found.flat().toSorted((a, b) => b.ageSeconds - a.ageSeconds)[0]
}

export interface PendingCount {
  /** What could be claimed now. Where rows have ordering keys, these are the heads of the keys. */
  readonly pending: number
  readonly leased: number
  /** From this on nobody counted further. */
  readonly most: number
}

/** Counts what could be claimed now and what is leased, each up to a bound. */
export async function pendingCount(db: Queryable, table: LeaseTable, most = 10_000): Promise<PendingCount> {
  const shape = await shapeOf(db, table)
  const t = tableSql(table, shape)
  const counts = await inEachBucket(db, t, async (bucket) => ({
    pending: (await read(db, backlog(t, shape), { bucket, scanned: most, limit: most, steps: MAX_STEPS }))
      .count,
    leased: (await read(db, leased(t), { bucket, limit: most })).count,
  }))
  const upToMost = (sum: number, count: number): number => Math.min(most, sum + count)
  return {
    pending: counts.map(({ pending }) => pending).reduce(upToMost, 0),
    leased: counts.map((each) => each.leased).reduce(upToMost, 0),
    most,
  }
}

/** Reads how many rows could be claimed now, up to 10,000. Where rows have ordering keys, these are the heads of the keys. */
export function pendingRows(table: LeaseTable): (db: Queryable) => Promise<number> {
  let shape: TableShape | undefined

  return async (db) => {
    shape ??= await shapeOf(db, table)
    const t = tableSql(table, shape)
    const count = backlog(t, shape)
    const limits = { scanned: MAX_SCANNED, limit: MAX_SCANNED, steps: MAX_STEPS }
    const counts = await inEachBucket(db, t, async (bucket) => read(db, count, { bucket, ...limits }))
    return Math.min(
      MAX_SCANNED,
      counts.reduce((sum, each) => sum + each.count, 0),
    )
  }
}

export interface HeldUpKeyCounts {
  /** The head has failed and waits for its retry, and others wait for it. */
  readonly blocked: number
  /** The head is not claimable by itself, as an event that is dead and parked: an operator has to decide. */
  readonly parked: number
}

/**
 * Reads how many ordering keys of the table are held up, among the first 10,000 of each bucket that have unfinished rows.
 * Where attempts are not counted, no key is known to be blocked.
 */
export function heldUpKeyCounts(table: LeaseTable): (db: Queryable) => Promise<HeldUpKeyCounts> {
  let shape: TableShape | undefined

  return async (db) => {
    shape ??= await shapeOf(db, table)
    const t = tableSql(table, shape)
    const { text, parameters: names } = heldUpKeys(t)
    const counts = await inEachBucket(db, t, async (bucket) => {
      const values: Readonly<Record<string, unknown>> = { bucket, steps: MAX_STEPS }
      const { rows } = await db.query<HeldUpKeyCounts>({ text, values: names.map((name) => values[name]) })
      return rows[0] ?? { blocked: 0, parked: 0 }
    })
    return {
      blocked: counts.reduce((sum, { blocked }) => sum + blocked, 0),
      parked: counts.reduce((sum, { parked }) => sum + parked, 0),
    }
  }
}

/** All buckets of the tables of Leasehold in this schema. No table is read: on Citus its rows are on several nodes. */
export async function ownBuckets(db: Queryable, schema = 'leasehold'): Promise<number[]> {
  const { rows } = await db.query<{ count: number }>({
    text: `select ${quoteQualified(schema, 'bucket_count')}() as count`,
  })
  return Array.from({ length: rows[0]?.count ?? 1 }, (_, bucket) => bucket)
}

/** The buckets that have rows, found by stepping from one to the next along an index that begins with the column. */
async function bucketsIn(db: Queryable, { target, buckets }: TableSql, column: string): Promise<number[]> {
  const { rows } = await db.query<{ bucket: number }>({
    // Citus has no recursive query over several nodes.
    text:
      buckets !== undefined
        ? `select bucket from ${buckets} order by bucket`
        : `with recursive found as (
  (select ${column} as bucket from ${target} order by ${column} limit 1)
  union all
  select (select t.${column} from ${target} as t where t.${column} > found.bucket order by t.${column} limit 1)
  from found where found.bucket is not null
)
select bucket from found where bucket is not null`,
  })
  return rows.map(({ bucket }) => bucket)
}

/** One statement for each bucket, so that where the table is distributed each is routed to one shard. */
export async function inEachBucket<Answered>(
  db: Queryable,
  t: TableSql,
  ask: (bucket: number | undefined) => Promise<Answered>,
): Promise<Answered[]> {
  if (t.bucket === undefined) return [await ask(undefined)]
  const answers: Answered[] = []
  for (const bucket of await bucketsIn(db, t, t.bucket.name)) answers.push(await ask(bucket))
  return answers
}

/** The buckets of a table that have rows; none where it has no buckets. */
export async function bucketsOf(db: Queryable, t: TableSql): Promise<number[]> {
  return t.bucket === undefined ? [] : bucketsIn(db, t, t.bucket.name)
}

interface Answer {
  readonly count: number
  readonly age: number | null
  readonly oldest: string | null
}

async function read(
  db: Queryable,
  { text, parameters: names }: LeaseStatement,
  values: Readonly<Record<string, unknown>>,
): Promise<Answer> {
  const { rows } = await db.query<Answer>({ text, values: names.map((name) => values[name]) })
  return rows[0] ?? { count: 0, age: null, oldest: null }
}

/** The rows that could be claimed now, and how long the oldest of them has waited. */
export function backlog(t: TableSql, shape: TableShape): LeaseStatement {
  const $ = parameters()
  const moment = momentOf(t.table, shape)
  const at = moment === undefined ? 'null::timestamptz' : quote(moment)
  const scans: [name: string, rows: string][] = scannedApart(t, shape).map((which, i) => [
    `scan${i + 1}`,
    t.group === undefined ? inOrder(t, $, at, which) : inGroups(t, $, at, which),
  ])
  if (t.orderingKey !== undefined) scans.push(['heads', heads(t, $, at)])
  const found = scans.map(([name, rows]) => `(\n  ${rows}\n) as ${name}`)
  return statement(
    t.table,
    'backlog',
    $,
    `
select count(*)::int as count, extract(epoch from now() - min(at))::float8 as age,
  (array_agg(row_id order by at))[1] as oldest
from (
  select at, row_id from ${found.join('\n  union all select at, row_id from ')}
  limit ${$('limit', 'int')}
) as pending`,
  )
}

/** Rows without an ordering key, along the claim index. With its order no estimate leads away from that index. */
function inOrder(t: TableSql, $: Parameters, at: string, which: string): string {
  return `select ${at} as at, ${rowIdSql(t)} as row_id
  from ${t.target}
  where ${and([inBucket(t, $), ...withoutKey(t), ...claimableOrExpired(t), which], '    ')}
  order by ${orderBy(t)}
  limit ${$('scanned', 'int')}`
}

/** The same in each group, stepping from group to group in the index. */
function inGroups(t: TableSql, $: Parameters, at: string, which: string): string {
  const group = t.group?.name ?? ''
  const waiting = [inBucket(t, $), ...withoutKey(t), `(${t.table.claimable})`, which]
  return `with recursive groups as (
    (select ${group}, 1 as step from ${t.target} where ${and(waiting, '      ')} order by ${group} limit 1)
    union all
    select next.${group}, groups.step + 1
    from groups
    cross join lateral (
      select t.${group} from ${t.target} as t
      where ${and([...waiting, `t.${group} > groups.${group}`], '        ')} order by t.${group} limit 1
    ) as next
    where groups.step < ${$('steps', 'int')}
  )
  select row.at, row.row_id
  from groups
  cross join lateral (
    select ${at} as at, ${rowIdSql(t)} as row_id
    from ${t.target} as t
    where ${and([...waiting, `t.${group} = groups.${group}`, ...claimableOrExpired(t).slice(1)], '      ')}
    order by ${orderBy(t)}
    limit ${$('scanned', 'int')}
  ) as row`
}

/** The heads of ordering keys that could be claimed: what is queued after a head has to wait, whatever its own moment. */
function heads(t: TableSql, $: Parameters, at: string): string {
  return `${headWalk(t, $, `${at} as at,\n      ${and(claimableOrExpired(t), '        ')} as ready`)}
  select at, ${rowIdSql(t)} as row_id from walk where ready and ${noneInFlight(t, $, 'walk')}`
}

/** The keys whose head has failed, or is unfinished and nevertheless not claimable. A head that is leased is being tried. */
function heldUpKeys(t: TableSql): LeaseStatement {
  const $ = parameters()
  const { key, id } = orderingOf(t)
  const failed = t.attempts === undefined ? 'false' : `${t.attempts} > 0`
  const facts = `(${t.table.claimable}) as claimable, ${failed} as failed, ${t.owner} is null as free`
  const sameGroup = t.group === undefined ? '' : `o.${t.group.name} = walk.${t.group.name}`
  const others = [
    inBucket(t, $, 'o.'),
    sameGroup,
    `o.${key} = walk.${key}`,
    `(${t.table.ordering?.unfinished ?? 'true'})`,
    `o.${id} <> walk.${id}`,
  ]
  return statement(
    t.table,
    'count held-up keys',
    $,
    `
${headWalk(t, $, facts)}
select count(*) filter (where not claimable and free)::int as parked,
  count(*) filter (where claimable and failed and exists (
    select from ${t.target} as o where ${and(others, '      ')}
  ))::int as blocked                                -- a key with a single row holds up nothing
from walk where failed or not claimable`,
  )
}

/** Steps from key to key in the index: one probe finds the next key, its head, and these facts of it. */
function headWalk(t: TableSql, $: Parameters, facts: string): string {
  const { key, id } = orderingOf(t)
  const names = [...(t.group === undefined ? [] : [t.group.name]), key]
  const where = [inBucket(t, $), `${key} is not null`, `(${t.table.ordering?.unfinished ?? 'true'})`]
  const head = (
    step: string,
    after: string,
  ): string => `select ${step} as step, ${list(names)}, ${id}, ${facts}
    from ${t.target}
    where ${and([...where, after], '      ')}
    order by ${list(names)}, ${id} limit 1`
  return `with recursive walk as (
    (${head('1', '')})
    union all
    select head.*
    from walk
    cross join lateral (
    ${head('walk.step + 1', `(${list(names)}) > (${list(names.map((name) => `walk.${name}`))})`)}
    ) as head
    where walk.step < ${$('steps', 'int')}
  )`
}

/** Where an index leaves out suspects they are scanned by themselves, along their own index. */
function scannedApart(t: TableSql, shape: TableShape): string[] {
  const { expiries } = t.table.attempts ?? {}
  const isSplit =
    expiries !== undefined && shape.indexes.some(({ predicate }) => predicate?.includes(expiries))
  return isSplit ? [suspects(t, false), suspects(t, true)] : ['']
}

/** Written like the predicate of the index that the reaper reads, which has leased rows only. */
function leased(t: TableSql): LeaseStatement {
  const $ = parameters()
  const where = [
    inBucket(t, $),
    `(${t.table.leased ?? 'true'})`,
    `${t.owner} is not null`,
    `${t.until} > now()`,
  ]
  return statement(
    t.table,
    'count leased',
    $,
    `
select count(*)::int as count
from (select from ${t.target} where ${and(where, '  ')} limit ${$('limit', 'int')}) as leased`,
  )
}

export async function shapeOf(db: Queryable, table: LeaseTable): Promise<TableShape> {
  const inspection = await inspectTable(db, table)
  if (inspection.found !== 'table') throw new Error(`${tableName(table)} is not a table`)
  return inspection.shape
}

function momentOf(table: LeaseTable, shape: TableShape): string | undefined {
  if (table.availableAt !== undefined) return table.availableAt
  const [first] = table.order
  if (first === undefined) return undefined
  return shape.columns.get(first.column)?.type === 'timestamp with time zone' ? first.column : undefined
}
