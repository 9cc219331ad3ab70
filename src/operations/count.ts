/** How many rows there are of a kind, without reading the table. */
import type { Queryable } from '../postgres/queryable.ts'

export interface Count {
  readonly count: number
  /** False: an estimate from the statistics of PostgreSQL; say "about". */
  readonly exact: boolean
}

/** Up to so many rows are counted, which takes about 20 ms along an index; beyond that the planner's estimate is used. */
const MAX_COUNTED_ROWS = 100_000

/**
 * Counts the rows that satisfy a condition, which is written in the words of a partial index. With the order of that
 * index as well, no estimate makes PostgreSQL read the table instead.
 */
export async function countUpTo(tx: Queryable, table: string, where: string, order?: string): Promise<Count> {
  const ordered = order === undefined ? '' : ` order by ${order}`
  const { rows } = await tx.query<{ count: number }>({
    text: `select count(*)::int as count from (select 1 from ${table} where ${where}${ordered} limit $1::int) as found`,
    values: [MAX_COUNTED_ROWS],
  })
  const count = rows[0]?.count ?? 0
  if (count < MAX_COUNTED_ROWS) return { count, exact: true }
  return { count: Math.max(MAX_COUNTED_ROWS, await estimateRows(tx, table, where)), exact: false }
}

/**
 * Counts rows of a kind that no index holds. In a small table they are counted; in a large one they are the estimated
 * number of rows minus the others.
 */
export async function countRemaining(
  tx: Queryable,
  table: string,
  where: string,
  others: readonly Count[],
): Promise<Count> {
  const all = await estimateRows(tx, table, 'true')
  if (all < MAX_COUNTED_ROWS) {
    const { rows } = await tx.query<{ count: number }>({
      text: `select count(*)::int as count from ${table} where ${where}`,
    })
    return { count: rows[0]?.count ?? 0, exact: true }
  }
  return { count: Math.max(0, all - sumCounts(others).count), exact: false }
}

export function sumCounts(counts: readonly Count[]): Count {
  return {
    count: counts.reduce((sum, { count }) => sum + count, 0),
    exact: counts.every(({ exact }) => exact),
  }
}

/** The planner's estimate: it knows the size of the table as it is now, also before the first ANALYZE. */
async function estimateRows(tx: Queryable, table: string, where: string): Promise<number> {
  const explain = { text: `explain (format json) select from ${table} where ${where}` }
  const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: EstimatedPlan }] }>(explain)
  const plan = rows[0]?.['QUERY PLAN'][0].Plan
  if (plan?.['Distributed Query'] === undefined) return plan?.['Plan Rows'] ?? 0
  // Citus knows nothing of the number of rows. The nodes do, and it shows the plan of one shard unless it is told otherwise.
  await tx.query({ text: 'set local citus.explain_all_tasks to on' })
  const { rows: all } = await tx.query<{ 'QUERY PLAN': [{ Plan: EstimatedPlan }] }>(explain)
  return estimateOfShards(all[0]?.['QUERY PLAN'][0].Plan)
}

/** What is read of `EXPLAIN (FORMAT JSON)`. Citus adds the plans of the shards. */
export interface EstimatedPlan {
  readonly 'Plan Rows': number
  readonly 'Distributed Query'?: {
    readonly Job: {
      readonly Tasks: readonly { readonly 'Remote Plan': readonly (readonly { Plan: EstimatedPlan }[])[] }[]
    }
  }
}

/** The rows that the nodes estimate, in all shards. */
export function estimateOfShards(plan: EstimatedPlan | undefined): number {
  const tasks = plan?.['Distributed Query']?.Job.Tasks ?? []
  return tasks
    .flatMap((task) => task['Remote Plan'].flat())
    .reduce((sum, shard) => sum + shard.Plan['Plan Rows'], 0)
}
