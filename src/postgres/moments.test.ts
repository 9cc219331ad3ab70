import fc from 'fast-check'
import { types } from 'pg'
import { expect, it } from 'vitest'
import { momentParser } from './moments.ts'

const general = types.getTypeParser(types.builtins.TIMESTAMPTZ)
const parse = momentParser(general)

it.each([
  ['2026-11-15 13:39:05.123456+00', '2026-11-15T13:39:05.123Z'],
  ['2026-11-15 13:39:05+00', '2026-11-15T13:39:05.000Z'],
  ['2026-11-15 13:39:05.1+00', '2026-11-15T13:39:05.100Z'],
  ['2026-11-15 13:39:05.12-00', '2026-11-15T13:39:05.120Z'],
  ['2024-02-29 23:59:59.999999+02', '2024-02-29T21:59:59.999Z'],
  ['2026-01-01 01:30:00+05', '2025-12-31T20:30:00.000Z'],
  ['2026-12-31 20:30:00.5-05', '2027-01-01T01:30:00.500Z'],
  ['1000-01-01 00:00:00+00', '1000-01-01T00:00:00.000Z'],
])('%s is %s', (text, moment) => {
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
])('what is written otherwise is read as before: %s', (text) => {
  expect(parse(text)).toEqual(general(text))
})

it('whatever was read before it, a moment is read as before: in its minute, in another, in another zone', () => {
  const near = new Date('2026-11-15T13:39:00Z').getTime()
  const part = fc.record({
    at: fc.integer({ min: near - 90_000, max: near + 90_000 }),
    fraction: fc.constantFrom('', '.5', '.05', '.123', '.000001', '.999999'),
    zone: fc.constantFrom('+00', '+02', '-11', '+05:30'),
  })
  fc.assert(
    fc.property(fc.array(part), (parts) => {
      const kept = momentParser(general)
      for (const { at, fraction, zone } of parts) {
        const text = new Date(at).toISOString().slice(0, 19).replace('T', ' ') + fraction + zone
        expect(kept(text)).toEqual(general(text))
      }
    }),
  )
})

it('a parser that somebody has set for all of the process is left alone', () => {
  const asText = (text: string): string => text
  expect(momentParser(asText)).toBe(asText)
})
