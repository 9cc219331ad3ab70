import { execFile } from 'node:child_process'
import { readdir, readFile } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { projectFile } from './support/project-files.ts'

const root = fileURLToPath(new URL('..', import.meta.url))

/** The files of the package, as `npm pack` would take them now. */
async function packedFiles(): Promise<readonly string[]> {
  const args = ['pack', '--dry-run', '--json', '--ignore-scripts']
  const { stdout } = await promisify(execFile)('npm', args, { cwd: root, maxBuffer: 64 * 1024 * 1024 })
  // The format of npm's own report.
  const [report] = JSON.parse(stdout) as [{ readonly files: readonly { readonly path: string }[] }]
  return report.files.map(({ path }) => path)
}

/** The links of a page that lead to a file or to a heading: the text between the parentheses. */
function linksIn(page: string): string[] {
  const text = page.replaceAll(/^```.*?^```$/gms, '').replaceAll(/`[^`\n]*`/g, '')
  return [...text.matchAll(/\]\(([^)\s]+)\)/g)]
    .map(([, link = '']) => link)
    .filter((link) => !/^[a-z]+:/.test(link))
}

/** The anchors of a page, made of its headings as GitHub and npm make them. */
function anchorsIn(page: string): string[] {
  const headings = page.replaceAll(/^```.*?^```$/gms, '').matchAll(/^#+ (.*)$/gm)
  return [...headings].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  )
}

it('every link of a page in the package leads to a file of the package, and to a heading that is there', async () => {
  const files = await packedFiles()
  const pages = files.filter((file) => file.endsWith('.md'))
  expect(pages).toContain('README.md')
  const broken: string[] = []
  for (const page of pages) {
    for (const link of linksIn(await projectFile(page))) {
      const [path = '', anchor] = link.split('#')
      const target = path === '' ? page : posix.join(posix.dirname(page), path)
      const isFile = files.includes(target)
      const isFolder = files.some((file) => file.startsWith(`${target.replace(/\/$/, '')}/`))
      if (!isFile && !isFolder) broken.push(`${page}: ${link} is not in the package`)
      else if (anchor !== undefined && !anchorsIn(await projectFile(target)).includes(anchor))
        broken.push(`${page}: ${link} has no such heading`)
    }
  }
  expect(broken).toEqual([])
})

it('every source map in the package contains its sources', async () => {
  const files = await readdir(join(root, 'dist'), { recursive: true })
  const maps = files.filter((file) => file.endsWith('.map'))
  expect(maps.length).toBeGreaterThan(100)
  const incomplete: string[] = []
  for (const file of maps) {
    const map: unknown = JSON.parse(await readFile(join(root, 'dist', file), 'utf8'))
    const contents = typeof map === 'object' && map !== null && 'sourcesContent' in map && map.sourcesContent
    if (!Array.isArray(contents) || contents.some((text) => typeof text !== 'string')) incomplete.push(file)
  }
  expect(incomplete).toEqual([])
})
