import { pathOf } from './validate-path.ts'

/** A payload as the text that is sent, or why it cannot be. */
export type PayloadText = { readonly text: string } | { readonly problem: string }

/** `JSON.stringify` that refuses what it would leave out, turn into null or hand on to a database that cannot keep it. */
export function payloadText(payload: unknown, path: string): PayloadText {
  try {
    const misfit = payload === undefined ? { keys: [], what: 'undefined' } : findMisfit(payload, [])
    if (misfit !== undefined) {
      return { problem: `${pathOf(path, misfit.keys)} is ${misfit.what}, which is not JSON` }
    }
    const text: unknown = JSON.stringify(payload)
    // A toJSON() may have returned anything.
    if (typeof text !== 'string') return { problem: `${path} turns into undefined, which is not JSON` }
    const unstorable = findUnstorable(text)
    return unstorable === undefined
      ? { text }
      : {
          problem: `${pathOf(path, unstorable.keys)} contains ${unstorable.what}, which PostgreSQL cannot store`,
        }
  } catch (error) {
    return {
      problem: `${path} cannot be written as JSON: ${error instanceof Error ? error.message : 'it threw'}`,
    }
  }
}

/** What PostgreSQL stores in no text, or nothing. */
export function unstorableText(text: string): string | undefined {
  if (text.includes('\0')) return String.raw`the character \u0000`
  return text.isWellFormed() ? undefined : 'half a surrogate pair'
}

/** A place in a payload, its keys from the outside in, and what is wrong there. */
interface Misfit {
  readonly keys: PropertyKey[]
  readonly what: string
}

function findMisfit(value: unknown, above: readonly object[]): Misfit | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? undefined : { keys: [], what: String(value) }
  if (typeof value === 'function' || typeof value === 'symbol') return { keys: [], what: `a ${typeof value}` }
  // Some teach it to be JSON.
  if (typeof value === 'bigint')
    return 'toJSON' in new Object(value) ? undefined : { keys: [], what: 'a BigInt' }
  // A field that is undefined is left out, as everyone expects.
  if (typeof value !== 'object' || value === null || 'toJSON' in value) return undefined
  return misfitInside(value, above)
}

function misfitInside(value: object, above: readonly object[]): Misfit | undefined {
  if (value instanceof Map || value instanceof Set) {
    return { keys: [], what: `a ${value instanceof Map ? 'Map' : 'Set'}` }
  }
  if (above.includes(value)) return { keys: [], what: 'part of itself (circular)' }
  const path = [...above, value]
  const entries: readonly (readonly [PropertyKey, unknown])[] = Array.isArray(value)
    ? value.map((item: unknown, index) => [index, item] as const)
    : Object.entries(value)
  for (const [key, item] of entries) {
    const misfit = findMisfit(item, path)
    if (misfit !== undefined) return { ...misfit, keys: [key, ...misfit.keys] }
  }
  return undefined
}

/** `\u0000` and lone surrogates come out of JSON.stringify escaped; an escaped backslash before them is a backslash. */
const ESCAPED = /(?<!\\)(?:\\\\)*\\u(?:0000|d[89a-f])/

function findUnstorable(text: string): Misfit | undefined {
  if (!text.includes(String.raw`\u`) || !ESCAPED.test(text)) return undefined
  return unstorableInside(JSON.parse(text)) ?? { keys: [], what: String.raw`\u0000 or half a surrogate pair` }
}

function unstorableInside(value: unknown): Misfit | undefined {
  if (typeof value === 'string') {
    const what = unstorableText(value)
    return what === undefined ? undefined : { keys: [], what }
  }
  if (typeof value !== 'object' || value === null) return undefined
  for (const [key, item] of Object.entries(value)) {
    const inKey = unstorableText(key)
    if (inKey !== undefined) return { keys: [], what: `a key with ${inKey}` }
    const misfit = unstorableInside(item)
    if (misfit !== undefined)
      return { ...misfit, keys: [Array.isArray(value) ? Number(key) : key, ...misfit.keys] }
  }
  return undefined
}
