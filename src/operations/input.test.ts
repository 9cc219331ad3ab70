import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { digits, field, limitOf, moment, paging, text, toCursor } from './fields.ts'
import { fromText, problemsIn } from './input.ts'

const now = new Date('2026-03-01T12:00:00Z')
const past = field(moment, { relativeTo: 'past' }).optional()
const future = field(moment, { relativeTo: 'future' }).optional()

describe('a text becomes the JSON that its field accepts', () => {
  it.each([
    ['a number', limitOf(50), '12', 12],
    ['a number that is none stays a text', limitOf(50), '1e3', '1e3'],
    ['digits stay a text', digits, '9223372036854775807', '9223372036854775807'],
    ['a text stays as it is', text, '12', '12'],
    ['a time in the past', past, '2h', '2026-03-01T10:00:00.000Z'],
    ['a time in the future', future, '90d', '2026-05-30T12:00:00.000Z'],
    ['a time with an offset', past, '2026-02-28 10:00+02:00', '2026-02-28T08:00:00.000Z'],
    ['a time before every row stays a text', past, '999999d', '999999d'],
    ['what is no time stays a text', past, 'soon', 'soon'],
    ['2h is no time where none is relative', moment, '2h', '2h'],
  ])('%s', (_, schema, given, expected) => {
    expect(fromText(schema, given, now)).toBe(expected)
  })

  it('a program cannot give a relative time', () => {
    expect(fromText(past, '2h')).toBe('2h')
    expect(fromText(past, '2026-03-01')).toBe('2026-03-01')
  })
})

it('a problem names the field, what it is, and the rule', () => {
  const input = z.strictObject({ name: text, ...paging })
  const given = { limit: 0, cursor: 'x', other: 1 }
  const { error } = input.safeParse(given)
  expect(problemsIn(error ?? fail(), given)).toEqual([
    { path: ['name'], is: 'missing', rule: expect.any(String) },
    { path: ['limit'], is: '0', rule: 'give a whole number from 1 to 1,000' },
    { path: ['cursor'], is: '"x"', rule: 'give `next` of the page before' },
    { path: ['other'], is: undefined, rule: 'there is no such field' },
  ])
})

it('a cursor is opaque outside, and the position inside', () => {
  const { cursor } = paging
  expect(cursor.parse(toCursor('4711'))).toBe('4711')
})

function fail(): never {
  throw new Error('the input is wrong')
}
