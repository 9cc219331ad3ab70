/** Why an event is not published: the words and commands of the outbox for what every lease table has. */
import { explainOne, type ExplainOptions } from '../../admin/explain/explain.ts'
import type { Explanation } from '../../admin/explain/reasons.ts'
import { type RowAddress, rowCommands, schemaFlag, shellArgument } from '../../admin/shown-commands.ts'
import { ownBuckets } from '../../lease/backlog.ts'
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
  const events = {
    table: outboxTable({ schema }),
    workers: [OUTBOX],
    description: {
      row: 'event',
      ended: "case status when 'PUBLISHED' then 'published' when 'DEAD' then 'dead' end",
      endedAt: 'coalesce(published_at, dead_at)',
      isDead: "status = 'DEAD'",
      ...rowCommands('outbox', schema),
      unblock: ({ orderingKey }: { readonly orderingKey: string | null }) =>
        `leasehold outbox unblock${schemaFlag(schema)} --reason '…' -- ${shellArgument(orderingKey ?? '')}`,
    },
    find: async (tx: Queryable) => findEvent(tx, schema, id),
  }
  return explainOne(db, id, events, options)
}

async function findEvent(tx: Queryable, schema: string | undefined, id: string): Promise<RowAddress> {
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
