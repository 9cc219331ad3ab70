import { expect, it } from 'vitest'
import { projectFile } from '../../../test/support/project-files.ts'
import { STAGED } from '../../../test/support/staged-reasons.ts'
import { REASON_CODES } from './reasons.ts'

it('docs/operations/explain.md describes every reason, and no other', async () => {
  const page = await projectFile('docs/operations/explain.md')
  const [, reasons = ''] = page.split('## Reasons')
  const documented = [...reasons.matchAll(/^\| `(\w+)` \| [A-Z\d].*[.`] \|/gm)].map(([, code = '']) => code)
  expect(documented.toSorted()).toEqual(REASON_CODES.toSorted())
})

it('every reason is staged by a test file, which shows that it was returned', () => {
  expect(Object.values(STAGED).flat().toSorted()).toEqual(REASON_CODES.toSorted())
})
