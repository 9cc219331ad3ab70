/** The audit as it is read: who has changed what. */
import { z } from 'zod'
import type { Database } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { WITHOUT_IDS } from './audit.ts'
import { listNewestFirst, type Page, type PageOptions } from './browse.ts'
import { digits, field, MAX_SCANNED, moment, pageAnswer, pageOf, paging, period, text } from './fields.ts'
import { operation, resource } from './operation.ts'
import { checkPeriod, checkTexts } from './request-checks.ts'

const entry = z.object({
  id: digits,
  at: field(moment, { title: 'When' }),
  principal: field(z.string(), { title: 'Who' }),
  action: z.string(),
  target: field(z.string().nullable(), { absent: '-' }),
  details: field(z.record(z.string(), z.unknown()), { title: 'Reason', member: 'reason' }),
})

export const AUDIT = [
  operation({
    kind: 'list',
    resource: resource({
      rows: 'entries',
      tag: 'audit',
      item: entry,
      columns: ['id', 'at', 'principal', 'action', 'target', 'details'],
      none: 'The audit is empty.',
    }),
    command: 'audit',
    path: '/audit',
    summary: 'List what was changed, the latest first',
    role: 'read',
    forTenants: true,
    input: z.strictObject({
      principal: field(text.describe('Only changes by this account or key.'), {
        placeholder: 'name',
      }).optional(),
      action: field(
        text.describe('Only this action: `outbox.replay`, or `outbox.*` for all that begin with `outbox.`.'),
        { placeholder: 'name' },
      ).optional(),
      target: field(text.describe('Only changes of this object.'), { placeholder: 'id' }).optional(),
      ...period('changes made'),
      ...paging,
    }),
    output: pageOf(entry),
    run: async ({ db, schema }, { limit, cursor, ...filter }) =>
      pageAnswer(await listAudit(db, filter, { schema, limit, before: cursor, maxScanned: MAX_SCANNED })),
  }),
]

interface AuditFilter {
  readonly principal?: string | undefined
  readonly action?: string | undefined
  readonly target?: string | undefined
  readonly from?: Date | undefined
  readonly to?: Date | undefined
}

/** One page of entries, newest first. */
async function listAudit(
  db: Database,
  filter: AuditFilter,
  options: PageOptions,
): Promise<Page<z.output<typeof entry>>> {
  const { principal, action, target, from, to } = filter
  checkTexts({ principal, action, target })
  checkPeriod(from, to)
  const { schema = 'leasehold' } = options
  return listNewestFirst(db, options, {
    table: quoteQualified(schema, 'audit'),
    bucketed: false,
    row: 'an entry',
    isIndexed: Object.values(filter).every((value) => value === undefined),
    where: (parameter) => [
      ...(principal === undefined ? [] : [`principal = ${parameter(principal, 'text')}`]),
      ...(target === undefined ? [] : [`target = ${parameter(target, 'text')}`]),
      ...(action === undefined
        ? []
        : [
            action.endsWith('.*')
              ? `starts_with(action, ${parameter(action.slice(0, -1), 'text')})`
              : `action = ${parameter(action, 'text')}`,
          ]),
      ...(from === undefined ? [] : [`at >= ${parameter(from, 'timestamptz')}`]),
      ...(to === undefined ? [] : [`at < ${parameter(to, 'timestamptz')}`]),
    ],
    columns: `r.id::text as id, at, principal, action, target, ${WITHOUT_IDS} as details`,
    what: 'Listing the audit',
    remedy: 'Ask for a shorter period, or allow more time.',
  })
}
