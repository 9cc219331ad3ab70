// The pages of the site and how they are found: used by VitePress, by scripts/reference.mjs and by test/docs-site.test.ts,
// so it needs nothing but Node.
import { readdir, readFile } from 'node:fs/promises'
import { posix } from 'node:path'
import { fileURLToPath } from 'node:url'

export const DOCS = fileURLToPath(new URL('..', import.meta.url))

/**
 * The groups of the navigation and the order of their pages. A name without a page is skipped; a page without a name comes
 * last in the group of its folder, so that no page is unreachable.
 */
const GROUPS = [
  { text: 'Start', folder: undefined, names: ['tutorial', 'faq'] },
  {
    text: 'Guides',
    folder: 'guides',
    names: [
      'outbox',
      'webhooks',
      'sync',
      'reconcile',
      'own-table',
      'job-queue',
      'transactions',
      'nestjs',
      'testing',
      'typescript-and-commonjs',
      'dashboard',
    ],
  },
  {
    text: 'Concepts',
    folder: 'concepts',
    names: ['leases', 'fencing', 'heartbeats', 'reaping', 'ordering', 'delivery'],
  },
  {
    text: 'Reference',
    folder: 'reference',
    names: ['api', 'settings', 'cli', 'http', 'sql', 'events', 'metrics', 'errors', 'glossary'],
  },
  {
    text: 'Operations',
    folder: 'operations',
    names: [
      'deployment',
      'processes-and-signals',
      'connections',
      'upgrades',
      'monitoring',
      'runbooks',
      'capacity',
      'scale',
      'backup',
      'roles',
      'security',
      'doctor',
      'explain',
    ],
  },
  {
    text: 'Migration',
    folder: 'migration',
    names: ['pg-boss', 'graphile-worker', 'nestjs-outbox', 'hand-written'],
  },
  {
    text: 'Proofs',
    folder: undefined,
    names: [
      'guarantees',
      'proofs',
      'faults',
      'survival',
      'benchmarks',
      'model',
      'mutation-testing',
      'conformance',
    ],
  },
  // The pages at the top that no group names, and those of every other folder.
  { text: 'Design', folder: '', names: ['architecture', 'stability', 'sql/README', 'decisions/README'] },
]

/** Every page below docs, by path. */
export async function readPages() {
  const entries = await readdir(DOCS, { recursive: true })
  const paths = entries
    .map((path) => path.replaceAll('\\', '/'))
    .filter((path) => path.endsWith('.md') && !/(^|\/)(node_modules|\.vitepress|public)\//.test(path))
    .toSorted()
  return Promise.all(
    paths.map(async (path) => {
      const text = await readFile(`${DOCS}${path}`, 'utf8')
      return { path, text, title: titleOf(text) ?? path, description: descriptionOf(text) }
    }),
  )
}

/** The groups with their pages. Decisions form a group within the last one. */
export function navigation(pages) {
  const byName = new Map(pages.map((page) => [page.path.slice(0, -'.md'.length), page]))
  byName.delete('index')
  const take = (name) => {
    const page = byName.get(name)
    byName.delete(name)
    return page === undefined ? [] : [page]
  }
  const groups = GROUPS.map(({ text, folder, names }) => ({
    text,
    folder,
    pages: names.flatMap((name) => take(folder ? `${folder}/${name}` : name)),
  }))
  const rest = [...byName.keys()]
  for (const group of groups) {
    const own = group.folder ? rest.filter((name) => name.startsWith(`${group.folder}/`)) : []
    group.pages.push(...own.flatMap(take))
  }
  groups.at(-1)?.pages.push(...[...byName.keys()].flatMap(take))
  return groups.filter(({ pages }) => pages.length > 0).map(({ text, pages }) => ({ text, pages }))
}

/** The address of a page below the site. */
export function addressOf(path) {
  return `/${path.replace(/\.md$/, '').replace(/(^|\/)(README|index)$/, '$1')}`
}

/** The id of a heading, as GitHub makes it, so that a link with an anchor leads to the same place there and on the site. */
export function slug(heading) {
  return plainText(heading)
    .trim()
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\p{M} _-]/gu, '')
    .replaceAll(' ', '-')
}

/** The ids of the headings of a page. The second heading of the same text gets -1. */
export function anchorsOf(text) {
  const seen = new Map()
  return withoutCode(text)
    .split('\n')
    .flatMap((line) => /^#{1,6} +(.+?) *#*$/.exec(line)?.[1] ?? [])
    .map((heading) => {
      const id = slug(heading)
      const before = seen.get(id) ?? 0
      seen.set(id, before + 1)
      return before === 0 ? id : `${id}-${before}`
    })
}

/** The targets of the links and images of a page, with their lines. */
export function linksOf(text) {
  return withoutCode(text)
    .split('\n')
    .flatMap((line, index) => {
      const inline = line
        .replaceAll(/(`+)(?!`).*?(?<!`)\1(?!`)/g, (code) => ' '.repeat(code.length))
        .matchAll(/\]\(<?([^()\s<>]+(?:\([^()\s]*\)[^()\s<>]*)?)>?(?: +"[^"]*")?\)/g)
      const named = /^ {0,3}\[[^\]]+\]: +<?(\S+?)>?(?: +"[^"]*")?$/.exec(line)
      const html = line.matchAll(/\b(?:href|src)="([^"]+)"/g)
      const targets = [...inline, ...(named === null ? [] : [named]), ...html].map(([, target]) => target)
      return targets.map((target) => ({ target, line: index + 1 }))
    })
}

/** The file of the repository that a link in this file means, and its anchor. Undefined: it leads elsewhere. */
export function linkedFile(file, target) {
  if (/^([a-z][a-z0-9+.-]*:|\/\/)/i.test(target)) return undefined
  const [path = '', anchor] = target.split('#', 2)
  const folder = posix.dirname(file)
  return { file: path === '' ? file : posix.normalize(posix.join(folder, decodeURI(path))), anchor }
}

/** With fenced blocks, front matter and comments empty, so that line numbers stay. */
export function withoutCode(text) {
  let fence
  const blank = (part) => part.replaceAll(/[^\n]/g, '')
  return text
    .replace(/^---\n.*?\n---\n/s, blank)
    .replaceAll(/<!--.*?-->/gs, blank)
    .split('\n')
    .map((line) => {
      const mark = /^ *(`{3,}|~{3,})/.exec(line)?.[1]
      if (fence === undefined && mark === undefined) return line
      if (fence === undefined) fence = mark
      else if (mark !== undefined && line.trim() === mark && mark.startsWith(fence)) fence = undefined
      return ''
    })
    .join('\n')
}

function titleOf(text) {
  const heading = /^# +(.+)$/m.exec(withoutCode(text))?.[1] ?? frontMatter(text, 'title')
  return heading === undefined ? undefined : plainText(heading)
}

/** The first sentence of the page, or `description` of its front matter. */
function descriptionOf(text) {
  const given = frontMatter(text, 'description')
  if (given !== undefined) return given
  const paragraph = withoutCode(text)
    .split(/\n(?:[ \t]*\n)+/)
    .find((part) => /^[^#|<!>\s-]/.test(part))
  const sentence = plainText(paragraph ?? '').replaceAll('\n', ' ')
  return /^.*?[.:](?=\s|$)/.exec(sentence)?.[0].replace(/:$/, '.') ?? sentence
}

function frontMatter(text, field) {
  const [, front = ''] = /^---\n(.*?)\n---\n/s.exec(text) ?? []
  return new RegExp(`^${field}: *(.+)$`, 'm').exec(front)?.[1]
}

/** Markdown without its marks. */
function plainText(markdown) {
  return markdown
    .replaceAll(/!?\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replaceAll(/\*\*|`/g, '')
    .trim()
}
