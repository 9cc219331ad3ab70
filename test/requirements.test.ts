import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'

const root = fileURLToPath(new URL('..', import.meta.url))
const ID =
  /\b(?:RULE-020-\d{3}|WH-(?:FR-\d{3}-(?:AC\d|N)|NFR-\d{3})|SYNC-\d{2}|LIFE-\d{2}|REC-\d{2}|D(?:1[01]|[1-9]))\b/g
const ROW = /^\| (\S+) \| (?:.*) \|$/gm

interface Entry {
  readonly id: string
  readonly isPending: boolean
  readonly files: readonly string[]
}

/** The ids of a document's tables: the first cell of each row. */
function idsOf(markdown: string): string[] {
  return [...markdown.matchAll(ROW)].map(([, id = '']) => id).filter((id) => id.match(ID)?.[0] === id)
}

function readTable(markdown: string): Entry[] {
  return [...markdown.matchAll(ROW)]
    .map(([row, id = '']) => ({ id, last: row.split('|').at(-2)?.trim() ?? '' }))
    .filter(({ id }) => id.match(ID)?.[0] === id)
    .map(({ id, last }) => {
      const isPending = last === 'pending'
      return { id, isPending, files: isPending ? [] : last.split(', ').filter(Boolean) }
    })
}

/** The titles of a file's tests: the first strings of `it` and `describe`, and the names of conformance cases. */
function titlesOf(file: string): string {
  const source = readFileSync(`${root}${file}`, 'utf8')
  const titles = [
    ...source.matchAll(/\b(?:it|test|describe)(?:\.\w+)*\(\s*(['"`])(?<title>.*?)\1,/gs),
    ...source.matchAll(/\)\(\s*(['"`])(?<title>.*?)\1,/gs),
    ...source.matchAll(/^\s+(['"`])(?<title>.*?)\1:\s+async \(\s*fixture/gm),
  ]
  return titles.map(({ groups }) => groups?.['title'] ?? '').join('\n')
}

function testFiles(): string[] {
  return ['src', 'test']
    .flatMap((folder) =>
      readdirSync(`${root}${folder}`, { recursive: true, encoding: 'utf8' }).map(
        (file) => `${folder}/${file}`,
      ),
    )
    .filter((file) => /\.test\.ts$|-cases\.ts$/.test(file))
}

const conformance = readFileSync(`${root}docs/conformance.md`, 'utf8')
const entries = readTable(conformance)
const sharedRequirements = `${root}../shared/requirements.md`
const required = existsSync(sharedRequirements)
  ? idsOf(readFileSync(sharedRequirements, 'utf8'))
  : idsOf(conformance)

describe('every requirement is proved or listed as pending', () => {
  it('docs/conformance.md lists each requirement once', () => {
    expect(required.length).toBeGreaterThan(80)
    expect(entries.map(({ id }) => id).toSorted()).toEqual(required.toSorted())
  })

  it('every file that docs/conformance.md names for a requirement has its id in a test title', () => {
    const unproved = entries
      .filter(({ isPending }) => !isPending)
      .flatMap(({ id, files }) =>
        files.length === 0
          ? [`${id}: no test`]
          : files.filter((file) => !titlesOf(file).match(ID)?.includes(id)).map((file) => `${id}: ${file}`),
      )
    expect(unproved).toEqual([])
  })

  it('a requirement is pending only as long as no test title has its id', () => {
    const pending = entries.filter(({ isPending }) => isPending).map(({ id }) => id)
    const named = new Set(testFiles().flatMap((file) => titlesOf(file).match(ID) ?? []))
    expect(pending.filter((id) => named.has(id))).toEqual([])
  })

  it('no test title has the id of an unknown requirement', () => {
    const known = new Set(required)
    const unknown = testFiles().flatMap((file) =>
      (titlesOf(file).match(ID) ?? []).filter((id) => !known.has(id)).map((id) => `${id}: ${file}`),
    )
    expect(unknown).toEqual([])
  })
})
