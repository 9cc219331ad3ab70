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

it('a parser that somebody has set for all of the process is left alone', () => {
  const asText = (text: string): string => text
  expect(momentParser(asText)).toBe(asText)
})
