/** Why an event is not published: the words and commands of the outbox for what every lease table has. */
import { type ExplainedRows, explainOne, type ExplainOptions } from '../../operations/explain/explain.ts'
import type { Explanation } from '../../operations/explain/reasons.ts'
import { rowCommands, schemaFlag, shellArgument } from '../../operations/shown-commands.ts'
import type { Database } from '../../postgres/database.ts'
import { OUTBOX } from '../relay.ts'
import { outboxTable } from '../table.ts'
import { findEvent } from './browse.ts'
import { checkId } from './filter.ts'

/** Explains the event with this number or event id. */
export async function explainEvent(
  db: Database,
  id: string,
  options: ExplainOptions = {},
): Promise<Explanation> {
  checkId(id)
  const { schema } = options
  const events: ExplainedRows = {
    table: outboxTable({ schema }),
    workers: [OUTBOX],
    description: {
      row: 'event',
      ended: "case status when 'PUBLISHED' then 'published' when 'DEAD' then 'dead' end",
      endedAt: 'coalesce(published_at, dead_at)',
      isDead: "status = 'DEAD'",
      ...rowCommands('outbox', schema),
      unblock: ({ orderingKey }) =>
        `leasehold outbox unblock${schemaFlag(schema)} --reason '…' -- ${shellArgument(orderingKey ?? '')}`,
    },
    find: async (tx) => findEvent(tx, schema, id),
  }
  return explainOne(db, id, events, options)
}
