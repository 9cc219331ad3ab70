/** Rows that an operator names by their ids: which of them a change has not changed, and why. */
import { isUuid } from './request-checks.ts'

/** A row that was named, by its id or by its event id. */
export interface NamedRow {
  readonly id: string
  /** Only where rows have event ids as well. */
  readonly eventId?: string
  /** Why this row is not changed, as the end of a sentence. Undefined: nothing about the row prevents it. */
  readonly whyNot: string | undefined
}

export interface Skipped {
  readonly id: string
  /** Why, as the end of a sentence: `it is PENDING`. */
  readonly why: string
}

/** The most ids whose rows are read at once. */
const MAX_IDS_AT_ONCE = 1_000

/** Each id once, and in one spelling: that of the database. */
export function normaliseIds(ids: readonly string[]): string[] {
  return [...new Set(ids.map((id) => (isUuid(id) ? id.toLowerCase() : String(BigInt(id)))))]
}

export interface Unchanged {
  /** The ids that were named, normalised. */
  readonly ids: readonly string[]
  /** The rows that were changed, by their ids. */
  readonly changed: ReadonlySet<string>
  /** The name of one row: `event`. */
  readonly row: string
  /** Finds all rows that these ids name. */
  readonly find: (ids: readonly string[]) => Promise<readonly NamedRow[]>
  /** Why a row was not changed that nothing prevents. Undefined: it will be. */
  readonly otherwise: (id: string) => string | undefined
}

/** Explains each of the ids none of whose rows was changed. An event id may name several rows; one that was changed is enough. */
export async function explainUnchanged({
  ids,
  changed,
  row,
  find,
  otherwise,
}: Unchanged): Promise<Skipped[]> {
  const skipped: Skipped[] = []
  const unchanged = ids.filter((id) => !changed.has(id))
  for (let from = 0; from < unchanged.length; from += MAX_IDS_AT_ONCE) {
    const slice = unchanged.slice(from, from + MAX_IDS_AT_ONCE)
    const rows = byName(await find(slice))
    for (const id of slice) {
      const named = rows.get(id) ?? []
      if (named.some((found) => changed.has(found.id))) continue
      const candidate = named.find(({ whyNot }) => whyNot === undefined)
      const why =
        candidate === undefined ? (named[0]?.whyNot ?? `there is no such ${row}`) : otherwise(candidate.id)
      if (why !== undefined) skipped.push({ id, why })
    }
  }
  return skipped
}

function byName(rows: readonly NamedRow[]): ReadonlyMap<string, readonly NamedRow[]> {
  const named = new Map<string, NamedRow[]>()
  for (const row of rows) {
    for (const name of [row.id, row.eventId ?? row.id]) {
      const found = named.get(name)
      if (found === undefined) named.set(name, [row])
      else found.push(row)
    }
  }
  return named
}
