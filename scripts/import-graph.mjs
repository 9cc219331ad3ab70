// The import graph between the folders of src, and the order in which they stand on each other.
// `node scripts/import-graph.mjs` prints the graph of docs/architecture.md; test/architecture.test.ts compares it.
import { readdir, readFile } from 'node:fs/promises'
import { dirname, join, relative, sep } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const SRC = fileURLToPath(new URL('../src', import.meta.url))

/** From the bottom up. A folder imports from lower layers only, never from its own layer or a higher one. */
export const LAYERS = [
  // The files that stand directly in src, apart from index.ts: errors, the clock.
  ['base'],
  ['postgres'],
  ['lease', 'embedded'],
  ['worker', 'transactions', 'messages'],
  ['operations'],
  ['webhooks'],
  ['outbox', 'sync', 'reconcile'],
  ['observe', 'config', 'doctor', 'testing'],
  ['server', 'nestjs'],
  ['cli'],
  // src/index.ts, the public surface of the package's root.
  ['index'],
]

/** @returns the imports between folders: `{ from, to, files }`, where `files` names the importing files. */
export async function importsBetweenFolders() {
  const entries = await readdir(SRC, { recursive: true, withFileTypes: true })
  const files = entries
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts') && !entry.name.endsWith('.test.ts'))
    .map((entry) => join(entry.parentPath, entry.name))
  const arrows = new Map()
  for (const file of files) {
    const text = await readFile(file, 'utf8')
    for (const [, specifier] of text.matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)) {
      const [from, to] = [folderOf(file), folderOf(join(dirname(file), specifier))]
      if (from === to) continue
      const arrow = arrows.get(`${from} ${to}`) ?? { from, to, files: [] }
      arrow.files.push(relative(SRC, file))
      arrows.set(`${from} ${to}`, arrow)
    }
  }
  return [...arrows.values()]
}

function folderOf(file) {
  const [first, ...rest] = relative(SRC, file).split(sep)
  if (rest.length > 0) return first
  return first === 'index.ts' ? 'index' : 'base'
}

export function layerOf(folder) {
  return LAYERS.findIndex((folders) => folders.includes(folder))
}

/** The arrows that do not point down. Since every other arrow does, there is no cycle without one of these. */
export function wrongArrows(arrows) {
  return arrows.filter(({ from, to }) => layerOf(to) === -1 || layerOf(to) >= layerOf(from))
}

/** A Mermaid flowchart. An arrow that follows from two others is left out, and so is everything to `base`. */
export function drawGraph(arrows) {
  const direct = new Map()
  for (const { from, to } of arrows) {
    if (to === 'base' || from === 'index') continue
    direct.set(from, [...(direct.get(from) ?? []), to])
  }
  const reaches = (from, to, visited = new Set()) =>
    (direct.get(from) ?? []).some((next) => {
      if (next === to) return true
      if (visited.has(next)) return false
      visited.add(next)
      return reaches(next, to, visited)
    })
  const lines = [...direct].flatMap(([from, tos]) =>
    tos
      .filter((to) => !tos.some((other) => other !== to && reaches(other, to)))
      .map((to) => `  ${from} --> ${to}`),
  )
  return ['```mermaid', 'flowchart TD', ...lines.toSorted((a, b) => (a < b ? -1 : 1)), '```'].join('\n')
}

/** The files of this folder that import themselves through others, types included; each with one way back to itself. */
export async function cyclesWithin(folder) {
  const directory = join(SRC, folder)
  const files = (await readdir(directory, { recursive: true }))
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
    .map((file) => join(directory, file))
  const imports = new Map()
  for (const file of files) {
    const specifiers = [...(await readFile(file, 'utf8')).matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)]
    imports.set(
      file,
      specifiers
        .map(([, specifier]) => join(dirname(file), specifier))
        .filter((each) => files.includes(each)),
    )
  }
  const wayBack = (file) => {
    const waiting = [[file]]
    const visited = new Set()
    for (const way of waiting)
      for (const next of imports.get(way.at(-1))) {
        if (next === file) return way.map((each) => relative(directory, each)).join(' → ')
        if (visited.has(next)) continue
        visited.add(next)
        waiting.push([...way, next])
      }
    return undefined
  }
  return files.map(wayBack).filter((way) => way !== undefined)
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const arrows = await importsBetweenFolders()
  process.stdout.write(`${drawGraph(arrows)}\n`)
  for (const { from, to, files } of wrongArrows(arrows))
    process.stdout.write(`not downward: ${from} imports ${to}, in ${files.join(', ')}\n`)
}
