import { types } from 'pg'
import { momentParser } from './moments.ts'

type Parse = (text: string) => unknown

const BIGINT: number = types.builtins.INT8
const JSONB: number = types.builtins.JSONB
const TIMESTAMPTZ: number = types.builtins.TIMESTAMPTZ

/** Quicker ways to read what every row has, each to the same result as the parser it stands for. */
const QUICKER = new Map<number, (general: Parse) => Parse>([
  [BIGINT, bigintParser],
  [JSONB, jsonParser],
  [TIMESTAMPTZ, momentParser],
])

/** How values are read: as `pg` does, or was told to. It asks for every column of every statement. */
export const valueTypes = {
  getTypeParser(oid: number, format: 'text' | 'binary' = 'text'): Parse {
    const general: Parse = types.getTypeParser(oid, format)
    const quicker = format === 'text' ? QUICKER.get(oid) : undefined
    return quicker === undefined ? general : made(oid, general, quicker)
  },
}

/** The last one for each type: somebody may tell `pg` otherwise at any time. */
const last = new Map<number, { readonly general: Parse; readonly parse: Parse }>()

function made(oid: number, general: Parse, quicker: (general: Parse) => Parse): Parse {
  const known = last.get(oid)
  if (known?.general === general) return known.parse
  const parse = quicker(general)
  last.set(oid, { general, parse })
  return parse
}

/** `pg` looks at every sign of a text and then hands it out as it is. */
function bigintParser(general: Parse): Parse {
  return general(BEYOND_NUMBERS) === BEYOND_NUMBERS ? asItIs : general
}

const BEYOND_NUMBERS = '9007199254740993'

function asItIs(text: string): string {
  return text
}

/** Most headers, and many a payload, are an object with nothing in it. */
function jsonParser(general: Parse): Parse {
  return isPlainAndEmpty(general('{}')) ? (text) => (text === '{}' ? {} : general(text)) : general
}

function isPlainAndEmpty(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  return Object.getPrototypeOf(value) === Object.prototype && Object.keys(value).length === 0
}
