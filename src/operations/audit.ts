import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'

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
