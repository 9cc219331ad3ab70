/** What is in flight, in every lease table; the lease tables of the user; and reconcilers. */
import { z } from 'zod'
import { tableName } from '../../../lease/table.ts'
import { listReconcilers } from '../../../reconcile/registered.ts'
import { listLeases, ownTables, readTables } from '../leases.ts'
import { RequestProblem } from '../problem.ts'
import { route } from '../route.ts'
import { digits, paging, text } from '../../../operations/fields.ts'
import { optionalTime, time } from '../schemas.ts'

const lease = z.object({
  table: z.string().describe('With its schema.'),
  id: z.string().describe('The row. Where several columns identify it, a JSON array of texts.'),
  bucket: z.int().nullable(),
  owner: z.string().describe('The worker process.'),
  token: digits.nullable().describe('The fencing token.'),
  since: optionalTime.describe('When it was claimed; null: the table does not store it.'),
  until: time,
  leftMs: z
    .number()
    .describe('How much of it is left. Negative: it has expired, and nobody has taken the row back.'),
  ownerState: z
    .enum(['alive', 'missing', 'dead', 'stopped', 'unknown'])
    .describe('The state of the worker process; unknown: the registry does not have it.'),
  leaseMs: z.number().nullable().describe('How long the leases of its worker are; null: unknown.'),
  heartbeatMs: z.number().nullable().describe('How often its worker renews them; null: unknown.'),
  renewedAt: optionalTime.describe(
    'When it was last renewed; where since is null, claimed or renewed. Null: not yet, or unknown.',
  ),
  renewals: z
    .int()
    .nullable()
    .describe(
      'About how often it was renewed: derived from since, renewedAt and heartbeatMs. Null: unknown.',
    ),
  isLate: z
    .boolean()
    .nullable()
    .describe('It was not claimed or renewed for more than 1.5 heartbeat intervals. Null: unknown.'),
})

const table = z.object({
  table: z.string().describe('With its schema.'),
  pending: z
    .int()
    .nullable()
    .describe('How many rows could be claimed now; of ordering keys, their heads. Null: see problem.'),
  inFlight: z.int().nullable(),
  countedUpTo: z.int().describe('From this on nobody counted further.'),
  oldestPendingMs: z
    .int()
    .nullable()
    .describe('How long the oldest row has waited that could be claimed now; null: unknown.'),
  servedBy: z.array(z.string()).describe('The worker processes that are alive and process it.'),
  reapedBy: z
    .array(z.string())
    .describe('Those that are alive and take back its expired leases. Empty: nobody does.'),
  problem: z.string().nullable().describe('Why it could not be read.'),
})

const reconciler = z.object({
  name: z.string(),
  tables: z.array(z.string()),
  processes: z
    .array(
      z.object({
        worker: z.string(),
        state: z.enum(['alive', 'missing', 'dead', 'stopped']),
        lastSeenAt: time,
        declared: z.record(z.string(), z.unknown()).describe('The settings that it was started with.'),
        paused: z
          .array(
            z.object({
              worker: z.string(),
              table: z.string(),
              reason: z.string(),
              since: z.string(),
              error: z.string().optional(),
            }),
          )
          .describe('Why it did not claim when the process was last seen.'),
      }),
    )
    .describe('Those that run it, or did so within the last day.'),
  counters: z
    .object({
      cycles: z.int().describe('Claims that found rows.'),
      claimed: z.int(),
      scanned: z.int().describe('Observations that have ended.'),
      transitions: z
        .record(z.string(), z.int())
        .describe('Transitions that were applied, by name: pending->detected.'),
      skipped: z
        .int()
        .describe('Observations that were discarded, because the status or the lease had changed meanwhile.'),
      errors: z.int().describe('Observations that failed; their rows stay open.'),
      lastError: z.object({ at: time, error: z.string() }).nullable(),
    })
    .describe('What these processes have done since each of them started.'),
  stored: z
    .object({ value: z.record(z.string(), z.unknown()), changedAt: time, changedBy: z.string() })
    .nullable()
    .describe('The settings that are stored for all processes; null: none.'),
})

export const LEASES = [
  route({
    method: 'GET',
    path: '/leases',
    summary: 'List the rows in flight of all lease tables, those whose lease ends first at the top',
    tag: 'leases',
    role: 'read',
    query: z.strictObject({
      limit: paging.limit,
      owner: text.optional().describe('Only leases of this worker process.'),
      table: text.optional().describe('Only leases of this table, named with its schema.'),
    }),
    answer: z.object({
      now: time.describe('The clock of the database.'),
      items: z.array(lease),
      more: z.boolean(),
      unreadable: z
        .array(z.object({ table: z.string(), problem: z.string() }))
        .describe('Tables that could not be read, and why.'),
    }),
    async run({ db, schema, context, query: { limit, owner, table: wanted } }) {
      const all = [...ownTables(schema), ...context.tables]
      const tables = all.filter((each) => wanted === undefined || tableName(each) === wanted)
      if (tables.length === 0)
        throw new RequestProblem([
          {
            field: 'query.table',
            detail: `is ${JSON.stringify(wanted)}; give one of ${all.map((each) => tableName(each)).join(', ')}`,
          },
        ])
      const { leases: items, ...rest } = await listLeases(db, schema, tables, { owner, limit })
      return { ...rest, items }
    },
  }),
  route({
    method: 'GET',
    path: '/tables',
    summary: 'List the lease tables that the server was given, and how much waits in each',
    tag: 'tables',
    role: 'read',
    answer: z.object({ items: z.array(table) }),
    run: async ({ db, schema, context }) => ({ items: await readTables(db, schema, context.tables) }),
  }),
  route({
    method: 'GET',
    path: '/reconcilers',
    summary: 'List the reconcilers, and the worker processes that run them',
    tag: 'reconcilers',
    role: 'read',
    answer: z.object({ items: z.array(reconciler) }),
    run: async ({ db, schema }) => ({ items: await listReconcilers(db, { schema }) }),
  }),
]
