import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase } from '../postgres/database.ts'
import { literal, shellArgument } from './shown-commands.ts'

it.each([
  ['plain', 'plain'],
  ['app.jobs', 'app.jobs'],
  ['two words', "'two words'"],
  ["it's", String.raw`'it'\''s'`],
  ['-x', "'-x'"],
  ['', "''"],
  ['$HOME', "'$HOME'"],
  ['two  spaces', "'two  spaces'"],
  ["a\nb'c\\", String.raw`$'a\012b\'c\\'`],
])('the argument %j of a shell is written %s', (text, written) => {
  expect(shellArgument(text)).toBe(written)
})

describe('a text of a command is taken as it is', () => {
  const db = openDatabase({ url: useDatabase().url })
  afterAll(async () => db.close())

  it.each([
    'two  spaces',
    "it's $HOME `date` \\",
    'tab\tand\nline',
    "\u001B[31m'red' \\\u001B[0m",
    '\u202Eright to left\u2066 and \u2028 lines é 7\u0007',
    '-7\u0085',
  ])('%j', async (text) => {
    const written = [shellArgument(text), literal(text)]
    expect(written.filter((each) => /[\p{Cc}\p{Bidi_Control}\u2028\u2029]/u.test(each))).toEqual([])
    const { stdout } = await promisify(execFile)('bash', ['-c', `printf %s ${written[0]}`])
    expect(stdout).toBe(text)
    expect((await db.query({ text: `select ${written[1]} as text` })).rows).toEqual([{ text }])
  })
})
