import { inspectTable } from '../lease/inspect.ts'
import type { LeaseTable } from '../lease/table.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'

/** Reads how many seconds the oldest row has waited that could be claimed now; 0 when there is none. */
export type PendingAge = (db: Queryable) => Promise<number | undefined>

/**
 * The age is that of `availableAt` or, without it, of the first column of the order where that is a moment; a table
 * that has neither has no age, and the answer is undefined.
 */
export function pendingAge(table: LeaseTable): PendingAge {
  let moment: { readonly column: string | undefined } | undefined

  return async (db) => {
    moment ??= { column: await momentColumn(db, table) }
    if (moment.column === undefined) return undefined
    // `min` is a look at the first entry of an index that begins with the column, in either direction.
    const { rows } = await db.query<{ age: number | null }>({
      text: `select extract(epoch from now() - min(${quote(moment.column)}))::float8 as age
from ${quoteQualified(table.schema, table.name)}
where ${pendingWhere(table)}`,
    })
    return Math.max(0, rows[0]?.age ?? 0)
  }
}

/** What a claim would take, as `lease/claim-sql.ts` has it, in whatever bucket. */
export function pendingWhere(table: LeaseTable): string {
  const until = quote(table.lease.until)
  return [
    `(${table.claimable})`,
    ...(table.availableAt === undefined ? [] : [`${quote(table.availableAt)} <= now()`]),
    table.onExpiry === 'claimable' ? `coalesce(${until} <= now(), true)` : `${until} is null`,
    ...(table.exhausted === undefined ? [] : [`(${until} is null or not (${table.exhausted}))`]),
  ].join('\n  and ')
}

async function momentColumn(db: Queryable, table: LeaseTable): Promise<string | undefined> {
  if (table.availableAt !== undefined) return table.availableAt
  const [first] = table.order
  if (first === undefined) return undefined
  const inspection = await inspectTable(db, table)
  if (inspection.found !== 'table') throw new Error(`${table.schema}.${table.name} is not a table`)
  const type = inspection.shape.columns.get(first.column)?.type
  return type === 'timestamp with time zone' ? first.column : undefined
}
