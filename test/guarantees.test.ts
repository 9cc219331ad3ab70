import { expect, it } from 'vitest'
import { projectFile } from './support/project-files.ts'

const page = await projectFile('docs/guarantees.md')
const promises = page.split(/^(?=\*\*G\d+\.)/m).filter((part) => part.startsWith('**G'))
const PROOF = /^- `([^`]+)` “([^”]+)”$/gm

it('the promises in docs/guarantees.md are numbered without a gap', () => {
  const numbers = promises.map((promise) => Number(/^\*\*G(\d+)/.exec(promise)?.[1]))
  expect(numbers.length).toBeGreaterThan(0)
  expect(numbers).toEqual(numbers.map((_, i) => i + 1))
})

it.each(promises.map((promise) => ({ promise, name: promise.slice(2, 60) })))(
  '$name… is proved by tests that exist',
  async ({ promise }) => {
    const proofs = [...promise.matchAll(PROOF)]
    expect(proofs.length).toBeGreaterThan(0)
    // Every item of the list must have the form of a proof. Otherwise it would not be checked.
    const [promised = ''] = promise.split(/^## /m)
    expect(promised.match(/^- /gm)).toHaveLength(proofs.length)
    const missing: string[] = []
    for (const [, file = '', title = ''] of proofs) {
      if (!(await projectFile(file)).includes(`'${title}'`)) missing.push(`${file} “${title}”`)
    }
    expect(missing).toEqual([])
  },
)
