/** The schemas that several resources share. */
import { z } from 'zod'
import type { BulkChangeResult } from '../../operations/bulk-change.ts'
import { LeaseholdError } from '../../errors.ts'
import { unstorableText } from '../../unstorable-text.ts'
import { RequestProblem } from './problem.ts'

/** A number that may exceed 2^53, as its digits. */
export const digits = z
  .string()
  .regex(/^\d{1,19}$/, 'give the digits of a number')
  .meta({ examples: ['4711'] })

export const uuid = z.guid('give a uuid').meta({ examples: ['0199a2c4-6f10-7c3a-9d52-1f6f0c8a4b11'] })

/** The number of a row, or its event id. */
export const rowId = z
  .string()
  .regex(
    /^(\d{1,19}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$/,
    'give the number of a row, or an event id',
  )
  .meta({ examples: ['4711', '0199a2c4-6f10-7c3a-9d52-1f6f0c8a4b11'] })

/** PostgreSQL can neither store nor compare a text with a NUL character, or with half a character. */
export const text = z
  .string()
  .min(1, 'give a text, or leave it out')
  .max(2_000, 'give at most 2,000 characters')
  // oxlint-disable-next-line no-control-regex -- that character is what is refused
  .regex(/^[^\u0000]*$/, 'give a text without NUL characters')
  .refine((given) => unstorableText(given) === undefined, 'give a text of whole characters')

/** In an answer. */
export const time = z.iso.datetime({ offset: true }).meta({ examples: ['2026-03-01T12:00:00.000Z'] })
export const optionalTime = time.nullable()

/** In a request. */
export const moment = z.iso
  .datetime({ offset: true, error: 'give a time such as 2026-03-01T12:00:00Z' })
  .meta({ examples: ['2026-03-01T12:00:00Z'] })
  .transform((given) => new Date(given))

export const count = z
  .object({
    count: z.int(),
    exact: z.boolean().describe('False: an estimate from the statistics of PostgreSQL.'),
  })
  .describe('How many there are.')

/** In a query: one value, or several by repeating the parameter. */
export function several<Value extends z.ZodType>(value: Value) {
  return z.union([z.array(value).min(1), value.transform((one) => [one])])
}

export const flag = z.enum(['true', 'false']).transform((given) => given === 'true')

/** What every list takes. */
export const paging = {
  limit: z.coerce.number('give a number').int().min(1).max(1_000).optional().describe('Default 50.'),
  cursor: z.string().max(500).optional().describe('`next` of the page before.'),
} as const

/** The answer of a list. */
export function pageOf<Item extends z.ZodType>(item: Item) {
  return z.object({
    items: z
      .array(item)
      .describe(
        'A page may be short, or empty, although there is a next one: a search reads 100,000 rows at a time.',
      ),
    next: z.string().nullable().describe('The cursor of the next page; null: this is the last.'),
  })
}

/** Of a filter that no index answers, a page reads at most so many rows: about 50 ms. It may then be short, and have a next one. */
export const MAX_SCANNED = 100_000

/** Cursors are opaque: what they contain may change. */
export function toCursor(position: string | null): string | null {
  return position === null ? null : Buffer.from(`1:${position}`, 'utf8').toString('base64url')
}

export function fromCursor(cursor: string | undefined): string | undefined {
  if (cursor === undefined) return undefined
  const decoded = Buffer.from(cursor, 'base64url').toString('utf8')
  if (decoded.startsWith('1:') && decoded.length > 2 && !decoded.includes('\0')) return decoded.slice(2)
  throw new RequestProblem([
    { field: 'query.cursor', detail: 'is no cursor; give `next` of the page before' },
  ])
}

/** Why something is changed: the audit records it. */
export const reason = text.meta({
  description: 'Why: it is recorded in the audit.',
  examples: ['the broker was down'],
})

export const withReason = z.strictObject({ reason })

/** How a bulk change is asked for, apart from its filter. */
export const pacing = {
  ids: z
    .array(rowId)
    .min(1)
    .max(10_000)
    .optional()
    .describe('The rows; with a filter as well, those that satisfy both.'),
  rate: z
    .number()
    .positive()
    .max(1_000_000)
    .optional()
    .describe('Rows per second. Default: without a limit.'),
  limit: z.int().min(1).optional().describe('Change at most so many rows, the oldest first.'),
} as const

export const change = z.object({
  id: uuid,
  action: z.string(),
  principal: z.string(),
  reason: z.string(),
  filter: z.record(z.string(), z.unknown()),
  namedIds: z.int().nullable(),
  rate: z.number().nullable(),
  limit: z.int().nullable(),
  state: z.enum(['running', 'finished', 'cancelled', 'failed']),
  isBackground: z.boolean(),
  matched: z.int().nullable().describe('Null: not counted yet.'),
  changed: z.int(),
  counts: z.record(z.string(), z.int()),
  startedAt: time,
  updatedAt: time,
  finishedAt: optionalTime,
  cancelledBy: z.string().nullable(),
  error: z.string().nullable(),
})

export const preview = z.object({
  matched: z.int(),
  counts: z.record(z.string(), z.int()),
  skipped: z.array(z.object({ id: z.string(), why: z.string() })),
})

/** A change of one row that is named in the path: done, or refused with the reason. */
export function oneChanged(
  { changed, skipped }: BulkChangeResult<string>,
  what: string,
  notFound: LeaseholdError,
): void {
  if (changed > 0) return
  const [why = 'somebody else has changed it in the meantime'] = skipped.map((each) => each.why)
  if (why.startsWith('there is no such')) throw notFound
  throw new LeaseholdError('STATE_CONFLICT', `${what}: ${why}.`, { field: 'path.id' })
}
