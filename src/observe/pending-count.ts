import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { LeaseTable } from '../lease/table.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { pendingInBundles, pendingWhere } from './pending-age.ts'

export interface PendingCount {
  /** What could be claimed now. */
  readonly pending: number
  readonly leased: number
  /** From this on nobody counted further. */
  readonly most: number
}

/** Counts up to a bound: a table of a million rows is not read for the sake of a number on a screen. */
export async function pendingCount(db: Queryable, table: LeaseTable, most = 10_000): Promise<PendingCount> {
  const target = quoteQualified(table.schema, table.name)
  const count = (from: string): string =>
    `(select count(*)::int from (select from ${from} limit $1::int) as found)`
  const pending = table.bundles === undefined ? `${target} where ${pendingWhere(table)}` : pendingOnce(table)
  const noted =
    table.notes === undefined
      ? ''
      : ` and ${quote(table.key[0] ?? '')} = any (array(select unnest(rows) from ${quoteQualified(table.notes.schema, table.notes.name)}))`
  // The owner first: an index on leased rows names it.
  const leased = `${quote(table.lease.owner)} is not null and ${quote(table.lease.until)} > now()${noted}`
  const { rows } = await db.query<{ pending: number; leased: number }>({
    text: `select ${count(pending)} as pending,\n  ${count(`${target} where ${leased}`)} as leased`,
    values: [most],
  })
  return { pending: rows[0]?.pending ?? 0, leased: rows[0]?.leased ?? 0, most }
}

/** Each row once, though several bundles may name it; of so many that are read, so that not all are. */
function pendingOnce(table: LeaseTable): string {
  const key = [...(table.bucket === undefined ? [] : [table.bucket]), ...table.key].map(quote).join(', ')
  const named = `select waiting.* from ${pendingInBundles(table, `select ${key}`)} limit 2 * $1::int`
  return `(select distinct * from (${named}) as named) as each`
}
