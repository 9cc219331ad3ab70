/** The rules for the fields of an object that a caller gives, each with the words in which it is refused. */
import { inspect } from 'node:util'
import { DATABASE_URL_RULE, isDatabaseUrl } from './database-url.ts'
import { type FieldProblem, sentence } from './errors.ts'
import { unknownNames } from './nearest.ts'

export interface Rule {
  /** Otherwise the field may be left out. */
  readonly required?: boolean
  readonly holds: (value: unknown) => boolean
  /** Completes the sentence "… but must be". */
  readonly text: string
  /** The value may contain a password, and is not shown. */
  readonly isSecret?: boolean
}

/** A rule for every field of an interface. The compiler refuses one that is missing, or one too many. */
export type Rules<Options> = Readonly<Record<keyof Options & string, Rule>>

export interface ProblemContext {
  /** What stands before a field's name: `workers[0].` */
  readonly path?: string
  /** Where the fields were given: ` (leasehold.config.mjs)` */
  readonly source?: string
  /** What a field is called where its name is unknown. Default `option`. */
  readonly what?: string
}

/** Every problem with the fields of `given`: names that no rule knows, and values that break their rule. */
export function problemsWith(
  given: object,
  rules: Readonly<Record<string, Rule>>,
  { path = '', source = '', what = 'option' }: ProblemContext = {},
): string[] {
  const values = given as Readonly<Record<string, unknown>> // Each field is unknown until its rule has been applied.
  const broken = Object.entries(rules).filter(([field, { required = false, holds }]) =>
    values[field] === undefined ? required : !holds(values[field]),
  )
  const owner = path === '' ? '' : `${path.replace(/\.$/, '')}${source}: `
  return [
    ...unknownNames(given, Object.keys(rules), what).map((problem) => `${owner}${problem}`),
    ...broken.map(
      ([field, { text, isSecret = false }]) =>
        `${path}${field}${source} is ${isSecret && isText(values[field]) ? 'set (and not shown)' : describeValue(values[field])}, but must be ${text}`,
    ),
  ]
}

/** Problems by the field that each is about: the one whose name it begins with. */
export function byField(problems: readonly string[], names: readonly string[]): FieldProblem[] {
  return problems.flatMap((problem) => {
    const field = names.find((name) => problem.startsWith(`${name} `))
    return field === undefined ? [] : [{ field, detail: problem.slice(field.length + 1) }]
  })
}

/** Problems as what follows a colon: one as the end of the sentence, several as a list of lines. */
export function listed(problems: readonly string[]): string {
  const [only = '', ...others] = problems
  return others.length === 0
    ? ` ${sentence(only)}`
    : `\n${problems.map((problem) => `  - ${problem}`).join('\n')}`
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** An object literal or the like, of any realm. A `Date`, a `Map` or a `Headers` has no entries of its own to read. */
export function isPlainObject(value: unknown): value is Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

const MAX_SHOWN = 200

/** A value as it appears in an error message, within bounds: it may be a whole module. */
export function describeValue(value: unknown): string {
  const text = inspect(value, { depth: 0, breakLength: Infinity, maxStringLength: 100, maxArrayLength: 10 })
  return text.length <= MAX_SHOWN ? text : `${text.slice(0, MAX_SHOWN)}…`
}

export function isText(value: unknown): boolean {
  return typeof value === 'string' && value.trim() !== ''
}

export function isFunction(value: unknown): boolean {
  return typeof value === 'function'
}

export const TRUE_OR_FALSE: Rule = { holds: (value) => typeof value === 'boolean', text: 'true or false' }

export const DATABASE_URL: Rule = {
  holds: isDatabaseUrl,
  text: DATABASE_URL_RULE,
  isSecret: true,
}

/** The table of the audit refuses to delete younger entries (migrations/001_core.sql): 30 days. */
export const MIN_AUDIT_RETENTION_MS = 30 * 86_400_000
