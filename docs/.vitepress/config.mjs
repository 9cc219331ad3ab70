import { existsSync } from 'node:fs'
import { copyFile, mkdir, writeFile } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'
import { defineConfig } from 'vitepress'
import { addressOf, DOCS, linkedFile, linksOf, navigation, readPages, slug } from './pages.mjs'

const pages = await readPages()
const groups = navigation(pages)
const byAddress = new Map(pages.map((page) => [addressOf(page.path), page]))

const sidebar = groups.map(({ text, pages }) => {
  const decisions = pages.filter(({ path }) => path.startsWith('decisions/') && !path.endsWith('README.md'))
  const items = pages.filter((page) => !decisions.includes(page)).map(itemOf)
  const all = [...items, { text: 'Each decision', collapsed: true, items: decisions.map(itemOf) }]
  return { text, collapsed: text === 'Design', items: decisions.length > 0 ? all : items }
})

function itemOf({ path, title }) {
  return { text: title, link: addressOf(path) }
}

/** The first page of a group, for the bar at the top. */
function first(text) {
  const group = groups.find((each) => each.text === text)
  return group === undefined ? [] : [{ text, link: addressOf(group.pages[0].path) }]
}

export default defineConfig({
  title: 'Leasehold',
  description: 'Background work on PostgreSQL, for Node.js: rows are processed under fenced leases.',
  lang: 'en',
  cleanUrls: true,
  rewrites: { ':folder/README.md': ':folder/index.md' },
  srcExclude: ['public/**'],
  lastUpdated: false,
  themeConfig: {
    siteTitle: 'Leasehold',
    search: { provider: 'local' },
    outline: { level: [2, 3] },
    nav: [
      ...(byAddress.has('/tutorial') ? [{ text: 'Tutorial', link: '/tutorial' }] : []),
      ...['Guides', 'Concepts', 'Reference', 'Operations', 'Migration', 'Proofs'].flatMap(first),
    ],
    sidebar,
    docFooter: { prev: 'Previous page', next: 'Next page' },
    footer: { message: 'Apache-2.0' },
  },
  // The index of the search and the page of the API are large.
  vite: { build: { chunkSizeWarningLimit: 4_000 } },
  markdown: {
    anchor: { slugify: slug },
    linkify: false,
    // Braces in a sentence are no attributes, and :x: is no picture.
    attrs: { disable: true },
    emoji: { enabled: [] },
    config: (md) => {
      plainMarkdown(md)
      linkToFiles(md)
      showFileNames(md)
    },
  },
  transformPageData: (page) => {
    // VitePress does not check the links of the home page that are in its front matter.
    const { hero, features = [] } = page.frontmatter
    for (const { link } of [...(hero?.actions ?? []), ...features])
      if (!byAddress.has(link)) throw new Error(`${page.filePath} has a dead link: ${link}`)
    const { description } = byAddress.get(addressOf(page.filePath)) ?? {}
    return description === undefined ? {} : { description }
  },
  buildEnd: async ({ outDir }) => {
    for (const file of linkedFiles()) await copy(join(DOCS, '..', file), join(outDir, addressOfFile(file)))
    // llms.txt names the pages as Markdown.
    for (const { path } of pages) await copy(join(DOCS, path), join(outDir, path))
    await writeFile(
      join(outDir, 'llms-full.txt'),
      groups
        .flatMap(({ pages }) => pages)
        .map(({ path, text }) => `<!-- ${path} -->\n\n${text}`)
        .join('\n'),
    )
  },
})

/** Sources, examples and other files of the repository that pages link to. The site has a copy of each, as text. */
function linkedFiles() {
  const targets = pages.flatMap(({ path, text }) =>
    linksOf(text).map(({ target }) => linkedFile(`docs/${path}`, target)?.file),
  )
  return new Set(targets.filter((file) => file !== undefined && isCopied(file)))
}

function isCopied(file) {
  return !/^docs\/.*\.(md|png|svg)$/.test(file)
}

function addressOfFile(file) {
  return `files/${file}${/\.(json|txt)$/.test(file) ? '' : '.txt'}`
}

function linkToFiles(md) {
  const openLink = md.renderer.rules.link_open
  md.renderer.rules.link_open = (tokens, index, options, env, self) => {
    const href = tokens[index].attrGet('href') ?? ''
    const from = `docs/${relative(DOCS, env.realPath ?? env.path)}`
    const linked = href.startsWith('/') ? undefined : linkedFile(from, href)
    if (linked === undefined || !isCopied(linked.file)) return openLink(tokens, index, options, env, self)
    if (!existsSync(join(DOCS, '..', linked.file))) throw new Error(`${from} has a dead link: ${href}`)
    tokens[index].attrSet('href', `/${addressOfFile(linked.file)}`)
    tokens[index].attrSet('target', '_blank')
    return self.renderToken(tokens, index, options)
  }
}

/** Pages are no Vue templates: a < in a sentence is no tag, except for a line break, and braces are not evaluated. */
function plainMarkdown(md) {
  const { text } = md.renderer.rules
  const escape = (content) => md.utils.escapeHtml(content).replaceAll('{', '&#123;')
  md.renderer.rules.html_inline = (tokens, index) => {
    const { content } = tokens[index]
    return content === '<br>' ? content : escape(content)
  }
  md.renderer.rules.text = (...args) => text(...args).replaceAll('{', '&#123;')
}

/** ```js [relay.mjs] shows the name of the file above the code. */
function showFileNames(md) {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, index, ...rest) => {
    const name = /\[(\S+)\]/.exec(tokens[index].info)?.[1]
    const code = fence(tokens, index, ...rest)
    if (name === undefined) return code
    return `<div class="named-code"><div class="file-name">${md.utils.escapeHtml(name)}</div>${code}</div>`
  }
}

async function copy(from, to) {
  await mkdir(dirname(to), { recursive: true })
  await copyFile(from, to)
}
