/** The audit: every change that was made, and who made it. */
import { z } from 'zod'
import { listAudit } from '../../../operations/audit.ts'
import { route } from '../route.ts'
import { digits, fromCursor, MAX_SCANNED, moment, pageOf, paging, text, time, toCursor } from '../schemas.ts'

const entry = z.object({
  id: digits,
  at: time,
  principal: z.string(),
  action: z.string(),
  target: z.string().nullable(),
  details: z.record(z.string(), z.unknown()),
})

export const AUDIT = [
  route({
    method: 'GET',
    path: '/audit',
    summary: 'List what was changed, the latest first',
    tag: 'audit',
    role: 'read',
    forTenants: true,
    query: z.strictObject({
      ...paging,
      principal: text.optional(),
      action: text
        .optional()
        .describe('`outbox.replay`; `outbox.*` is every action that begins with `outbox.`.'),
      target: text.optional(),
      from: moment.optional(),
      to: moment.optional(),
    }),
    answer: pageOf(entry),
    async run({ db, schema, query: { limit, cursor, ...filter } }) {
      const { rows, next } = await listAudit(db, filter, {
        schema,
        limit,
        before: fromCursor(cursor),
        maxScanned: MAX_SCANNED,
      })
      return { items: rows, next: toCursor(next) }
    },
  }),
]
