import { expect, it } from 'vitest'
import { projectFile } from '../../test/support/project-files.ts'
import { REASON_CODES, shellArgument } from './explain.ts'

const STAGED_IN = ['admin', 'outbox/admin', 'webhooks/admin', 'sync/admin'].map(
  (folder) => `src/${folder}/explain.test.ts`,
)

it('docs/explain.md describes every reason, and no other', async () => {
  const page = await projectFile('docs/explain.md')
  const [, reasons = ''] = page.split('## Reasons')
  const documented = [...reasons.matchAll(/^\| `(\w+)` \| [A-Z\d].*[.`] \|/gm)].map(([, code = '']) => code)
  expect(documented.toSorted()).toEqual(REASON_CODES.toSorted())
})

it('every reason is staged in a test', async () => {
  const tests = (await Promise.all(STAGED_IN.map(async (path) => projectFile(path)))).join('\n')
  expect(REASON_CODES.filter((code) => !tests.includes(`'${code}'`))).toEqual([])
})

it.each([
  ['plain', 'plain'],
  ['app.jobs', 'app.jobs'],
  ['two words', "'two words'"],
  ["it's", String.raw`'it'\''s'`],
  ['-x', "'-x'"],
  ['', "''"],
  ['$HOME', "'$HOME'"],
])('the argument %j of a shell is written %s', (text, written) => {
  expect(shellArgument(text)).toBe(written)
})
