import type { Database } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { listNewestFirst, type Page, type PageOptions } from './browse.ts'
import { checkPeriod, checkTexts } from './request-checks.ts'

/** Something that a person, or a program on behalf of one, has changed. */
export interface AuditEntry {
  /** Who. */
  readonly principal: string
  /** What was done: `outbox.replay`, `webhooks.endpoint.create`. */
  readonly action: string
  /** To what: an ordering key, the id of an endpoint. Null: to more than one thing. */
  readonly target: string | null
  /** Why, and what exactly; never a secret. */
  readonly details: object
}

/** Adds an entry, in the transaction of the change it tells of: there is none without the other. */
export async function audit(
  tx: Queryable,
  schema: string,
  { principal, action, target, details }: AuditEntry,
): Promise<void> {
  await tx.query({
    text: `insert into ${quoteQualified(schema, 'audit')} (principal, action, target, details) values ($1, $2, $3, $4)`,
    values: [principal, action, target, JSON.stringify(details)],
  })
}

/** The details of an entry without the ids of rows, of which there may be very many. */
export const WITHOUT_IDS = `details #- '{filter,ids}' #- '{lastBatch,ids}'`

/** An entry as it is read. */
export interface RecordedEntry extends AuditEntry {
  readonly id: string
  readonly at: Date
}

export interface AuditFilter {
  readonly principal?: string | undefined
  /** `outbox.replay`; `outbox.*` is every action that begins with `outbox.`. */
  readonly action?: string | undefined
  readonly target?: string | undefined
  readonly from?: Date | undefined
  readonly to?: Date | undefined
}

/** One page of entries, newest first. */
export async function listAudit(
  db: Database,
  filter: AuditFilter = {},
  options: PageOptions = {},
): Promise<Page<RecordedEntry>> {
  const { principal, action, target, from, to } = filter
  checkTexts({ principal, action, target })
  checkPeriod(from, to)
  const { schema = 'leasehold' } = options
  return listNewestFirst<RecordedEntry>(db, options, {
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
