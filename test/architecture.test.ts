import { readdir, readFile } from 'node:fs/promises'
import { expect, it } from 'vitest'
import {
  cyclesWithin,
  drawGraph,
  importsBetweenFolders,
  LAYERS,
  wrongArrows,
} from '../scripts/import-graph.mjs'

it('folders import from lower layers only, so there is no cycle between folders', async () => {
  const arrows = await importsBetweenFolders()
  expect(arrows.length).toBeGreaterThan(20)
  expect(wrongArrows(arrows)).toEqual([])
})

it('no file of the kernel or of the worker imports itself through others', async () => {
  expect([await cyclesWithin('lease'), await cyclesWithin('worker')]).toEqual([[], []])
  // A folder that has some shows that they are found.
  expect(await cyclesWithin('cli')).not.toEqual([])
})

it('every folder of src has a layer', async () => {
  const entries = await readdir(new URL('../src', import.meta.url), { withFileTypes: true })
  const folders = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name)
  expect(
    LAYERS.flat()
      .filter((folder) => folder !== 'base' && folder !== 'index')
      .toSorted(),
  ).toEqual(folders.toSorted())
})

it('an arrow to a higher layer, to the same layer, or to a folder without a layer is found', () => {
  const files = ['some.ts']
  expect(wrongArrows([{ from: 'lease', to: 'worker', files }])).toHaveLength(1)
  expect(wrongArrows([{ from: 'outbox', to: 'sync', files }])).toHaveLength(1)
  expect(wrongArrows([{ from: 'cli', to: 'elsewhere', files }])).toHaveLength(1)
  expect(wrongArrows([{ from: 'worker', to: 'lease', files }])).toEqual([])
})

it('docs/architecture.md shows the import graph; node scripts/import-graph.mjs prints it', async () => {
  const page = await readFile(new URL('../docs/architecture.md', import.meta.url), 'utf8')
  expect(page).toContain(drawGraph(await importsBetweenFolders()))
})

it('only src/nestjs imports NestJS and nothing imports src/nestjs, so a project without NestJS can import the rest', async () => {
  const files = await readdir(new URL('../src', import.meta.url), { recursive: true })
  const sources = files.filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
  const importing: string[] = []
  for (const file of sources) {
    const text = await readFile(new URL(`../src/${file}`, import.meta.url), 'utf8')
    if (/(?:from|import\()\s*'(?:@nestjs|reflect-metadata|rxjs)/.test(text)) importing.push(file)
  }
  expect(importing).toContain('nestjs/module.ts')
  expect(importing.filter((file) => !file.startsWith('nestjs'))).toEqual([])
  expect((await importsBetweenFolders()).filter(({ to }) => to === 'nestjs')).toEqual([])
})
