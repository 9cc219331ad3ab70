/** The contents of the table, read in one statement, and their comparison with the model. */
import type { Queryable } from '../../../src/postgres/queryable.ts'
import type { ModelTable } from './tables.ts'

export interface RowImage {
  /** The whole row as text, for comparing rows that must not have changed. */
  readonly text: string
  readonly columns: Readonly<Record<string, unknown>>
}

export interface Image {
  /** By the database's clock, in ms. */
  readonly now: number
  /** By id, in the order in which claims take them. */
  readonly rows: ReadonlyMap<string, RowImage>
}

/** What the model expects of a column: a value, or a bound for a timestamp. */
export type Expected =
  | string
  | number
  | null
  | { readonly moment: 'past' | 'future' }
  | { readonly atLeast: number }

export async function readImage(db: Queryable, table: ModelTable): Promise<Image> {
  const { rows } = await db.query<{ now: Date; images: [id: string, row: string][] }>({
    text: `select clock_timestamp() as now,
             array(select array[${table.rowId}, to_jsonb(t)::text] from ${table.target} as t order by ${table.order}) as images`,
  })
  const [read] = rows
  if (read === undefined) throw new Error('The table could not be read.')
  const images = read.images.map(([id, text]): [string, RowImage] => {
    // `to_jsonb` of a row is an object of its columns.
    const columns = JSON.parse(text) as Record<string, unknown>
    return [id, { text, columns }]
  })
  return { now: read.now.getTime(), rows: new Map(images) }
}

/** The differences between a row and the model. A column that the model does not mention must be unchanged. */
export function differences(
  after: RowImage,
  expected: Readonly<Record<string, Expected>>,
  before: RowImage | undefined,
  now: number,
): string[] {
  return Object.entries(after.columns).flatMap(([column, real]) => {
    const wanted = expected[column]
    const fits =
      wanted === undefined
        ? before === undefined || JSON.stringify(before.columns[column]) === JSON.stringify(real)
        : isAsExpected(real, wanted, now)
    return fits ? [] : [`${column} is ${JSON.stringify(real)}, not ${JSON.stringify(wanted ?? before)}`]
  })
}

function isAsExpected(real: unknown, wanted: Expected, now: number): boolean {
  if (wanted === null || typeof wanted !== 'object') return real === wanted
  if (typeof real !== 'string') return false
  const moment = Date.parse(real)
  if ('atLeast' in wanted) return moment > now && moment >= wanted.atLeast - 1
  return wanted.moment === 'past' ? moment <= now : moment > now
}
