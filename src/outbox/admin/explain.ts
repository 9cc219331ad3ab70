/** Why an event is not published: the words and commands of the outbox for what every lease table has. */
import { explainRowOf, type Explanation, type ExplainOptions, schemaFlag } from '../../admin/explain.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import { type RowDescription, shellArgument } from '../../lease/explain.ts'
import type { Database } from '../../postgres/database.ts'
import { positionalParameters } from '../../postgres/parameters.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { OUTBOX } from '../relay.ts'
import { outboxTable } from '../table.ts'
import { eventNotFound } from './browse.ts'
import { checkId, filterSql, outboxOf, statusesOf } from './filter.ts'

/** Explains the event with this number or event id. */
export async function explainEvent(
  db: Database,
  id: string,
  options: ExplainOptions = {},
): Promise<Explanation> {
  checkId(id)
  const { schema } = options
  const explained = { table: outboxTable({ schema }), workers: [OUTBOX], description: describe(schema) }
  return explainRowOf(db, id, explained, options, async (tx) => findEvent(tx, schema, id))
}

function describe(schema: string | undefined): RowDescription {
  const because = `${schemaFlag(schema)} --reason '…'`
  return {
    row: 'event',
    ended: "case status when 'PUBLISHED' then 'published' when 'DEAD' then 'dead' end",
    endedAt: 'coalesce(published_at, dead_at)',
    isDead: "status = 'DEAD'",
    retry: ({ id }) => `leasehold outbox retry ${id}${because}`,
    replay: ({ id }) => `leasehold outbox replay ${id}${because}`,
    unblock: ({ orderingKey }) => `leasehold outbox unblock${because} -- ${shellArgument(orderingKey ?? '')}`,
    explain: ({ id }, flags = '') => `leasehold outbox explain ${id}${schemaFlag(schema)}${flags}`,
  }
}

async function findEvent(
  tx: Queryable,
  schema: string | undefined,
  id: string,
): Promise<{ readonly id: string; readonly bucket: number }> {
  for (const bucket of await ownBuckets(tx, schema)) {
    const parameter = positionalParameters()
    const { rows } = await tx.query<{ id: string }>({
      text: `select r.id::text as id from ${outboxOf(schema)} as r
where bucket = ${parameter(bucket, 'smallint')} and ${filterSql({ ids: [id] }, statusesOf({}), parameter)}`,
      values: parameter.values,
    })
    const [row] = rows
    if (row !== undefined) return { id: row.id, bucket }
  }
  throw eventNotFound(id)
}
