/**
 * Notes of claims: which rows may be leased, for the reaper, where a table declares `notes`. The lease itself is in the
 * row; a note only says where to look. docs/decisions/013-notes-of-claims.md has the proof of the two rules:
 *
 * 1. A claim writes the note of its rows in its own statement. So whoever sees a row leased sees a note of it.
 * 2. A note is removed by a statement that sees it and sees none of its rows leased but those whose leases it ends
 *    itself. A row that is leased later was claimed later, and has a later note. What a store remembers to have ended only says which notes to look at: a
 *    database that has crashed may have forgotten it.
 */
import { bucketValue, inBucket, list, type Parts } from './parts.ts'
import type { Parameters } from './statement.ts'
import { heldOf } from './table.ts'

/** As many numbers as PostgreSQL stores without compressing them, which takes longer than writing them. */
export const LARGEST_NOTE = 200

/**
 * The CTEs of a claim: the note of what was chosen, and the end of notes that are known to be finished, perhaps by what
 * this statement settles.
 */
export function noteClaim(
  parts: Parts,
  parameter: Parameters,
  chosen: string,
  settled: string | undefined,
): string {
  const { notes } = parts
  if (notes === undefined) return ''
  const id = parts.key[0]?.column ?? ''
  const bucket = bucketValue(parts, parameter)
  const named = 'select unnest("@rows") as "@k1" from known'
  const others =
    settled === undefined
      ? named
      : `select "@k1" from (${named}) as named where ("@k1" in (${settled})) is not true`
  return `noted as (
  insert into ${notes.target} (${list([...bucket.map(({ column }) => column), 'rows'])})
  select ${list([...bucket.map(({ value }) => value), `"@all"["@from" : "@from" + ${LARGEST_NOTE - 1}]`])}
  from (select array(select "@k1" from ${chosen}) as "@all") as claim,
    generate_series(1, cardinality("@all"), ${LARGEST_NOTE}) as "@from"
  returning id
),
known as materialized (
  select id as "@note", rows as "@rows"
  from ${notes.target}
  where ${[...inBucket(parts, parameter), `id = any (${parameter('finished', 'bigint[]')})`].join('\n    and ')}
),
still as materialized (
  select ${id} as "@k1"
  from ${parts.target}
  where ${[...inBucket(parts, parameter), `${id} = any (array(${others}))`, ...leasedNow(parts)].join('\n    and ')}
),
forgotten as (
  delete from ${notes.target}
  where ${[
    ...inBucket(parts, parameter),
    `id = any (array(select "@note" from known where not "@rows" && array(select "@k1" from still)))`,
  ].join('\n    and ')}
),
`
}

/** What is true of a row as long as it is leased. */
export function leasedNow({ table, owner }: Parts): string[] {
  const held = heldOf(table)
  return [`${owner} is not null`, ...(held === undefined ? [] : [`(${held})`])]
}

/** What the rows of a claim name as their note: the first, where it takes several. */
export const NOTE = '(select min(id) from noted)'

/** All of them, for who ends the leases. */
export const NOTES = '(select json_agg(id::text) from noted)'

/**
 * The CTEs of a reap: `leased` are the rows that notes name and that are leased as this says. Notes without any are
 * removed; one that somebody has locked is being removed.
 */
export function leasedByNotes(
  parts: Parts,
  parameter: Parameters,
  target: string,
  leased: readonly string[],
): string {
  const { target: rows, key } = parts
  const bucket = inBucket(parts, parameter)
  const id = key[0]?.column ?? ''
  return `noted as materialized (
  select id as "@note", rows as "@rows" from ${target}${bucket.length === 0 ? '' : ` where ${bucket.join('')}`}
),
leased as materialized (
  select ${id} as "@k1"
  from ${rows}
  where ${[...bucket, `${id} = any (array(select unnest("@rows") from noted))`, ...leased].join('\n    and ')}
),
current as materialized (
  select distinct "@note"
  from (select "@note", unnest("@rows") as "@k1" from noted) as each
  where ("@k1" in (select "@k1" from leased)) is true
),
finished as materialized (
  select id
  from ${target}
  where ${[
    ...bucket,
    `id = any (array(select "@note" from noted where ("@note" in (select "@note" from current)) is not true))`,
  ].join('\n    and ')}
  for update skip locked
),
forgotten as (
  delete from ${target}
  where ${[...bucket, 'id = any (array(select id from finished))'].join('\n    and ')}
),
`
}
