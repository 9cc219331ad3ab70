/** The fields that operations share. Each says once what it accepts, and how a person calls it. */
import { z } from 'zod'
import { unstorableText } from '../unstorable-text.ts'
import { MAX_PAGE_SIZE } from './request-checks.ts'
import { DEFAULT_PAGE_SIZE, type Page } from './browse.ts'

/** What surfaces for people need of a field besides its schema and its description. It is no part of the JSON schema. */
export interface FieldWords {
  /** A heading, the name of a fact. Default: made of the field's name, `createdBy` → `Created by`. */
  readonly title?: string
  /** The flag without its dashes. Default: the field's name, `createdBy` → `created-by`. */
  readonly flag?: string
  /** What stands behind the flag in the help, or for the argument, without its brackets. Default: by the type, or the name. */
  readonly placeholder?: string
  /** Which relative times a command accepts: `2h` ago, or `90d` from now. */
  readonly relativeTo?: 'past' | 'future'
  /** What is shown where there is no value, and what holds if none is given. Default: nothing. */
  readonly absent?: string
  /** What follows a number: `per second`. */
  readonly unit?: string
  /** The field with the number that this one counts up to: `3 of 12`. That field is not shown by itself. */
  readonly outOf?: string
  /** Of an object: its member that a list shows. */
  readonly member?: string
}

// Filled while modules are loaded, and only read afterwards. Not zod's `meta`, which would be in the OpenAPI document.
const WORDS = z.registry<FieldWords>()

/** A copy of the schema with these words: two fields that share a schema do not share their words. */
export function field<Schema extends z.ZodType>(schema: Schema, words: FieldWords): Schema {
  const copy = schema.clone()
  WORDS.add(copy, words)
  return copy
}

export function wordsOf(schema: z.ZodType): FieldWords {
  const own = WORDS.get(schema)
  if (own !== undefined) return own
  const inner = unwrapped(schema)
  return inner === schema ? {} : wordsOf(inner)
}

/** What an optional field says of itself, also where the words are at the schema inside. */
export function descriptionOf(schema: z.ZodType): string | undefined {
  const inner = unwrapped(schema)
  return schema.description ?? (inner === schema ? undefined : descriptionOf(inner))
}

/** The type of a JSON value that the field accepts, apart from its being optional, or having a default. */
export function jsonTypeOf(schema: z.ZodType): z.ZodType {
  const inner = schema instanceof z.ZodCodec ? schema.def.in : unwrapped(schema)
  // Codecs of this project begin with a schema of zod's, not of its core.
  return inner === schema ? schema : jsonTypeOf(inner as z.ZodType)
}

/** The schema inside an optional one, or the schema itself. */
function unwrapped(schema: z.ZodType): z.ZodType {
  const isWrapper =
    schema instanceof z.ZodOptional || schema instanceof z.ZodNullable || schema instanceof z.ZodDefault
  // As above.
  return isWrapper ? (schema.def.innerType as z.ZodType) : schema
}

/** A number that may exceed 2^53, as its digits. */
export const digits = z
  .string()
  .regex(/^\d{1,19}$/, 'give the digits of a number')
  .meta({ examples: ['4711'] })

export const uuid = z.guid('give a uuid').meta({ examples: ['0199a2c4-6f10-7c3a-9d52-1f6f0c8a4b11'] })

/** PostgreSQL can neither store nor compare a text with a NUL character, or with half a character. */
export const text = z
  .string('give a text')
  .min(1, 'give a text, or leave it out')
  .max(2_000, 'give at most 2,000 characters')
  // oxlint-disable-next-line no-control-regex -- that character is what is refused
  .regex(/^[^\u0000]*$/, 'give a text without NUL characters')
  .refine((given) => unstorableText(given) === undefined, 'give a text of whole characters')

export function oneOf<const Names extends readonly [string, ...string[]]>(names: Names) {
  return z.enum(names, `give one of ${names.join(', ')}`)
}

/** A text in JSON, a Date in code: in requests and in answers. */
export const moment = z.codec(
  z.iso
    .datetime({ offset: true, error: 'give a time such as 2026-03-01T12:00:00Z' })
    .meta({ examples: ['2026-03-01T12:00:00Z'] }),
  z.date(),
  { decode: (given) => new Date(given), encode: (at) => at.toISOString() },
)

/** Why something is changed: the audit records it. */
export const reason = text.meta({
  description: 'Why: it is recorded in the audit.',
  examples: ['the broker was down'],
})

/** When something happened: `--from 2h`, `--to 2026-03-01`. */
export function period(happened: string) {
  return {
    from: field(moment.describe(`Only ${happened} at this time or later.`), {
      relativeTo: 'past',
    }).optional(),
    to: field(moment.describe(`Only ${happened} before this time.`), { relativeTo: 'past' }).optional(),
  } as const
}

const LIMIT_RULE = `give a whole number from 1 to ${MAX_PAGE_SIZE.toLocaleString('en-US')}`

/** How many rows are wanted, in a list that has so many by default. */
export function limitOf(usual: number) {
  return z
    .int(LIMIT_RULE)
    .min(1, LIMIT_RULE)
    .max(MAX_PAGE_SIZE, LIMIT_RULE)
    .default(usual)
    .describe('How many at most.')
}

const CURSOR_RULE = 'give `next` of the page before'

/** What every list of pages takes. A cursor is opaque outside, and a position inside. */
export const paging = {
  limit: limitOf(DEFAULT_PAGE_SIZE),
  cursor: field(
    z
      .string()
      .max(500, CURSOR_RULE)
      .transform((given, check) => {
        const decoded = Buffer.from(given, 'base64url').toString('utf8')
        if (decoded.startsWith('1:') && decoded.length > 2 && !decoded.includes('\0')) return decoded.slice(2)
        check.issues.push({ code: 'custom', input: given, message: CURSOR_RULE })
        return z.NEVER
      })
      .describe('For the next page: `next` of the page before.'),
    { flag: 'before', placeholder: 'next' },
  ).optional(),
} as const

export function toCursor(position: string | null): string | null {
  return position === null ? null : Buffer.from(`1:${position}`, 'utf8').toString('base64url')
}

/** Of a filter that no index answers, a page reads at most so many rows: about 50 ms. It may then be short, and have a next one. */
export const MAX_SCANNED = 100_000

/** The answer of a list of pages. */
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

export function pageAnswer<Row>({ rows, next }: Page<Row>): { items: Row[]; next: string | null } {
  return { items: [...rows], next: toCursor(next) }
}
