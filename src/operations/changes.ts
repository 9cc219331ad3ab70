/** Bulk changes as operators see them: what was asked for, how far each is. Their entries in the audit are their state. */
import { z } from 'zod'
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { positionalParameters } from '../postgres/parameters.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { audit, WITHOUT_IDS } from './audit.ts'
import { type BrowseOptions, cutPage, DEFAULT_PAGE_SIZE, type Page, readOnly } from './browse.ts'
import { readClock } from './bulk-change-sql.ts'
import { type ChangeRecord, lockChange } from './change-record.ts'
import { field, moment, pageAnswer, pageOf, paging, uuid } from './fields.ts'
import { operation, resource } from './operation.ts'
import { checkPageSize, checkPrincipal, invalid, isRowId, isUuid } from './request-checks.ts'
import { schemaFlag } from './shown-commands.ts'

export const CHANGE_STATES = ['running', 'finished', 'cancelled', 'failed'] as const

export const change = z.object({
  id: uuid,
  action: z.string().describe('As in the audit: `outbox.replay`.'),
  state: z
    .enum(CHANGE_STATES)
    .describe('`failed`: a server met an error that does not pass by itself, and does not try again.'),
  changed: field(z.int(), { outOf: 'matched' }),
  matched: z.int().nullable().describe('How many rows matched when it began; null: not counted yet.'),
  counts: z.record(z.string(), z.int()),
  filter: z.record(z.string(), z.unknown()),
  namedIds: z
    .int()
    .nullable()
    .describe('How many rows were named by their ids; null: the filter alone chose them.'),
  rate: field(z.number().nullable(), { unit: 'per second' }),
  limit: z.int().nullable(),
  principal: field(z.string().describe('Who asked for it. Who has cancelled it is in the audit.'), {
    title: 'Who',
  }),
  reason: z.string(),
  isBackground: field(z.boolean().describe('Whether a server runs it, or a command.'), {
    title: 'Background',
  }),
  startedAt: field(moment, { title: 'Started' }),
  updatedAt: field(moment, { title: 'Last batch' }),
  finishedAt: field(moment.nullable(), { title: 'Ended' }),
  cancelledBy: z.string().nullable(),
  error: z.string().nullable().describe('Why it has failed.'),
  continuedBy: z
    .string()
    .nullable()
    .describe(
      'The command that continues it, if the one that ran it was stopped. Null: it has ended, or a server continues it.',
    ),
})

/** A bulk change, as operators see it. */
export type ChangeSummary = z.output<typeof change>

const RESOURCE = resource({
  rows: 'changes',
  tag: 'changes',
  item: change,
  columns: ['id', 'action', 'state', 'changed', 'startedAt', 'principal', 'reason'],
  none: 'There was no bulk change.',
})

export const CHANGES = [
  operation({
    kind: 'list',
    resource: RESOURCE,
    command: 'changes list',
    path: '/changes',
    summary: 'List bulk changes, the latest first',
    role: 'read',
    forTenants: true,
    input: z.strictObject(paging),
    output: pageOf(change),
    run: async ({ db, schema }, { limit, cursor }) =>
      pageAnswer(await listChanges(db, { schema, limit, before: cursor })),
  }),
  operation({
    kind: 'show',
    resource: RESOURCE,
    command: 'changes show',
    path: '/changes/{id}',
    summary: 'Show how far a bulk change is',
    role: 'read',
    forTenants: true,
    input: z.strictObject({ id: uuid }),
    output: change,
    run: async ({ db, schema }, { id }) => showChange(db, id, schema),
  }),
  operation({
    kind: 'do',
    resource: RESOURCE,
    command: 'changes cancel',
    path: '/changes/{id}/cancel',
    summary: 'End a bulk change; what it has changed stays changed',
    role: 'operate',
    forTenants: true,
    input: z.strictObject({ id: uuid }),
    output: change,
    run: async ({ db, schema, principal }, { id }) => cancelChange(db, id, { principal, schema }),
  }),
]

interface Entry {
  readonly id: string
  readonly at: Date
  readonly principal: string
  readonly action: string
  readonly details: ChangeRecord<Readonly<Record<string, unknown>>>
}

/** Ordered by entry.id, the number: a plain "id" would be the selected text. */
const ENTRY = `entry.id::text as id, at, principal, action, ${WITHOUT_IDS} as details`

/** One change, from its last entry. */
export async function showChange(
  db: Queryable,
  changeId: string,
  schema = 'leasehold',
): Promise<ChangeSummary> {
  return summaryOf(await lastEntry(db, changeId, schema), schema)
}

export interface ChangePageOptions extends BrowseOptions {
  readonly limit?: number | undefined
  /** `next` of the page before. */
  readonly before?: string | undefined
}

/** The changes whose last entries are the newest. */
export async function listChanges(
  db: Database,
  options: ChangePageOptions = {},
): Promise<Page<ChangeSummary>> {
  const { schema = 'leasehold', limit = DEFAULT_PAGE_SIZE, before } = options
  checkPageSize(limit)
  if (before !== undefined && !isRowId(before))
    throw invalid('before', before, 'Give `next` of the page before.')
  const table = quoteQualified(schema, 'audit')
  const listing = { what: 'Listing the changes', remedy: 'Ask for fewer, or allow more time.' }
  return readOnly(db, options, listing, async (tx) => {
    const parameter = positionalParameters()
    const { rows } = await tx.query<Entry>({
      text: `select ${ENTRY} from ${table} as entry
where details ? 'changeId' ${before === undefined ? '' : `and entry.id < ${parameter(before, 'bigint')}`}
  and not exists (select from ${table} as later
    where later.details ? 'changeId' and later.details ->> 'changeId' = entry.details ->> 'changeId' and later.id > entry.id)
order by entry.id desc limit ${parameter(limit + 1, 'int')}`,
      values: parameter.values,
    })
    const page = cutPage(rows, limit, ({ id }) => id)
    return { rows: page.rows.map((each) => summaryOf(each, schema)), next: page.next }
  })
}

/** Ends a change after the batch that is being written. What it has changed stays changed. */
export async function cancelChange(
  db: Database,
  changeId: string,
  { principal, schema = 'leasehold' }: { readonly principal: string; readonly schema?: string },
): Promise<ChangeSummary> {
  return endChange(db, changeId, { why: 'cancelled', principal: checkPrincipal(principal, 'cancel'), schema })
}

/** Records that a change cannot go on, so that nobody tries it again. */
export async function failChange(
  db: Database,
  changeId: string,
  {
    principal,
    schema,
    error,
  }: { readonly principal: string; readonly schema: string; readonly error: string },
): Promise<void> {
  await endChange(db, changeId, { why: 'failed', principal, schema, error })
}

interface End {
  readonly why: 'cancelled' | 'failed'
  readonly principal: string
  readonly schema: string
  readonly error?: string
}

async function endChange(db: Database, changeId: string, end: End): Promise<ChangeSummary> {
  const { why, principal, schema, error } = end
  return db.transaction(async (tx) => {
    await lockChange(tx, changeId)
    const { details, action, principal: last } = await lastEntry(tx, changeId, schema)
    if (details.finishedAtSeconds !== null)
      throw new LeaseholdError('STATE_CONFLICT', `The change ${changeId} has ended.`, {
        remedy: 'Nothing is left to cancel.',
      })
    const ended = { why, askedBy: details.background?.by ?? last, ...(error === undefined ? {} : { error }) }
    const finishedAtSeconds = await readClock(tx)
    await audit(tx, schema, {
      principal,
      action,
      target: null,
      details: { ...details, ended, finishedAtSeconds, lastBatch: null },
    })
    return summaryOf(await lastEntry(tx, changeId, schema), schema)
  })
}

export interface LeftChange {
  readonly changeId: string
  readonly action: string
  readonly principal: string
  readonly tenant: string | null
}

/** Changes that a server runs in the background, and of which nothing was heard for so long. */
export async function leftChanges(db: Queryable, schema: string, silentForMs: number): Promise<LeftChange[]> {
  const table = quoteQualified(schema, 'audit')
  const { rows } = await db.query<LeftChange>({
    text: `select details ->> 'changeId' as "changeId", action, details -> 'background' ->> 'by' as principal,
  details -> 'background' ->> 'tenant' as tenant
from ${table} as entry
where details ? 'changeId' and details -> 'background' is not null and details -> 'finishedAtSeconds' = 'null'
  and at < now() - $1::float8 * interval '1 millisecond' and at > now() - interval '7 days'
  -- One with a low rate may wait for its next batch.
  and (details ->> 'nextDueSeconds')::float8 < extract(epoch from now()) - $1::float8 / 1000
  and not exists (select from ${table} as later
    where later.details ? 'changeId' and later.details ->> 'changeId' = entry.details ->> 'changeId' and later.id > entry.id)
order by id limit 100`,
    values: [silentForMs],
  })
  return rows
}

/**
 * Cancels changes that were asked for with a key that has been revoked since, in the name of whoever revoked it: this one,
 * or all of them.
 */
export async function cancelRevoked(db: Database, schema: string, changeId?: string): Promise<void> {
  const table = quoteQualified(schema, 'audit')
  const { rows } = await db.query<{ id: string; revokedBy: string }>({
    text: `select details ->> 'changeId' as id, key.revoked_by as "revokedBy"
from ${table} as entry
join ${quoteQualified(schema, 'api_keys')} as key on key.id::text = details -> 'background' ->> 'keyId'
-- What nothing was heard of for a week is not continued either (leftChanges): the whole audit need not be read.
where details ? 'changeId' and case when $1::text is null then at > now() - interval '7 days' else details ->> 'changeId' = $1 end
  and key.revoked_at is not null and details -> 'finishedAtSeconds' = 'null'
  and not exists (select from ${table} as later
    where later.details ? 'changeId' and later.details ->> 'changeId' = entry.details ->> 'changeId' and later.id > entry.id)`,
    values: [changeId ?? null],
  })
  for (const { id, revokedBy } of rows) {
    try {
      await cancelChange(db, id, { principal: revokedBy, schema })
    } catch (error) {
      // It has ended by itself, or another process has cancelled it.
      if (!isLeaseholdError(error, 'STATE_CONFLICT')) throw error
    }
  }
}

async function lastEntry(db: Queryable, changeId: string, schema: string): Promise<Entry> {
  const { rows } = isUuid(changeId)
    ? await db.query<Entry>({
        text: `select ${ENTRY} from ${quoteQualified(schema, 'audit')} as entry
where details ? 'changeId' and details ->> 'changeId' = $1 order by entry.id desc limit 1`,
        values: [changeId.toLowerCase()],
      })
    : { rows: [] }
  const [entry] = rows
  if (entry !== undefined) return entry
  throw new LeaseholdError('CHANGE_NOT_FOUND', `No change has the id ${changeId}.`, {
    remedy: 'The audit lists the changes that were made.',
  })
}

function summaryOf({ at, principal, action, details }: Entry, schema: string): ChangeSummary {
  const { changeId, reason, filter, namedIds, rate, limit, matched, changed, counts, background, ended } =
    details
  const { finishedAtSeconds, startedAtSeconds } = details
  const isFinished = finishedAtSeconds !== null
  return {
    id: changeId,
    action,
    principal: background?.by ?? ended?.askedBy ?? principal,
    reason,
    filter: Object.fromEntries(Object.entries(filter).filter(([name]) => name !== 'ids')),
    namedIds,
    rate,
    limit,
    state: ended?.why ?? (isFinished ? 'finished' : 'running'),
    isBackground: background !== undefined,
    matched: background?.isCounted === false ? null : matched,
    changed,
    counts,
    startedAt: new Date(startedAtSeconds * 1_000),
    updatedAt: at,
    finishedAt: isFinished ? new Date(finishedAtSeconds * 1_000) : null,
    cancelledBy: ended?.why === 'cancelled' ? principal : null,
    error: ended?.error ?? null,
    continuedBy: isFinished || background !== undefined ? null : resumeCommand(action, changeId, schema),
  }
}

/** `outbox.giveUp` → `leasehold outbox give-up --resume …`. */
function resumeCommand(action: string, changeId: string, schema: string): string {
  const words = action.replaceAll('.', ' ').replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
  return `leasehold ${words} --resume ${changeId}${schemaFlag(schema)}`
}
