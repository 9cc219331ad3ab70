import { type Claimed, type Place } from './store.ts'

/**
 * What a claim returns for each row before the row's own columns. Behind them come, on the first row only: the settled
 * ids of an exchange, and where rows stand in lines how many were found, whether others were advanced, when the next row
 * will be due, whether anything was claimed or marked, and which lines to look at again.
 */
const OWN_COLUMNS = 5

/** A row of a claim as PostgreSQL returns it: values by position, because objects would be made twice. */
export type ClaimedValues = readonly unknown[]

interface OwnValues {
  readonly id: string | null
  readonly token: string
  readonly until: number
  /** The rest is on the first row of the claim only. */
  readonly order: readonly string[] | null
  readonly place: readonly (string | null)[] | null
}

export function readClaim<Row extends object>(
  results: readonly ClaimedValues[],
  columns: readonly string[],
  owner: string,
): {
  claimed: Claimed<Row>[]
  place: Place | undefined
  seen: number
  more: boolean
  nextDueMs: number | undefined
  moved: boolean
  again: readonly string[]
} {
  const claimed: Claimed<Row>[] = []
  let order: readonly string[] = []
  let place: Place | undefined
  for (const values of results) {
    const own = ownValues(values)
    if (own.place?.every((value) => value !== null) === true) place = own.place
    if (own.id === null) continue
    const lease = { id: own.id, owner, token: BigInt(own.token), until: new Date(own.until) }
    // What is behind our own columns is the row as the table has it; the caller says of which type that is.
    claimed.push({ lease, row: rowOf(values, columns) as Row })
    if (own.order !== null) order = own.order
  }
  const [seen, more, nextDueMs, moved, again] = facts(results[0], OWN_COLUMNS + columns.length + 1)
  return {
    claimed: inOrder(claimed, order),
    place,
    seen: seen ?? claimed.length,
    more: more === true,
    nextDueMs: nextDueMs ?? undefined,
    moved: moved ?? true,
    again: again ?? [],
  }
}

type Facts = [number | null, boolean | null, number | null, boolean | null, readonly string[] | null]

function facts(first: ClaimedValues | undefined, from: number): Partial<Facts> {
  // The statement says what stands at these positions.
  return (first?.slice(from, from + 5) ?? []) as unknown as Partial<Facts>
}

/** Rows mostly come back in the order of the claim. One that a trigger kept from being claimed is not among them. */
function inOrder<Row>(claimed: Claimed<Row>[], order: readonly string[]): Claimed<Row>[] {
  if (claimed.every(({ lease }, i) => lease.id === order[i])) return claimed
  const ranks = new Map(order.map((id, rank) => [id, rank]))
  const rank = ({ lease }: Claimed<Row>): number => ranks.get(lease.id) ?? 0
  return claimed.toSorted((a, b) => rank(a) - rank(b))
}

/** The ids that an exchange settled. At least one row comes back; without a claim it has no id. */
export function readSettled(results: readonly ClaimedValues[], columns: readonly string[]): string[] {
  // The statement says what stands at this position.
  return results.flatMap((values) => (values[OWN_COLUMNS + columns.length] as string[] | null) ?? [])
}

function ownValues(values: ClaimedValues): OwnValues {
  const [id, token, until, order, place] = values
  // The statement says what stands at each position.
  return { id, token, until, order, place } as OwnValues
}

function rowOf(values: ClaimedValues, columns: readonly string[]): object {
  const row: Record<string, unknown> = {}
  for (let i = 0; i < columns.length; i += 1) row[columns[i] ?? ''] = values[OWN_COLUMNS + i]
  return row
}
