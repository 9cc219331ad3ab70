import { readFile } from 'node:fs/promises'
import { expect, it } from 'vitest'
import { ERROR_CODES } from '../src/errors.ts'

const page = await readFile(new URL('../docs/reference/errors.md', import.meta.url), 'utf8')

/** Each code has a section: its heading, and what follows up to the next one. */
const sections = page
  .split(/^## /m)
  .slice(1)
  .map((section) => ({ code: section.split('\n', 1)[0] ?? '', text: section }))

it('docs/reference/errors.md has a section for every error code, in the same order, and no other section', () => {
  expect(sections.map(({ code }) => code)).toEqual([...ERROR_CODES])
})

it.each(sections)('the section of $code has a cause and a remedy', ({ text }) => {
  expect(text).toMatch(/^\*\*Cause\.\*\* \S/m)
  expect(text).toMatch(/^\*\*Remedy\.\*\* \S/m)
})
