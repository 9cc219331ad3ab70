import { createHash } from 'node:crypto'
import type { LeaseTable } from './table.ts'

/** A generated statement, and what each of its parameters stands for, in order. */
export interface LeaseStatement {
  /** What it does, as in its tag: `claim in order`. */
  readonly purpose: string
  /** The name it is prepared under. */
  readonly name: string
  readonly text: string
  readonly parameters: readonly string[]
}

/** Numbers the parameters of one statement; the same name is the same parameter. */
export interface Parameters {
  (name: string, type: string): string
  readonly names: string[]
}

export function parameters(): Parameters {
  const names: string[] = []
  const number = (name: string, type: string): string => {
    if (!names.includes(name)) names.push(name)
    return `$${names.indexOf(name) + 1}::${type}`
  }
  return Object.assign(number, { names })
}

/** For the DBA who wonders about them. */
const HINT =
  '\n-- "is true" and "coalesce(…, true)" hide a condition from the planner: docs/decisions/002-plans.md'

/**
 * Completes a statement: a tag in front, by which it is recognised in `pg_stat_activity`, and no blank lines where an
 * optional part is absent. It is named after its purpose and its text, so that two tables never share a prepared
 * statement.
 */
export function statement(
  table: LeaseTable,
  purpose: string,
  parameter: Parameters,
  body: string,
): LeaseStatement {
  const hint = body.includes(' is true') ? HINT : ''
  const tag = `/* leasehold:${purpose} ${table.name.replaceAll(/\*\/|\/\*/g, '')} */${hint}`
  const text = `${tag}\n${body.replaceAll(/\n(?:[ \t]*\n)+/g, '\n').trim()}`
  const hash = createHash('sha256').update(text).digest('hex').slice(0, 16)
  const name = `leasehold_${purpose.replaceAll(/\W+/g, '_').slice(0, 30)}_${hash}`
  return { purpose, name, text, parameters: parameter.names }
}

const LINE_LENGTH = 110

/** Joins the parts, as many on a line as fit; further lines begin with the indent. */
export function wrapped(parts: readonly string[], separator: string, indent: string): string {
  const lines: string[] = []
  for (const part of parts.filter((each) => each !== '')) {
    const last = lines.at(-1)
    const joined = last === undefined ? part : `${last}${separator}${part}`
    const fits = joined.length + indent.length <= LINE_LENGTH && !joined.includes('\n')
    if (last === undefined || !fits) lines.push(part)
    else lines[lines.length - 1] = joined
  }
  return lines.join(`${separator.trimEnd()}\n${indent}`)
}

/** The conditions of a WHERE clause. */
export function and(conditions: readonly string[], indent: string): string {
  return wrapped(conditions, ' and ', indent).replaceAll(/ and\n(\s*)/g, '\n$1and ')
}

export function list(items: readonly string[]): string {
  return items.join(', ')
}
