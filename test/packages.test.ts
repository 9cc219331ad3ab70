/** The packages that are installed are those that were reviewed. */
import { describe, expect, it } from 'vitest'
import { readReport } from '../scripts/audit.mjs'
import { projectFile } from './support/project-files.ts'

interface LockFile {
  readonly packages: Readonly<
    Record<string, { readonly integrity?: string; readonly resolved?: string; readonly link?: boolean }>
  >
}

it.each(['package-lock.json', 'bench/package-lock.json'])(
  'every package of %s has an integrity, and is fetched by https if it names a URL',
  async (file) => {
    // The files are written by npm.
    const { packages } = JSON.parse(await projectFile(file)) as LockFile
    // A link leads to a folder of this repository.
    const installed = Object.entries(packages).filter(
      ([path, { link = false }]) => path.includes('node_modules/') && !link,
    )
    expect(installed.length).toBeGreaterThan(10)
    const without = installed.filter(([, { integrity = '' }]) => !/^sha512-[\w+/]{86}==$/.test(integrity))
    expect(without.map(([path]) => path)).toEqual([])
    const plain = installed.filter(([, { resolved = 'https:' }]) => !resolved.startsWith('https:'))
    expect(plain.map(([path]) => path)).toEqual([])
  },
)

describe('the audit', () => {
  it('high and critical vulnerabilities are counted', () => {
    const vulnerabilities = { info: 1, low: 1, moderate: 1, high: 2, critical: 1, total: 6 }
    expect(readReport(JSON.stringify({ metadata: { vulnerabilities } }))).toEqual({ serious: 3, all: 6 })
  })

  it.each([
    ['', 'npm printed no report'],
    ['{"message": "request to the registry failed"}', 'request to the registry failed'],
    ['{"error": {"code": "ENOAUDIT", "summary": "no audits here"}}', 'no audits here'],
  ])('a registry that does not answer is not a vulnerability: %s', (stdout, unanswered) => {
    expect(readReport(stdout)).toEqual({ unanswered })
  })
})
