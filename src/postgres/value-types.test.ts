import { types } from 'pg'
import { afterEach, expect, it } from 'vitest'
import { valueTypes } from './value-types.ts'

const { INT8, JSONB, TIMESTAMPTZ, TEXT } = types.builtins
const before = new Map([INT8, JSONB, TIMESTAMPTZ].map((oid) => [oid, types.getTypeParser(oid)]))

afterEach(() => {
  for (const [oid, parse] of before) types.setTypeParser(oid, parse)
})

it.each([
  [INT8, '0'],
  [INT8, '-1'],
  [INT8, '9223372036854775807'],
  [JSONB, '{}'],
  [JSONB, '{"n": 1}'],
  [JSONB, '[]'],
  [JSONB, 'null'],
  [TIMESTAMPTZ, '2026-11-15 13:39:05.123456+00'],
  [TEXT, '{}'],
])('a value of type %i is read as `pg` reads it: %s', (oid, text) => {
  expect(valueTypes.getTypeParser(oid)(text)).toEqual(types.getTypeParser(oid)(text))
})

it('every empty object is one of its own', () => {
  const parse = valueTypes.getTypeParser(JSONB)
  expect(parse('{}')).not.toBe(parse('{}'))
})

it.each([
  [INT8, '42', 42n, (text: string) => BigInt(text)],
  [INT8, '42', 42, Number],
  [JSONB, '{}', '{}', (text: string) => text],
  [JSONB, '{}', { by: 'default' }, (text: string) => ({ by: 'default', ...JSON.parse(text) })],
  [TIMESTAMPTZ, '2026-11-15 13:39:05+00', '2026', (text: string) => text.slice(0, 4)],
])('a parser that somebody sets later is followed: %i, %s → %s', (oid, text, expected, parser) => {
  valueTypes.getTypeParser(oid)(text)
  types.setTypeParser(oid, parser)
  expect(valueTypes.getTypeParser(oid)(text)).toEqual(expected)
})

it('what comes in binary is left to `pg`', () => {
  expect(valueTypes.getTypeParser(INT8, 'binary')).toBe(types.getTypeParser(INT8, 'binary'))
})
