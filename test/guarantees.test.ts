import { expect, it } from 'vitest'
import { LONG_TESTS } from './support/long-tests.ts'
import { projectFile } from './support/project-files.ts'

const page = await projectFile('docs/guarantees.md')
const promises = page.split(/^(?=\*\*G\d+\.)/m).filter((part) => part.startsWith('**G'))
const proofs = (await projectFile('docs/proofs.md')).split(/^(?=### G\d+$)/m).slice(1)
const PROOF = /^- `([^`]+)` “([^”]+)”$/gm

it('the promises in docs/guarantees.md are numbered without a gap, and docs/proofs.md has a section for each', () => {
  const numbers = promises.map((promise) => Number(/^\*\*G(\d+)/.exec(promise)?.[1]))
  expect(numbers.length).toBeGreaterThan(60)
  expect(numbers).toEqual(numbers.map((_, i) => i + 1))
  expect(proofs.map((section) => Number(/^### G(\d+)$/m.exec(section)?.[1]))).toEqual(numbers)
})

it.each(promises.map((promise, i) => ({ promise, section: proofs[i] ?? '', name: promise.slice(2, 60) })))(
  '$name… is proved by tests that exist, and names the first of them',
  async ({ promise, section }) => {
    const named = [...section.matchAll(PROOF)]
    // Every item of the list must have the form of a proof. Otherwise it would not be checked.
    expect(section.match(/^- /gm)).toHaveLength(named.length)
    const [first, ...more] = named
    const [, number = ''] = /^\*\*G(\d+)/.exec(promise) ?? []
    const rest =
      more.length === 0
        ? ` ([test](proofs.md#g${number})).`
        : ` and [${more.length} more](proofs.md#g${number}).`
    expect(promise).toContain(`\nProof: \`${first?.[1]}\`${rest}\n`)
    const missing: string[] = []
    for (const [, file = '', title = ''] of named) {
      if (!(await projectFile(file)).includes(`'${title}'`)) missing.push(`${file} “${title}”`)
    }
    expect(missing).toEqual([])
    // `npm test` alone proves it.
    expect(named.some(([, file = '']) => !LONG_TESTS.includes(file))).toBe(true)
  },
)
