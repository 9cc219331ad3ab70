import { expect, it } from 'vitest'
import { columns, duration, factLines, printable, printableJson, relative } from './output.ts'

it('columns are as wide as their widest cell, and no row ends in blanks', () => {
  expect(
    columns([
      ['A', 'LONG', 'C'],
      ['wide', 'x', ''],
    ]),
  ).toBe('A     LONG  C\nwide  x')
})

it('the texts of facts are aligned, also where a name is long', () => {
  expect(
    factLines([
      ['Event', '1'],
      ['Expired leases', '2'],
      ['A name that does not apply', undefined],
    ]),
  ).toBe('Event          1\nExpired leases 2')
})

it.each([
  [-5, '0 s'],
  [119_000, '119 s'],
  [121_000, '2 min'],
  [7_300_000, '2 h'],
  [200_000_000, '2 d'],
])('a duration of %d ms is written as %s', (ms, text) => {
  expect(duration(ms)).toBe(text)
})

it('given a width, the widest columns are cut first, and none is cut below its heading', () => {
  const rows = [
    ['ID', 'A LONG HEADING', 'DETAIL'],
    ['1', 'x'.repeat(40), 'y'.repeat(60)],
  ]
  const lines = columns(rows, 60).split('\n')
  expect(lines[1]).toBe(`1   ${'x'.repeat(26)}…  ${'y'.repeat(26)}…`)
  expect(columns(rows, 5).split('\n')[0]).toBe('ID  A LONG HEADING  DETAIL')
})

it('control characters are removed from cells', () => {
  expect(columns([['a\nb\tc', '\u001b[31mred\u009b\u202e']])).toBe('a b c   [31mred')
  expect(printable('\u2028x')).toBe(' x')
})

it('control characters are escaped in JSON, and a bigint is written as a string', () => {
  const value = { text: '\u001b\u009b\u202e', token: 12n }
  const text = printableJson(value, 0)
  expect(text).toBe(String.raw`{"text":"\u001b\u009b\u202e","token":"12"}`)
  expect(JSON.parse(text)).toEqual({ text: value.text, token: '12' })
})

it.each([
  [-5_000, '5 s ago'],
  [0, '0 s ago'],
  [90_000, 'in 90 s'],
])('a time %d ms from now is written as %s', (ms, text) => {
  const now = new Date(1_000_000)
  expect(relative(new Date(now.getTime() + ms), now)).toBe(text)
})
