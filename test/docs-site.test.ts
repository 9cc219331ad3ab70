import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'
import { anchorsOf, linkedFile, linksOf, navigation, readPages } from '../docs/.vitepress/pages.mjs'
import { filesOf, projectFile } from './support/project-files.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const pages = await readPages()

/** Every Markdown file of the project: a link can also lead from a README beside the code into the documentation. */
async function markdownFiles(): Promise<string[]> {
  const folders = await Promise.all(['src', 'test', 'examples', 'faults', 'model', 'bench'].map(filesOf))
  const top = (await readdir(ROOT)).filter((name) => name.endsWith('.md'))
  const beside = folders.flat().filter((path) => path.endsWith('.md'))
  return [...top, ...beside, ...pages.map(({ path }) => `docs/${path}`)]
}

it('every relative link in the documentation leads to a file that exists, and to a heading that it has', async () => {
  const dead: string[] = []
  let links = 0
  for (const file of await markdownFiles()) {
    for (const { target, line } of linksOf(await projectFile(file))) {
      const linked = linkedFile(file, target)
      if (linked === undefined) continue
      links += 1
      const problem = await problemWith(linked.file, linked.anchor, file)
      if (problem !== undefined) dead.push(`${file}:${line}: ${target} ${problem}`)
    }
  }
  expect(links).toBeGreaterThan(300)
  expect(dead).toEqual([])
})

async function problemWith(file: string, anchor = '', from: string): Promise<string | undefined> {
  const found = await stat(join(ROOT, file)).catch(() => undefined)
  if (found === undefined) return 'does not exist'
  // A folder is a page only if its README is named.
  if (found.isDirectory()) return from.startsWith('docs/') ? 'is a folder: link to its README.md' : undefined
  if (anchor === '' || !file.endsWith('.md')) return undefined
  return anchorsOf(await projectFile(file)).includes(anchor) ? undefined : 'has no such heading'
}

it('every page has a title and a description, and can be reached from the navigation', () => {
  const reached = navigation(pages).flatMap((group) => group.pages.map(({ path }) => path))
  expect(new Set(reached).size).toBe(reached.length)
  expect(['index.md', ...reached].toSorted()).toEqual(pages.map(({ path }) => path).toSorted())
  const bare = pages.filter(({ title, description }) => title.endsWith('.md') || description.length < 20)
  expect(bare.map(({ path }) => path)).toEqual([])
})

it('links, anchors and code are told apart as a Markdown parser does', () => {
  const text = [
    '# One `two_three`: four',
    '[a](b.md#c) and `[no](code.md)` ![picture](d.png) [e](f_(g).md "title")',
    '```sh',
    '[no](fence.md)',
    '# no heading',
    '```',
    '<!-- [no](comment.md) -->',
    '[ref]: h.md',
    '## Twice',
    '## Twice',
  ].join('\n')
  expect(linksOf(text).map(({ target, line }) => `${line} ${target}`)).toEqual([
    '2 b.md#c',
    '2 d.png',
    '2 f_(g).md',
    '8 h.md',
  ])
  expect(anchorsOf(text)).toEqual(['one-two_three-four', 'twice', 'twice-1'])
})
