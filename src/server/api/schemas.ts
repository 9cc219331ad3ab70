/** The schemas that several resources share. */
import { z } from 'zod'
import type { BulkChangeResult } from '../../operations/bulk-change.ts'
import { LeaseholdError } from '../../errors.ts'
import { reason } from '../../operations/fields.ts'

/** The number of a row, or its event id. */
export const rowId = z
  .string()
  .regex(
    /^(\d{1,19}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$/,
    'give the number of a row, or an event id',
  )
  .meta({ examples: ['4711', '0199a2c4-6f10-7c3a-9d52-1f6f0c8a4b11'] })

/** In an answer. */
export const time = z.iso.datetime({ offset: true }).meta({ examples: ['2026-03-01T12:00:00.000Z'] })
export const optionalTime = time.nullable()

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
