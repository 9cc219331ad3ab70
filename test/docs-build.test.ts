import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, it, onTestFinished } from 'vitest'
import { addressOf, readPages } from '../docs/.vitepress/pages.mjs'
import { installed } from './support/installed.ts'
import { projectFile } from './support/project-files.ts'

const DOCS = fileURLToPath(new URL('../docs', import.meta.url))

it('the site is built, without dead links, and loads nothing from other hosts', async () => {
  await installed('docs')
  const pages = await readPages()
  const site = await mkdtemp(join(tmpdir(), 'leasehold-docs-'))
  onTestFinished(async () => rm(site, { recursive: true, force: true }))
  const args = ['node_modules/vitepress/bin/vitepress.js', 'build', '--outDir', site]
  await promisify(execFile)(process.execPath, args, { cwd: DOCS })
  for (const { path } of pages) {
    const address = addressOf(path).replace(/\/$/, '/index')
    const html = await readFile(join(site, `${address}.html`), 'utf8')
    expect(html, path).not.toMatch(/<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?\/\//)
  }
  // Pages link to sources and examples, of which the site has copies.
  expect(await readFile(join(site, 'files/model/lease.tla.txt'), 'utf8')).toBe(
    await projectFile('model/lease.tla'),
  )
  expect(await readFile(join(site, 'llms.txt'), 'utf8')).toBe(await projectFile('docs/public/llms.txt'))
})
