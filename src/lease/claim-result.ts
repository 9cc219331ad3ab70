import type { ClaimNotes, MakeLease } from './claim-notes.ts'
import type { Claimed, Place } from './verbs.ts'

/** A row of a claim as PostgreSQL returns it: values by position, because objects would be made twice. */
export type ClaimedValues = readonly unknown[]

/** How the columns behind the facts and the token are to be read. */
export interface ClaimColumns {
  readonly names: readonly string[]
  /** Where among them the id of the row stands; undefined: it comes before them, as a text. */
  readonly id: number | undefined
}

/** What the rows of a statement have in common; `factsAndRows` in `claim-sql.ts` writes it. */
interface Facts {
  readonly until: number
  readonly order: readonly string[] | null
  readonly place: readonly (string | null)[] | null
  /** The settled ids of an exchange; null: all of them were. */
  readonly settled?: readonly string[] | null
  /** Where rows stand in lines: how many were found, whether others were advanced, when the next row will be due, … */
  readonly seen?: number
  readonly more?: boolean
  readonly nextDueMs?: number | null
  /** … whether anything was claimed or marked, and which lines to look at again. */
  readonly moved?: boolean
  readonly again?: readonly string[]
  /** Where rows are found by bundles: how many were taken, how many rows they had, … */
  readonly bundles?: number
  readonly bundled?: number
  /** … how many others were taking just then, and whether these were all that there are. */
  readonly missed?: number
  readonly all?: boolean
  /** Where claims are noted. */
  readonly notes?: readonly string[] | null
}

export interface ClaimResult<Row extends object> {
  readonly claimed: readonly Claimed<Row>[]
  readonly place: Place | undefined
  /** Undefined: all of them. */
  readonly settled: readonly string[] | undefined
  readonly seen: number
  readonly more: boolean
  readonly nextDueMs: number | undefined
  readonly moved: boolean
  readonly again: readonly string[]
  readonly bundles: number
  readonly bundled: number
  readonly missed: number
  readonly all: boolean
}

/** The first result has the facts, the others are the rows. */
export function readClaim<Row extends object>(
  results: readonly ClaimedValues[],
  columns: ClaimColumns,
  owner: string,
  notes: ClaimNotes,
): ClaimResult<Row> {
  const [[first] = [], ...rows] = results
  // The statement says what stands there.
  const facts = first as Facts
  const until = new Date(facts.until)
  const leaseOf = facts.notes ? notes.leases(facts.notes, rows.length) : plainLease
  const claimed = rows.map((values) => claimedRow<Row>(values, columns, owner, until, leaseOf))
  const { place, order } = facts
  return {
    claimed: inOrder(claimed, order ?? []),
    place: place?.every((value) => value !== null) === true ? place : undefined,
    settled: facts.settled ?? undefined,
    seen: facts.seen ?? claimed.length,
    more: facts.more === true,
    nextDueMs: facts.nextDueMs ?? undefined,
    moved: facts.moved ?? true,
    again: facts.again ?? [],
    bundles: facts.bundles ?? 0,
    bundled: facts.bundled ?? 0,
    missed: facts.missed ?? 0,
    all: facts.all ?? true,
  }
}

const plainLease: MakeLease = (id, owner, token, until) => ({ id, owner, token, until })

function claimedRow<Row extends object>(
  values: ClaimedValues,
  { names, id }: ClaimColumns,
  owner: string,
  until: Date,
  leaseOf: MakeLease,
): Claimed<Row> {
  const from = id === undefined ? 3 : 2
  const row: Record<string, unknown> = {}
  for (let i = 0; i < names.length; i += 1) row[names[i] ?? ''] = values[from + i]
  // A whole number, as `pg` or a parser that somebody has set for it hands it out.
  const token = BigInt(values[1] as string | number | bigint)
  const lease = leaseOf(String(values[id === undefined ? 2 : from + id]), owner, token, until)
  // What is behind our own columns is the row as the table has it; the caller says of which type that is.
  return { lease, row: row as Row }
}

/** Rows mostly come back in the order of the claim. One that a trigger kept from being claimed is not among them. */
function inOrder<Row>(claimed: Claimed<Row>[], order: readonly string[]): Claimed<Row>[] {
  if (claimed.every(({ lease }, i) => lease.id === order[i])) return claimed
  const ranks = new Map(order.map((id, rank) => [id, rank]))
  const rank = ({ lease }: Claimed<Row>): number => ranks.get(lease.id) ?? 0
  return claimed.toSorted((a, b) => rank(a) - rank(b))
}
