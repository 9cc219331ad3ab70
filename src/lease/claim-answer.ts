import type { TableSql } from './table-sql.ts'
import type { Claimed } from './verbs.ts'

/** A row as PostgreSQL returns it: values by position, because objects would be built twice. */
export type ClaimedValues = readonly unknown[]

/** What concerns the whole claim; `answer` in `claim-parts.ts` writes it. */
interface Facts {
  readonly until: number
  readonly order: readonly string[] | null
  readonly cursor?: readonly string[] | string | null
  readonly more?: boolean
  readonly dueInMs?: number | null
  readonly suspect?: string | null
  readonly bytes?: number | null
  /** Of a claim that also settles: the settled ids; null: all of them were. */
  readonly settled?: readonly string[] | null
  readonly groupCursors?: Readonly<Record<string, string>> | null
}

export interface ClaimAnswer<Row extends object> extends Omit<Facts, 'until' | 'order'> {
  readonly claimed: readonly Claimed<Row>[]
}

/** One row has the facts, the others are the claimed rows. */
export function readClaim<Row extends object>(
  results: readonly ClaimedValues[],
  t: TableSql,
  owner: string,
): ClaimAnswer<Row> {
  // A full join promises no order.
  const at = results.findIndex(([facts]) => facts !== null)
  const [given] = results[at] ?? []
  // The statement says what it is.
  const { until, order, ...facts } = given as Facts
  const end = new Date(until)
  const claimed = results.flatMap((values, i) => (i === at ? [] : [claimedRow<Row>(values, t, owner, end)]))
  return { ...facts, claimed: inOrder(claimed, order ?? []) }
}

/** After the facts: the token, the id unless it is one of the columns, the columns. */
function claimedRow<Row extends object>(
  values: ClaimedValues,
  { columns, idColumn }: TableSql,
  owner: string,
  until: Date,
): Claimed<Row> {
  const from = idColumn === undefined ? 3 : 2
  const row: Record<string, unknown> = {}
  for (let i = 0; i < columns.length; i += 1) row[columns[i] ?? ''] = values[from + i]
  // A whole number, as `pg` or a parser that somebody has set for it hands it out.
  const token = BigInt(values[1] as string | number | bigint)
  const id = String(values[idColumn === undefined ? 2 : from + idColumn])
  // The caller says of which type the table's own columns are.
  return { lease: { id, owner, token, until }, row: row as Row }
}

/** Rows mostly come back in the order of the claim. One that a trigger kept from being claimed is not among them. */
function inOrder<Row>(claimed: Claimed<Row>[], order: readonly string[]): Claimed<Row>[] {
  if (claimed.every(({ lease }, i) => lease.id === order[i])) return claimed
  const ranks = new Map(order.map((id, rank) => [id, rank]))
  const rank = ({ lease }: Claimed<Row>): number => ranks.get(lease.id) ?? 0
  return claimed.toSorted((a, b) => rank(a) - rank(b))
}
