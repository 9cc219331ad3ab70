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

/** Forms about which a DBA may wonder, and where they occur. */
const PLAN_FORMS: readonly (readonly [form: string, occurrence: string])[] = [
  ['is true', ' is true'],
  ['coalesce(…, true)', ', true)'],
  ['(select $n)', '(select $'],
  ['any (array(select …))', 'any (array(select '],
]

/** Why a statement is written as it is, in a comment of its own text: a DBA finds it in `pg_stat_activity`. */
function hintFor(body: string): string {
  const forms = PLAN_FORMS.flatMap(([form, occurrence]) => (body.includes(occurrence) ? [form] : []))
  return forms.length === 0 ? '' : `\n-- For a stable plan (docs/decisions/002-plans.md): ${list(forms)}`
}

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
  const tag = `/* leasehold:${purpose} ${table.name.replaceAll(/\*\/|\/\*/g, '')} */${hintFor(body)}`
  const text = `${tag}\n${broken(body.replaceAll(/\n(?:[ \t]*\n)+/g, '\n').trim())}`
  const hash = createHash('sha256').update(text).digest('hex').slice(0, 16)
  const name = `leasehold_${purpose.replaceAll(/\W+/g, '_').slice(0, 30)}_${hash}`
  return { purpose, name, text, parameters: parameter.names }
}

const LINE_LENGTH = 120

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

/** A text, a quoted name or a comment as a whole; what opens and closes a part; and the places where a line may end. */
const TOKENS =
  /'(?:[^']|'')*'|"[^"]*"|--.*|\/\*[\s\S]*?\*\/|\n|[()[\]]|\b(?:case|end)\b|, | (?=(?:and|or|when|then|else|from|where|limit)\b|order by\b|\|\||[-+*] )/g

/** A space at which a line may end. */
interface Place {
  readonly at: number
  /** How many parts are open. More where a line rather ends elsewhere. */
  readonly depth: number
}

/** Breaks the lines that are too long where the fewest parts are open. What a declaration assigns may be of any length. */
function broken(text: string): string {
  // Texts that have quotes of another kind are left as they are.
  if (/\\|\$\w*\$/.test(text)) return text
  const lines: string[] = []
  let start = 0
  let depth = 0
  let places: Place[] = []
  for (const { 0: token, index } of [...text.matchAll(TOKENS), { 0: '\n', index: text.length }]) {
    if (token === '\n') {
      lines.push(...linesOf(text.slice(start, index), places))
      start = index + 1
      depth = 0
      places = []
    } else if (/^(?:[([]|case)$/.test(token)) depth += 1
    else if (/^(?:[)\]]|end)$/.test(token)) depth -= 1
    else if (token === ', ' || token === ' ') {
      const isArithmetic = /^ [-+*] /.test(text.slice(index, index + 3))
      // In a list of names and values, a name stays with its value.
      const isAfterName = token === ', ' && /'\w+'$/.test(text.slice(start, index))
      const more = isArithmetic ? 0.5 : isAfterName ? 1.5 : 0
      places.push({ at: index - start + token.length - 1, depth: depth + more })
    }
  }
  return lines.join('\n')
}

function linesOf(line: string, places: readonly Place[]): string[] {
  const margin = line.search(/\S|$/)
  const beginsClause = /^\(*(?:with|select|from|where|order|set|returning)\b/.test(line.trimStart())
  const lines: string[] = []
  let rest = line
  let done = margin
  while (rest.length > LINE_LENGTH) {
    const passed = line.length - rest.length
    const within = places.filter(({ at }) => at > done && at - passed <= LINE_LENGTH)
    const depth = Math.min(...within.map((place) => place.depth))
    const place = within.findLast((each) => each.depth === depth)
    if (place === undefined) break
    lines.push(rest.slice(0, place.at - passed))
    done = place.at + 1
    const isClause = /^(?:from|where|order|limit)\b/.test(line.slice(done))
    const isSameLevel = depth <= 0 && (isClause || !beginsClause)
    rest = ' '.repeat(isSameLevel ? margin : margin + 2) + line.slice(done)
  }
  return [...lines, rest]
}

/** Every line of it further to the right. */
export function indented(text: string): string {
  return text.replaceAll(/^/gm, '  ')
}

export function list(items: readonly string[]): string {
  return items.join(', ')
}
