/** docs/operations/security.md names what proves each of its statements. */
import { access } from 'node:fs/promises'
import { expect, it } from 'vitest'
import { projectFile } from './support/project-files.ts'

it('every file that docs/operations/security.md names as a proof exists', async () => {
  const named = [
    ...(await projectFile('docs/operations/security.md')).matchAll(
      /`((?:src|test|migrations|scripts)\/[^`]+)`/g,
    ),
  ]
  const files = [...new Set(named.map(([, file = '']) => file))]
  expect(files.length).toBeGreaterThan(20)
  const missing: string[] = []
  for (const file of files)
    await access(new URL(`../${file}`, import.meta.url)).catch(() => missing.push(file))
  expect(missing).toEqual([])
})
