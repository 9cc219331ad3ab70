/** How many rows there are of a kind, without reading the table. */
import type { Queryable } from '../postgres/queryable.ts'

export interface Count {
  readonly count: number
  /** False: an estimate from the statistics of PostgreSQL; say "about". */
  readonly exact: boolean
}

/** Up to here everything is counted: some 20 ms along an index. */
export const COUNTED = 100_000

/**
 * `where` is in the words of a partial index. With the order of that index as well, no estimate makes PostgreSQL read the
 * table instead.
 */
export async function countUpTo(tx: Queryable, table: string, where: string, order?: string): Promise<Count> {
  const ordered = order === undefined ? '' : ` order by ${order}`
  const { rows } = await tx.query<{ count: number }>({
    text: `select count(*)::int as count from (select from ${table} where ${where}${ordered} limit $1::int) as found`,
    values: [COUNTED],
  })
  const count = rows[0]?.count ?? 0
  if (count < COUNTED) return { count, exact: true }
  return { count: Math.max(COUNTED, await estimate(tx, table, where)), exact: false }
}

/** What has no index of its own: counted in a small table, and what remains of the estimated number in a large one. */
export async function countRest(
  tx: Queryable,
  table: string,
  where: string,
  others: readonly Count[],
): Promise<Count> {
  const all = await estimate(tx, table, 'true')
  if (all < COUNTED) {
    const { rows } = await tx.query<{ count: number }>({
      text: `select count(*)::int as count from ${table} where ${where}`,
    })
    return { count: rows[0]?.count ?? 0, exact: true }
  }
  const rest = all - others.reduce((sum, { count }) => sum + count, 0)
  return { count: Math.max(0, rest), exact: false }
}

export function sum(counts: readonly Count[]): Count {
  return {
    count: counts.reduce((all, { count }) => all + count, 0),
    exact: counts.every(({ exact }) => exact),
  }
}

/** What the planner expects: it knows the size of the table as it is now, also before the first ANALYZE. */
export async function estimate(tx: Queryable, table: string, where: string): Promise<number> {
  const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: { 'Plan Rows': number } }] }>({
    text: `explain (format json) select from ${table} where ${where}`,
  })
  return rows[0]?.['QUERY PLAN'][0].Plan['Plan Rows'] ?? 0
}
