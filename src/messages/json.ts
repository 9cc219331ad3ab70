/** Payloads and events as JSON text that PostgreSQL can store unchanged. */
import { LeaseholdError } from '../errors.ts'
import { unstorable } from '../unstorable-text.ts'

/** A payload as the text that is sent, or why it cannot be. */
export type PayloadText = { readonly text: string } | { readonly problem: string }

/** The limit of the tables. Parsers of many languages refuse deeper JSON, and JSON.stringify overflows its stack. */
export const MAX_JSON_DEPTH = 100

/** `JSON.stringify` that refuses what it would leave out or turn into null, and what PostgreSQL cannot store. */
export function payloadText(payload: unknown, path: string): PayloadText {
  try {
    const finding = payload === undefined ? { keys: [], what: 'undefined' } : findNotJson(payload, [])
    if (finding === TOO_DEEP) return tooDeep(path)
    if (finding !== undefined) {
      return { problem: `${pathOf(path, finding.keys)} is ${finding.what}, which is not JSON` }
    }
    const text: unknown = JSON.stringify(payload)
    // A toJSON() may have returned anything.
    if (typeof text !== 'string') return { problem: `${path} turns into undefined, which is not JSON` }
    if (isTooDeep(text)) return tooDeep(path)
    const unstorable = findUnstorable(text)
    return unstorable === undefined
      ? { text }
      : {
          problem: `${pathOf(path, unstorable.keys)} contains ${unstorable.what}`,
        }
  } catch (error) {
    // What a toJSON() returned was too deep for JSON.stringify.
    if (error instanceof RangeError) return tooDeep(path)
    return {
      problem: `${path} cannot be written as JSON: ${error instanceof Error ? error.message : 'it threw'}`,
    }
  }
}

function tooDeep(path: string): PayloadText {
  return {
    problem: `${path} is nested more than ${MAX_JSON_DEPTH} levels deep, which many JSON parsers refuse: flatten it`,
  }
}

/** Whether a value is inside more than `MAX_JSON_DEPTH` objects and lists, as the tables measure it. */
function isTooDeep(json: string): boolean {
  if (!hasMore(json, '{', '[', MAX_JSON_DEPTH)) return false
  let depth = 0
  let inText = false
  for (let i = 0; i < json.length; i += 1) {
    const character = json[i]
    if (character === '"') inText = !inText
    else if (inText) i += character === '\\' ? 1 : 0
    else if (character === ']' || character === '}') depth -= 1
    else if (character === '[' || character === '{') {
      depth += 1
      const isEmpty = json[i + 1] === ']' || json[i + 1] === '}'
      if (depth > MAX_JSON_DEPTH && !isEmpty) return true
    }
  }
  return false
}

/** Whether a text has more than this many of two characters. It searches, which is faster than to read every character. */
function hasMore(text: string, one: string, other: string, count: number): boolean {
  let found = 0
  for (const character of [one, other])
    for (let at = text.indexOf(character); at !== -1; at = text.indexOf(character, at + 1)) {
      found += 1
      if (found > count) return true
    }
  return false
}

const PLAIN_KEY = /^[A-Za-z_$][\w$]*$/

/** `payload` and `['items', 0, 'a b']` as a person would write it: `payload.items[0]["a b"]`. */
export function pathOf(root: string, keys: readonly PropertyKey[]): string {
  return keys.reduce<string>((path, key) => {
    if (typeof key === 'number' || (typeof key === 'string' && /^\d+$/.test(key))) return `${path}[${key}]`
    if (typeof key === 'string')
      return PLAIN_KEY.test(key) ? `${path}.${key}` : `${path}[${JSON.stringify(key)}]`
    return `${path}[${String(key)}]`
  }, root)
}

/**
 * The size of a JSON text as PostgreSQL measures it: `jsonb` prints a space after each colon and comma, and a number such
 * as 1e300 in full. These are counted only where they decide whether the text is within the limit.
 */
export function storedBytes(json: string, limit: number): number {
  const bytes = Buffer.byteLength(json) + (EXPONENT.test(json) ? digitsOfExponents(json) : 0)
  return bytes > limit || bytes * 2 <= limit ? bytes : bytes + separatorsIn(json)
}

/** `1.5e+300`, as JSON.stringify writes numbers from 1e21, or below 1e-6. May also match inside a text. */
const EXPONENT = /\de[+-]?\d/i

/** How many characters longer the numbers with an exponent are in full. */
function digitsOfExponents(json: string): number {
  let more = 0
  for (const { groups: { exponent = '', whole = '', fraction = '' } = {}, 0: number } of json.matchAll(
    TEXT_OR_EXPONENT,
  )) {
    if (exponent === '') continue
    const shift = Number(exponent)
    // 1.5e+300 is 301 digits; 1.5e-7 is 0.00000015, of which the sign is not part of `whole`.
    const length =
      shift >= 0
        ? whole.length + Math.max(shift, fraction.length) + (fraction.length > shift ? 1 : 0)
        : 2 + Math.max(-shift - whole.length, 0) + whole.length + fraction.length
    more += length - (number.length - (number.startsWith('-') ? 1 : 0))
  }
  return more
}

/** A text, which is skipped, or a number with an exponent. */
const TEXT_OR_EXPONENT = /"(?:[^"\\]|\\.)*"|-?(?<whole>\d+)(?:\.(?<fraction>\d+))?e(?<exponent>[+-]?\d+)/gi

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

/** PostgreSQL takes no value of a gibibyte, and V8 no string of half of one. */
const MAX_CALL_CHARACTERS = 256 * 1024 * 1024

/** Events, each as JSON already, as one JSON array: one parameter for every driver, whatever their number. */
export function eventsText(texts: readonly string[], limit = MAX_CALL_CHARACTERS): string {
  const size = texts.reduce((sum, text) => sum + text.length, 0)
  if (size <= limit) return `[${texts.join(',')}]`
  throw new LeaseholdError(
    'EVENT_TOO_LARGE',
    `Nothing was written: the ${texts.length} events of this call have ${size} characters together, and at most ${limit} are allowed.`,
    { remedy: 'Split them into several calls; inside one transaction they are still written together.' },
  )
}

/** Where in a payload something is wrong, its keys from the outside in, and what it is. */
interface Finding {
  readonly keys: PropertyKey[]
  readonly what: string
}

const TOO_DEEP: Finding = { keys: [], what: 'nested too deeply' }

function findNotJson(value: unknown, ancestors: readonly object[]): Finding | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? undefined : { keys: [], what: String(value) }
  if (typeof value === 'function' || typeof value === 'symbol') return { keys: [], what: `a ${typeof value}` }
  // Some programs give BigInt a toJSON().
  if (typeof value === 'bigint')
    return 'toJSON' in new Object(value) ? undefined : { keys: [], what: 'a BigInt' }
  // A field that is undefined is left out, as everyone expects.
  if (typeof value !== 'object' || value === null || 'toJSON' in value) return undefined
  if (value instanceof Map || value instanceof Set) {
    return { keys: [], what: `a ${value instanceof Map ? 'Map' : 'Set'}` }
  }
  if (ancestors.includes(value)) return { keys: [], what: 'part of itself (circular)' }
  if (ancestors.length > MAX_JSON_DEPTH) return TOO_DEEP
  const path = [...ancestors, value]
  const entries: readonly (readonly [PropertyKey, unknown])[] = Array.isArray(value)
    ? value.map((item: unknown, index) => [index, item] as const)
    : Object.entries(value)
  for (const [key, item] of entries) {
    const finding = findNotJson(item, path)
    if (finding === TOO_DEEP) return finding
    if (finding !== undefined) return { ...finding, keys: [key, ...finding.keys] }
  }
  return undefined
}

/** JSON.stringify escapes `\u0000` and lone surrogates. After an escaped backslash the same letters are plain text. */
const ESCAPED = /(?<!\\)(?:\\\\)*\\u(?:0000|d[89a-f])/

function findUnstorable(text: string): Finding | undefined {
  if (!text.includes(String.raw`\u`) || !ESCAPED.test(text)) return undefined
  return (
    unstorableInside(JSON.parse(text)) ?? {
      keys: [],
      what: String.raw`\u0000 or half a surrogate pair, which PostgreSQL cannot store: remove it`,
    }
  )
}

function unstorableInside(value: unknown): Finding | undefined {
  if (typeof value === 'string') {
    const what = unstorable(value)
    return what === undefined ? undefined : { keys: [], what }
  }
  if (typeof value !== 'object' || value === null) return undefined
  for (const [key, item] of Object.entries(value)) {
    const inKey = unstorable(key)
    if (inKey !== undefined) return { keys: [], what: `a key with ${inKey}` }
    const finding = unstorableInside(item)
    if (finding !== undefined)
      return { ...finding, keys: [Array.isArray(value) ? Number(key) : key, ...finding.keys] }
  }
  return undefined
}
