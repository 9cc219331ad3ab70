/** The input of an operation: read from texts where it comes as such, and checked by its schema. */
import { z } from 'zod'
import { jsonTypeOf, wordsOf } from './fields.ts'

/** What is wrong with a field: its path, what it is, and the rule that it breaks. */
export interface InputProblem {
  readonly path: readonly string[]
  /** `missing`, or the value as JSON, shortened. Undefined: there is no such field. */
  readonly is: string | undefined
  readonly rule: string
}

const MAX_PROBLEMS = 20

export function problemsIn(error: z.ZodError, value: unknown): readonly InputProblem[] {
  const problems = error.issues.flatMap((issue): InputProblem[] => {
    const path = issue.path.map(String)
    if (issue.code === 'unrecognized_keys')
      return issue.keys.map((key) => ({
        path: [...path, key],
        is: undefined,
        rule: 'there is no such field',
      }))
    const given = valueAt(value, issue.path)
    return [
      { path, is: given === undefined ? 'missing' : shorten(JSON.stringify(given)), rule: issue.message },
    ]
  })
  return problems.slice(0, MAX_PROBLEMS)
}

export function shorten(text: string): string {
  return text.length <= 100 ? text : `${text.slice(0, 100)}…`
}

function valueAt(value: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (at, key) =>
      typeof at === 'object' && at !== null && Object.hasOwn(at, key) ? Reflect.get(at, key) : undefined,
    value,
  )
}

/**
 * A parameter of a query, or a flag, as the JSON that the schema accepts. What cannot be read stays a text, which the schema
 * refuses in its own words. With `now`, times may be relative or local: those are for people, a program says exactly when.
 */
export function fromText(schema: z.ZodType, given: string, now?: Date): unknown {
  if (jsonTypeOf(schema) instanceof z.ZodNumber) return /^-?\d+(\.\d+)?$/.test(given) ? Number(given) : given
  const { relativeTo } = wordsOf(schema)
  if (now === undefined || relativeTo === undefined) return given
  return readTime(given, now, relativeTo)?.toISOString() ?? given
}

/** A time as a person writes it: `2026-03-01`, in the time zone of this machine, or `2h`, two hours ago or from now. */
export function readTime(given: string, now: Date, relativeTo?: 'past' | 'future'): Date | undefined {
  const [, amount, unit] = (relativeTo && /^(\d{1,6})([smhd])$/.exec(given)) ?? []
  if (amount === undefined) return localTime(given)
  // The pattern allows no other unit.
  const ms = Number(amount) * UNITS_MS[unit as keyof typeof UNITS_MS]
  const time = new Date(now.getTime() + (relativeTo === 'past' ? -ms : ms))
  // Earlier than every row.
  return time.getTime() >= 0 ? time : undefined
}

const UNITS_MS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const

const LOCAL_TIME = /^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$/

function localTime(given: string): Date | undefined {
  if (!LOCAL_TIME.test(given)) return undefined
  // JavaScript takes a date alone as midnight UTC, but a date with a time as local time. Here both are local.
  const time = new Date(given.length === 10 ? `${given}T00:00` : given)
  return Number.isNaN(time.getTime()) ? undefined : time
}
