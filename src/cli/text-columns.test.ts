import { expect, it } from 'vitest'
import { columns, duration } from './text-columns.ts'

it('columns are as wide as their widest cell, and no line ends in blanks', () => {
  expect(
    columns([
      ['A', 'LONG', 'C'],
      ['wide', 'x', ''],
    ]),
  ).toBe('A     LONG  C\nwide  x')
})

it.each([
  [-5, '0 s'],
  [119_000, '119 s'],
  [121_000, '2 min'],
  [7_300_000, '2 h'],
  [200_000_000, '2 d'],
])('%d ms is %s', (ms, text) => {
  expect(duration(ms)).toBe(text)
})
