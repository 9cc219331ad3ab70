import fc from 'fast-check'
import { types } from 'pg'
import { afterEach, describe, expect, it } from 'vitest'
import { timestampParser, valueTypes } from './value-types.ts'

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

it('every empty JSON object is a new object', () => {
  const parse = valueTypes.getTypeParser(JSONB)
  expect(parse('{}')).not.toBe(parse('{}'))
})

it.each([
  [INT8, '42', 42n, (text: string) => BigInt(text)],
  [INT8, '42', 42, Number],
  [JSONB, '{}', '{}', (text: string) => text],
  [JSONB, '{}', { by: 'default' }, (text: string) => ({ by: 'default', ...JSON.parse(text) })],
  [TIMESTAMPTZ, '2026-11-15 13:39:05+00', '2026', (text: string) => text.slice(0, 4)],
])('a parser that the user sets later is used: type %i, %s → %s', (oid, text, expected, parser) => {
  valueTypes.getTypeParser(oid)(text)
  types.setTypeParser(oid, parser)
  expect(valueTypes.getTypeParser(oid)(text)).toEqual(expected)
})

it('binary values are read by `pg`', () => {
  expect(valueTypes.getTypeParser(INT8, 'binary')).toBe(types.getTypeParser(INT8, 'binary'))
})

describe('timestamps', () => {
  const general = types.getTypeParser(types.builtins.TIMESTAMPTZ)
  const parse = timestampParser(general)

  it.each([
    ['2026-11-15 13:39:05.123456+00', '2026-11-15T13:39:05.123Z'],
    ['2026-11-15 13:39:05+00', '2026-11-15T13:39:05.000Z'],
    ['2026-11-15 13:39:05.1+00', '2026-11-15T13:39:05.100Z'],
    ['2026-11-15 13:39:05.12-00', '2026-11-15T13:39:05.120Z'],
    ['2024-02-29 23:59:59.999999+02', '2024-02-29T21:59:59.999Z'],
    ['2026-01-01 01:30:00+05', '2025-12-31T20:30:00.000Z'],
    ['2026-12-31 20:30:00.5-05', '2027-01-01T01:30:00.500Z'],
    ['1000-01-01 00:00:00+00', '1000-01-01T00:00:00.000Z'],
  ])('%s is read as %s', (text, moment) => {
    expect(parse(text)).toEqual(new Date(moment))
    expect(general(text)).toEqual(new Date(moment))
  })

  it.each([
    '2026-11-15 13:39:05.123456+05:30',
    '0044-03-15 12:00:00+00 BC',
    '0099-01-01 00:00:00+00',
    '12026-11-15 13:39:05+00',
    'infinity',
    '-infinity',
  ])('a timestamp in another format is read by the parser of `pg`: %s', (text) => {
    expect(parse(text)).toEqual(general(text))
  })

  it('a timestamp is read correctly whichever timestamps were read before it', () => {
    const near = new Date('2026-11-15T13:39:00Z').getTime()
    const part = fc.record({
      at: fc.integer({ min: near - 90_000, max: near + 90_000 }),
      fraction: fc.constantFrom('', '.5', '.05', '.123', '.000001', '.999999'),
      zone: fc.constantFrom('+00', '+02', '-11', '+05:30'),
    })
    fc.assert(
      fc.property(fc.array(part), (parts) => {
        const parser = timestampParser(general)
        for (const { at, fraction, zone } of parts) {
          const text = new Date(at).toISOString().slice(0, 19).replace('T', ' ') + fraction + zone
          expect(parser(text)).toEqual(general(text))
        }
      }),
    )
  })

  it('a parser that the user has set for the whole process is not replaced', () => {
    const asText = (text: string): string => text
    expect(timestampParser(asText)).toBe(asText)
  })
})
