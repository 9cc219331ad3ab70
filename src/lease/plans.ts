import { type Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { type Queryable } from '../postgres/queryable.ts'
import { misfit } from './misfit.ts'
import { type TableShape } from './inspect.ts'
import { leaseStatements } from './sql.ts'
import { type LeaseStatement } from './statement.ts'
import { type LeaseTable } from './table.ts'

/** One node of `EXPLAIN (FORMAT JSON)`, as far as we read it. */
export interface PlanNode {
  readonly 'Node Type': string
  readonly 'Subplan Name'?: string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly Plans?: readonly PlanNode[]
}

/**
 * Plans every statement without running it: a fragment that is not SQL is found here, and so is a claim or a reap
 * that no index serves. Sequential scans are switched off meanwhile, so that an empty table tells the same as a full
 * one: if the planner still finds nothing better than reading everything, there is nothing better.
 */
export async function refuseSlowPlans(db: Database, table: LeaseTable, shape: TableShape): Promise<void> {
  const statements = leaseStatements(table, shape)
  await db.transaction(async (tx) => {
    await tx.query({ text: 'set local enable_seqscan = off' })
    const { claim, claimFrom, renew, release, reap, settle } = statements
    const claimPlan = await planOf(tx, table, claim)
    const reapPlan = await planOf(tx, table, reap)
    for (const statement of [claimFrom, renew, release, ...settle.values()]) {
      if (statement !== undefined) await planOf(tx, table, statement)
    }
    if (!isServed(table, shape, subplan(claimPlan, 'CTE next'))) {
      throw misfit(
        table,
        'no index serves the claim, which would read every row',
        `Run: ${claimIndex(table)}`,
      )
    }
    if (!isServed(table, shape, subplan(reapPlan, 'CTE expired'))) {
      throw misfit(
        table,
        'no index serves the reaper, which would read every row',
        `Run: ${reapIndex(table)}`,
      )
    }
  })
}

/** The plan of a statement, with values that mean nothing. */
async function planOf(tx: Queryable, table: LeaseTable, statement: LeaseStatement): Promise<PlanNode> {
  const samples: Readonly<Record<string, unknown>> = {
    owner: '',
    leaseMs: 1,
    limit: 1,
    bucket: 0,
    tokens: '{}',
  }
  try {
    const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
      text: `explain (format json) ${statement.text}`,
      values: statement.parameters.map((parameter) => samples[parameter] ?? null),
    })
    const plan = rows[0]?.['QUERY PLAN'][0].Plan
    if (plan === undefined) throw new Error('EXPLAIN returned no plan')
    return plan
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    throw misfit(
      table,
      `PostgreSQL refuses the statement \`${statement.name}\` generated from it (${reason})`,
      'Correct the SQL fragment of the declaration that the message speaks of.',
      error,
    )
  }
}

/** Whether the rows are found through an index that leaves the finished ones out. */
function isServed(table: LeaseTable, shape: TableShape, plan: PlanNode | undefined): boolean {
  const scans = plan === undefined ? [] : nodesOf(plan)
  return (
    !scans.some((node) => node['Node Type'] === 'Seq Scan') &&
    scans.filter((node) => node['Index Name'] !== undefined).every((node) => narrows(table, shape, node))
  )
}

/** A partial index, or a condition on more than the bucket. Reading a whole index in order is no better than a scan. */
function narrows(table: LeaseTable, shape: TableShape, node: PlanNode): boolean {
  const index = shape.indexes.find(({ name }) => name === node['Index Name'])
  if (index?.partial === true) return true
  const condition = node['Index Cond']
  if (condition === undefined) return false
  return (
    index === undefined ||
    index.columns.some((c) => c !== undefined && c !== table.bucket && condition.includes(c))
  )
}

export function nodesOf(plan: PlanNode): PlanNode[] {
  return [plan, ...(plan.Plans ?? []).flatMap(nodesOf)]
}

export function subplan(plan: PlanNode, name: string): PlanNode | undefined {
  return nodesOf(plan).find((node) => node['Subplan Name'] === name)
}

function claimIndex(table: LeaseTable): string {
  const order = table.order.map(({ column, direction }) =>
    direction === 'asc' ? quote(column) : `${quote(column)} DESC`,
  )
  return createIndex(table, 'claim', order, table.claimable)
}

/** The lease's end itself stays out of the index, so that a renewal is a HOT update. */
function reapIndex(table: LeaseTable): string {
  return table.held === undefined
    ? createIndex(table, 'held', [quote(table.lease.until)], `${quote(table.lease.until)} IS NOT NULL`)
    : createIndex(table, 'held', table.key.map(quote), table.held)
}

function createIndex(table: LeaseTable, purpose: string, columns: readonly string[], where: string): string {
  const bucket = table.bucket === undefined ? [] : [quote(table.bucket)]
  const name = quote(`${table.name}_${purpose}`.slice(0, 63))
  return `CREATE INDEX CONCURRENTLY ${name} ON ${quoteQualified(table.schema, table.name)} (${[...bucket, ...columns].join(', ')}) WHERE ${where};`
}
