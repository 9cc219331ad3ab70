/** Why a row is not running, for events, deliveries, jobs, chunks and rows of the user's own lease tables. */
import { z } from 'zod'
import { explainRow, workedBy } from '../../../operations/explain/explain.ts'
import { REASON_CODES, ROW_STATES } from '../../../operations/explain/reasons.ts'
import { LeaseholdError } from '../../../errors.ts'
import { tableName } from '../../../lease/table.ts'
import { explainEvent } from '../../../outbox/admin/explain.ts'
import { explainChunk, explainJob } from '../../../sync/admin/explain.ts'
import { explainDelivery } from '../../../webhooks/admin/explain.ts'
import { listWorkers } from '../../../worker/index.ts'
import { type Route, route } from '../route.ts'
import { digits, text } from '../../../operations/fields.ts'
import { rowId, time } from '../schemas.ts'

const explanation = z.object({
  table: z.string(),
  id: z.string(),
  state: z.enum(ROW_STATES),
  reasons: z
    .array(
      z.object({
        code: z.enum(REASON_CODES),
        text: z.string().describe('One sentence, with the figures.'),
        since: time.optional(),
        until: time.optional().describe('When this reason ends, if nothing else happens.'),
        by: z
          .string()
          .optional()
          .describe('What it depends on: a row, a worker process, an endpoint, a session.'),
        command: z.string().optional().describe('The command line, or the SQL, that would change it.'),
      }),
    )
    .min(1),
})

const shared = { method: 'GET', role: 'read', answer: explanation } as const

export const EXPLAIN: readonly Route[] = [
  route({
    ...shared,
    path: '/outbox/events/{id}/explain',
    summary: 'Say why an event is not published',
    tag: 'outbox',
    params: z.strictObject({ id: rowId }),
    run: async ({ db, schema, params }) => explainEvent(db, params.id, { schema }),
  }),
  route({
    ...shared,
    path: '/webhooks/deliveries/{id}/explain',
    summary: 'Say why a delivery is not made',
    tag: 'webhooks',
    params: z.strictObject({ id: rowId }),
    run: async ({ db, schema, params }) => explainDelivery(db, params.id, { schema }),
  }),
  route({
    ...shared,
    path: '/sync/jobs/{id}/explain',
    summary: 'Say why a job is not completed',
    tag: 'sync',
    params: z.strictObject({ id: digits }),
    run: async ({ db, schema, params }) => explainJob(db, params.id, { schema }),
  }),
  route({
    ...shared,
    path: '/sync/jobs/{id}/chunks/{hash}/explain',
    summary: 'Say why a chunk is not synced',
    tag: 'sync',
    params: z.strictObject({ id: digits, hash: text }),
    run: async ({ db, schema, params: { id, hash } }) => explainChunk(db, id, hash, { schema }),
  }),
  route({
    ...shared,
    path: '/tables/{table}/rows/{id}/explain',
    summary: 'Say why a row of a lease table is not processed',
    tag: 'tables',
    params: z.strictObject({ table: text.describe('`schema.table`'), id: text }),
    async run({ db, schema, params: { table: name, id }, context }) {
      const table = context.tables.find((each) => tableName(each) === name)
      if (table === undefined)
        throw new LeaseholdError(
          'ROW_NOT_FOUND',
          `The API does not know a lease table ${JSON.stringify(name)}.`,
          {
            remedy: 'GET /tables lists those that it was given.',
          },
        )
      const workers = context.workers.filter((worker) => tableName(worker.table) === name)
      if (workers.length > 0) return explainRow(db, workedBy(table, workers), id, { schema })
      // The API was given the table without its workers, and the registry has those that were started.
      const processes = await listWorkers(db, schema)
      const started = processes.flatMap(({ serves = {} }) =>
        Object.keys(serves).filter((worker) => serves[worker]?.table === name),
      )
      return explainRow(db, { table, workers: [...new Set(started)] }, id, { schema })
    },
  }),
]
