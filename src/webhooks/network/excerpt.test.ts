import { expect, it } from 'vitest'

import { excerptOf } from './excerpt.ts'

it.each<[string, readonly (string | readonly number[])[], number, string]>([
  ['text stays', ['{"ok":', 'true}'], 1_024, '{"ok":true}'],
  ['no more than asked for is kept', ['abcdef'], 4, 'abcd'],
  ['a character that is cut in two is left out', ['ab€'], 4, 'ab'],
  ['a character across chunks is whole', [[0xe2, 0x82], [0xac]], 1_024, '€'],
  ['lines become one', ['a\r\nb\tc\n'], 1_024, 'a b c'],
  ['NUL, escapes and other controls go', ['a\0b\u001b[31mc\u0085\u009bd\u007f'], 1_024, 'ab[31mcd'],
  ['what turns the direction of a line goes', ['a\u202eb\u2066c\u2028d\u200f'], 1_024, 'abcd'],
  ['what is no UTF-8 is shown as that', [[0x61, 0xff, 0x62]], 1_024, 'a\ufffdb'],
  ['nothing is nothing', [], 1_024, ''],
])('%s', (_promise, chunks, bytes, expected) => {
  const given = chunks.map((chunk) =>
    typeof chunk === 'string' ? Buffer.from(chunk) : Uint8Array.from(chunk),
  )
  expect(excerptOf(given, bytes)).toBe(expected)
})
