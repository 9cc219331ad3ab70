/** Claims along the claim index. They are easiest to read as they are sent: `docs/sql/outbox/claim-in-order.sql`. */
import {
  and,
  indented,
  type LeaseStatement,
  list,
  type Parameters,
  parameters,
  statement,
} from './statement.ts'
import {
  bytesColumn,
  claimableNow,
  fitting,
  foundIn,
  inBucket,
  lease,
  notExcluded,
  orderBy,
  rowIdSql,
  scannedColumns,
  suspects,
  type TableSql,
  withoutKey,
} from './table-sql.ts'

/** A claim, and the rows it would take, without taking them: to find the one that stops it with a data error. */
export interface ClaimStatements {
  readonly claim: LeaseStatement
  readonly find: LeaseStatement
}

/** Claims the next due rows from the cursor on. In a table with an ordering key these are the rows that have none. */
export function claimInOrder(t: TableSql): ClaimStatements {
  const $ = parameters()
  const isSized = t.table.bytes !== undefined
  const columns = list([...scannedColumns(t), ...bytesColumn(t)])
  const claim = statement(
    t.table,
    'claim in order',
    $,
    `
with next as materialized (  -- the next rows that are due${isSized ? '; all of them are locked, also those that do not fit' : ''}
${indented(scan(t, $, columns))} for update skip locked
)${isSized ? `,\n${fitting($, 'next', orderBy(t))}` : ''}
${lease(t, $, isSized ? 'fitting' : 'next', foundIn(t, 'next'))}`,
  )
  const $find = parameters()
  const find = statement(t.table, 'find in order', $find, scan(t, $find, rowIdSql(t, 't.')))
  return { claim, find }
}

function scan(t: TableSql, $: Parameters, columns: string): string {
  const order = list(t.order.map(({ name }) => name))
  const values = (): string => list(t.order.map(({ type }, i) => `(select ${$(`cursor${i + 1}`, type)})`))
  const where = [
    inBucket(t, $),
    ...withoutKey(t),
    ...claimableNow(t),
    suspects(t, false),
    t.lowestCursor === undefined ? '' : `(${order}) >= (${values()})`,
    notExcluded(t, $),
  ]
  return `select ${columns} from ${t.target} as t
where ${and(where, '  ')}
order by ${orderBy(t, 't.')} limit (select ${$('limit', 'int')})`
}
