/** The leases of a table: which rows are in flight, who holds them, and for how long. For operators. */
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { inEachBucket, shapeOf } from './backlog.ts'
import { and, type LeaseStatement, parameters, statement } from './statement.ts'
import { type LeaseTable, tableName } from './table.ts'
import { inBucket, rowIdSql, type TableSql, tableSql, TOKEN_MARK } from './table-sql.ts'

/** A row in flight, by the clock of the database. */
export interface HeldLease {
  /** As `schema.table`. */
  readonly table: string
  /** The row, as `Lease.id` names it. */
  readonly id: string
  readonly bucket: number | null
  readonly owner: string
  /** Digits. Null: somebody else wrote the owner, without a token. */
  readonly token: string | null
  /** When it was claimed; null: the table does not store it. */
  readonly since: Date | null
  readonly until: Date
  /** Negative: it has expired, and nobody has taken the row back. */
  readonly leftMs: number
}

export interface HeldLeases {
  /** Those that end first come first. */
  readonly leases: readonly HeldLease[]
  /** There are more than were asked for. */
  readonly more: boolean
}

export interface HeldLeasesOptions {
  /** Only leases of this worker process. */
  readonly owner?: string | undefined
  readonly limit: number
}

/** The leases of a table that end first. */
export async function heldLeases(
  db: Queryable,
  table: LeaseTable,
  { owner, limit }: HeldLeasesOptions,
): Promise<HeldLeases> {
  const t = tableSql(table, await shapeOf(db, table))
  const { text, parameters: names } = findLeases(t)
  const found = await inEachBucket(db, t, async (bucket) => {
    const values: Readonly<Record<string, unknown>> = { bucket, owner: owner ?? null, limit: limit + 1 }
    const { rows } = await db.query<Omit<HeldLease, 'table' | 'bucket'>>({
      text,
      values: names.map((name) => values[name]),
    })
    return rows.map((row) => ({ table: tableName(table), bucket: bucket ?? null, ...row }))
  })
  const leases = found.flat().toSorted((a, b) => a.leftMs - b.leftMs)
  return { leases: leases.slice(0, limit), more: leases.length > limit }
}

/**
 * Written like the predicate of the index that the reaper reads, which has leased rows only. They are not in the order of
 * their ends there; but there are no more of them than the workers have claimed.
 */
export function findLeases(t: TableSql): LeaseStatement {
  const $ = parameters()
  const ownerText = `${t.owner}::text`
  const worker =
    t.token === undefined ? `regexp_replace(${ownerText}, '${TOKEN_MARK}[0-9]+$', '')` : ownerText
  const token =
    t.token === undefined ? `substring(${ownerText} from '${TOKEN_MARK}([0-9]+)$')` : `${t.token}::text`
  const since = claimedAtColumn(t.table)
  const where = [
    inBucket(t, $),
    `(${t.table.leased ?? 'true'})`,
    `${t.owner} is not null`,
    `isfinite(${t.until})`,
  ]
  return statement(
    t.table,
    'list leases',
    $,
    `
select id, owner, token, since, until, round(extract(epoch from until - now()) * 1000)::float8 as "leftMs"
from (
  select ${rowIdSql(t)} as id, ${worker} as owner, ${token} as token, ${t.until} as until,
    ${since === undefined ? 'null::timestamptz' : quote(since)} as since
  from ${t.target}
  where ${and(where, '    ')}
) as held
where ${$('owner', 'text')} is null or owner = ${$('owner', 'text')}
order by until
limit ${$('limit', 'int')}`,
  )
}

/** The column into which a claim writes its time, if there is one. */
function claimedAtColumn({ writes }: LeaseTable): string | undefined {
  return Object.entries(writes.claim).find(([, value]) => value === 'now()')?.[0]
}
