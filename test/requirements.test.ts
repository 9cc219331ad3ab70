import { existsSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { idsIn, proofs, rowsOf, written } from '../scripts/conformance.mjs'
import { LONG_TESTS } from './support/long-tests.ts'
import { projectFile } from './support/project-files.ts'

const QUOTE = "'"

const page = await projectFile('docs/conformance.md')
const rows = rowsOf(page)
const proved = await proofs()

describe('every requirement is proved or listed as pending', () => {
  it('docs/conformance.md lists each requirement once', () => {
    const ids = rows.map(({ id }) => id)
    expect(ids.length).toBeGreaterThan(80)
    expect(ids).toEqual([...new Set(ids)])
  })

  it('docs/conformance.md names the files whose test titles have the id, as `npm run conformance` writes it', () => {
    expect(page).toBe(written(page, proved))
  })

  it('the code that docs/conformance.md names exists', () => {
    const named = rows.flatMap(
      ({ code }) => code.match(/\b(?:src|migrations|test|scripts|examples)\/[\w./-]+/g) ?? [],
    )
    expect(named.filter((path) => !existsSync(new URL(`../${path}`, import.meta.url)))).toEqual([])
  })

  it('`npm test` alone proves each of them: none is left to the long tests', () => {
    expect(LONG_TESTS.filter((path) => !existsSync(new URL(`../${path}`, import.meta.url)))).toEqual([])
    const left = [...proved].filter(([, files]) => files.every((file) => LONG_TESTS.includes(file)))
    expect(left).toEqual([])
  })

  it('no test title has the id of an unknown requirement', () => {
    const known = new Set(rows.map(({ id }) => id))
    expect([...proved.keys()].filter((id) => !known.has(id))).toEqual([])
  })
})

describe('the table is written from the titles of tests', () => {
  it('an id counts in the title of a test, of a group and of a case, and nowhere else', () => {
    const source = [
      // Put together, so that this file does not count as a proof itself.
      `it(${QUOTE}REC-01: a row', () => {`,
      'describe.each([1])(\n  `LIFE-02 and D10`, () => {',
      "  'D3: a case': async (fixture) => {",
      '// SYNC-03 is a comment',
    ].join('\n')
    expect(idsIn(source).toSorted((a, b) => a.localeCompare(b))).toEqual(['D10', 'D3', 'LIFE-02', 'REC-01'])
  })

  it('a requirement that no title names is pending, and other tables stay as they are', () => {
    const table = '| other | a | b | c |\n| D1 | must | code | pending |\n| D2 | must | code | a.test.ts |'
    const now = new Map([['D1', ['a.test.ts', 'b.test.ts']]])
    expect(written(table, now)).toBe(
      '| other | a | b | c |\n| D1 | must | code | a.test.ts, b.test.ts |\n| D2 | must | code | pending |',
    )
  })
})
