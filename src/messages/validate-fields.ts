/** What is wrong with one field of an event, as sentences that name its path. */
import { inspect } from 'node:util'
import { unstorableText } from './validate-payload.ts'
import { pathOf } from './validate-path.ts'

/** An event's id, as consumers know it. */
export function checkEventId(path: string, value: unknown): string[] {
  return typeof value === 'string' && UUID.test(value)
    ? []
    : [`${path} is ${shown(value)}, but must be a uuid`]
}

/** A name that is stored and compared. */
const LONGEST_TYPE = 255

export function checkType(path: string, value: unknown): string[] {
  const problems = checkText(path, value, 'the name of what happened, such as order.paid')
  if (problems.length > 0 || typeof value !== 'string') return problems
  const size = Buffer.byteLength(value)
  return size <= LONGEST_TYPE ? [] : [`${path} has ${size} bytes, and at most ${LONGEST_TYPE} are allowed`]
}

export function checkText(path: string, value: unknown, what: string): string[] {
  if (typeof value !== 'string' || value === '') return [`${path} is ${shown(value)}, but must be ${what}`]
  const unstorable = unstorableText(value)
  return unstorable === undefined ? [] : [`${path} contains ${unstorable}, which PostgreSQL cannot store`]
}

export function isWhole(value: unknown, from: number, to: number): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= from && value <= to
}

const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/i

/** As the tables have it. An entry of an index must fit into a third of a page: 2,704 bytes. */
const LONGEST_KEY_BYTES = 1_024

export function checkOrderingKey(path: string, value: unknown): string[] {
  const bytes = typeof value === 'string' ? Buffer.byteLength(value) : 0
  return bytes > LONGEST_KEY_BYTES
    ? [`${path} has ${bytes} bytes, but can have at most ${LONGEST_KEY_BYTES}`]
    : checkText(path, value, 'a text such as a customer’s id, or left out')
}

// oxlint-disable-next-line no-control-regex -- they are what it looks for
const CONTROL = /[\u0000-\u001f\u007f]/
// oxlint-disable-next-line no-control-regex -- as above, but for the tab
const CONTROL_BUT_TAB = /[\u0000-\u0008\u000a-\u001f\u007f]/

/** A line break in a header is one that HTTP and NATS refuse, or worse, do not. Values may be secrets: not shown. */
export function checkHeaders(path: string, headers: unknown): string[] {
  if (typeof headers !== 'object' || headers === null || Symbol.iterator in headers) {
    return [`${path} is ${shown(headers)}, but must be a plain object of texts`]
  }
  const problems = Object.entries(headers).flatMap(([name, value]: [string, unknown]) => {
    const at = pathOf(path, [name])
    if (name === '') return [`${path} has a header without a name`]
    if (CONTROL.test(name) || !name.isWellFormed())
      return [`${path} has a control character in the name ${shown(name)}`]
    if (typeof value !== 'string') return [`${at} is of type ${kindOf(value)}, but must be a text`]
    if (CONTROL_BUT_TAB.test(value)) return [`${at} contains a control character, which headers cannot carry`]
    return value.isWellFormed() ? [] : [`${at} contains half a surrogate pair, which PostgreSQL cannot store`]
  })
  const bytes = problems.length > 0 ? 0 : storedBytes(JSON.stringify(headers), LARGEST_HEADERS)
  return bytes > LARGEST_HEADERS
    ? [`${path} have ${bytes} bytes, but can have at most ${LARGEST_HEADERS}: put data into the payload`]
    : problems
}

/** The largest headers, as the tables have it. */
export const LARGEST_HEADERS = 16_384

/**
 * The size of a JSON text as PostgreSQL measures it, exact where that decides whether it is within the limit: `jsonb`
 * writes a space after each colon and comma. (It also writes out a number such as 1e300, which is not counted here: then
 * the table refuses the event.)
 */
export function storedBytes(json: string, limit: number): number {
  const bytes = Buffer.byteLength(json)
  return bytes > limit || bytes * 2 <= limit ? bytes : bytes + separatorsIn(json)
}

function separatorsIn(json: string): number {
  let count = 0
  let inText = false
  for (let i = 0; i < json.length; i += 1) {
    const character = json[i]
    if (character === '"') inText = !inText
    else if (inText && character === '\\') i += 1
    else if (!inText && (character === ':' || character === ',')) count += 1
  }
  return count
}

export function checkDate(path: string, value: unknown): string[] {
  if (!(value instanceof Date)) return [`${path} is ${shown(value)}, but must be a Date`]
  const year = value.getUTCFullYear()
  return year >= 1 && year <= 9999
    ? []
    : [`${path} is ${shown(value)}, but must be a valid Date up to the year 9999`]
}

function kindOf(value: unknown): string {
  return value === null ? 'null' : typeof value
}

/** A value as a message shows it. */
export function shown(value: unknown): string {
  return inspect(value, { depth: 0, breakLength: Infinity, maxStringLength: 100 })
}
