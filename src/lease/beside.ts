/** The tables that a lease table may have beside it: notes of its claims, bundles of what can be claimed. */
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import { inspectTable, type TableShape } from './inspect.ts'
import { misfit } from './misfit.ts'
import type { LeaseTable } from './table.ts'

/** Refuses a declaration that names one that is not there, or that would be read whole by every claim. */
export async function checkTablesBeside(db: Database, table: LeaseTable, shape: TableShape): Promise<void> {
  const { notes, bundles } = table
  if (notes !== undefined && (await inspectTable(db, notes)).found !== 'table')
    throw misfit(
      table,
      `there is no table ${notes.schema}.${notes.name}, in which \`notes\` says its claims are noted`,
      `Run: ${createBeside(table, shape, notes, '')}`,
    )
  if (bundles !== undefined) await checkBundles(db, table, shape, bundles)
}

async function checkBundles(
  db: Database,
  table: LeaseTable,
  shape: TableShape,
  bundles: NonNullable<LeaseTable['bundles']>,
): Promise<void> {
  const order = [...inBucket(table), 'at', 'id']
  const index = `CREATE INDEX ON ${quoteQualified(bundles.schema, bundles.name)} (${order.map(quote).join(', ')});`
  const inspection = await inspectTable(db, bundles)
  if (inspection.found !== 'table')
    throw misfit(
      table,
      `there is no table ${bundles.schema}.${bundles.name}, in which \`bundles\` says what can be claimed is found`,
      `Run: ${createBeside(table, shape, bundles, 'at timestamptz NOT NULL, ')} ${index} And write the triggers that fill it.`,
    )
  const isOrdered = inspection.shape.indexes.some(({ columns, predicate }) => {
    return predicate === undefined && order.every((column, i) => columns[i] === column)
  })
  if (!isOrdered)
    throw misfit(
      table,
      `no index of ${bundles.schema}.${bundles.name} leads to what is due, and every claim would read it whole`,
      `Run: ${index}`,
    )
}

function createBeside(
  table: LeaseTable,
  shape: TableShape,
  { schema, name }: { readonly schema: string; readonly name: string },
  more: string,
): string {
  const type = (column: string): string => shape.columns.get(column)?.type ?? 'bigint'
  const bucket = inBucket(table)
  const columns = bucket.map((column) => `${quote(column)} ${type(column)} NOT NULL, `).join('')
  const primary = [...bucket.map(quote), 'id'].join(', ')
  return `CREATE TABLE ${quoteQualified(schema, name)} (${columns}id bigint GENERATED ALWAYS AS IDENTITY, ${more}rows ${type(table.key[0] ?? '')}[] NOT NULL, PRIMARY KEY (${primary}));`
}

function inBucket({ bucket }: LeaseTable): string[] {
  return bucket === undefined ? [] : [bucket]
}
