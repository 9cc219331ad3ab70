/** The packages that are installed are those that were reviewed. */
import { readdir } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { type AuditReport, BUNDLED, judge, readReport } from '../scripts/audit.mjs'
import { projectFile } from './support/project-files.ts'

interface LockFile {
  readonly packages: Readonly<
    Record<string, { readonly integrity?: string; readonly resolved?: string; readonly link?: boolean }>
  >
}

it.each([
  'package-lock.json',
  'bench/package-lock.json',
  'test/package/package-lock.json',
  'test/release/package-lock.json',
  'examples/nextjs/package-lock.json',
  'examples/prisma/package-lock.json',
])('every package of %s has an integrity, and is fetched by https if it names a URL', async (file) => {
  // The files are written by npm.
  const { packages } = JSON.parse(await projectFile(file)) as LockFile
  // A link leads to a folder of this repository.
  const installed = Object.entries(packages).filter(
    ([path, { link = false, resolved = '' }]) =>
      path.includes('node_modules/') && !link && !resolved.startsWith('file:'),
  )
  expect(installed.length).toBeGreaterThan(10)
  const without = installed.filter(([, { integrity = '' }]) => !/^sha512-[\w+/]{86}==$/.test(integrity))
  expect(without.map(([path]) => path)).toEqual([])
  const plain = installed.filter(([, { resolved = 'https:' }]) => !resolved.startsWith('https:'))
  expect(plain.map(([path]) => path)).toEqual([])
})

describe('the audit', () => {
  const severities = (given: Readonly<Record<string, string>>): string =>
    JSON.stringify({
      vulnerabilities: Object.fromEntries(
        Object.entries(given).map(([name, severity]) => [name, { name, severity }]),
      ),
      metadata: { vulnerabilities: { total: Object.keys(given).length } },
    })
  const report = (given: Readonly<Record<string, string>>): AuditReport => readReport(severities(given))
  const judged = (production: AuditReport, everything: AuditReport, isRequired = false): unknown =>
    judge(production, everything, { shipped: BUNDLED, isRequired })

  it('a high or critical vulnerability of a dependency fails it, and a lower one does not', () => {
    const moderate = report({ pg: 'moderate', hono: 'low' })
    expect(judged(moderate, moderate)).toMatchObject({ failed: false })
    for (const severity of ['high', 'critical']) {
      const serious = report({ pg: severity, hono: 'low' })
      expect(judged(serious, serious)).toEqual({ failed: true, text: expect.stringContaining(': pg.') })
    }
  })

  it('a package that is bundled into the dashboard counts although it is a development dependency, and a tool does not', () => {
    const none = report({})
    expect(judged(none, report({ preact: 'high' }))).toMatchObject({ failed: true })
    expect(judged(none, report({ vitest: 'high' }))).toEqual({
      failed: false,
      text: expect.stringContaining('Of the tools for development: 1: vitest.'),
    })
  })

  it('every package that the dashboard imports is audited as a part of it', async () => {
    const files = await readdir(new URL('../dashboard/', import.meta.url), { recursive: true })
    const sources = await Promise.all(
      files
        .filter((file) => /\.tsx?$/.test(file))
        .map(async (file) => projectFile(`dashboard/${file.replaceAll('\\', '/')}`)),
    )
    // Samples that are shown there import the library itself.
    const imported = sources
      .flatMap((text) =>
        [...text.matchAll(/^(?:import|\} from).*?'([^./'][^'/]*)[^']*'$/gm)].map(([, name = '']) => name),
      )
      .filter((name) => name !== 'leasehold')
    expect([...new Set(imported)].sort()).toEqual(expect.arrayContaining(['preact', 'uplot']))
    expect([...BUNDLED]).toEqual(expect.arrayContaining([...new Set(imported)]))
  })

  it.each([
    ['', 'npm printed no report'],
    ['{"message": "request to the registry failed"}', 'request to the registry failed'],
    ['{"error": {"code": "ENOAUDIT", "summary": "no audits here"}}', 'no audits here'],
  ])('a registry that does not answer is said to have audited nothing: %s', (stdout, unanswered) => {
    expect(readReport(stdout)).toEqual({ unanswered })
    const text = `NOT AUDITED, so vulnerabilities are not known: ${unanswered}.`
    expect(judged(readReport(stdout), report({}))).toEqual({ failed: false, text })
    // Where an answer is required, for a release, that is a failure.
    expect(judged(report({}), readReport(stdout), true)).toEqual({ failed: true, text })
  })
})
