import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const dist = fileURLToPath(new URL('../dist', import.meta.url))

it('every source map in the package contains its sources', async () => {
  const files = await readdir(dist, { recursive: true })
  const maps = files.filter((file) => file.endsWith('.map'))
  expect(maps.length).toBeGreaterThan(100)
  const incomplete: string[] = []
  for (const file of maps) {
    const map: unknown = JSON.parse(await readFile(join(dist, file), 'utf8'))
    const contents = typeof map === 'object' && map !== null && 'sourcesContent' in map && map.sourcesContent
    if (!Array.isArray(contents) || contents.some((text) => typeof text !== 'string')) incomplete.push(file)
  }
  expect(incomplete).toEqual([])
})
