/**
 * Writes the last column of docs/conformance.md: for every requirement, the files with a test whose title names it.
 * The requirements themselves, and the code that keeps them, are written by hand.
 *
 *   npm run conformance
 */
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'

const ROOT = new URL('../', import.meta.url)
const PAGE = new URL('docs/conformance.md', ROOT)

const ID =
  /\b(?:RULE-020-\d{3}|WH-(?:FR-\d{3}-(?:AC\d|N)|NFR-\d{3})|SYNC-\d{2}|LIFE-\d{2}|REC-\d{2}|D(?:1[0-4]|[1-9]))\b/g
const ROW = /^\| (?<id>\S+) \| (?<must>.*) \| (?<code>.*?) \| (?<proofs>.*) \|$/gm

/** No test names the requirement yet. */
export const PENDING = 'pending'

/** The rows of the table: each requirement, what it says, the code that keeps it, and the files that prove it. */
export function rowsOf(page) {
  return [...page.matchAll(ROW)]
    .map(({ groups }) => ({ ...groups, proofs: groups.proofs === PENDING ? [] : groups.proofs.split(', ') }))
    .filter(({ id }) => id.match(ID)?.[0] === id)
}

/** The ids in the titles of a file's tests: the first strings of `it` and `describe`, and the names of conformance cases. */
export function idsIn(source) {
  const titles = [
    ...source.matchAll(/\b(?:it|test|describe)(?:\.\w+)*\(\s*(['"`])(?<title>.*?)\1,/gs),
    ...source.matchAll(/\)\(\s*(['"`])(?<title>.*?)\1,/gs),
    ...source.matchAll(/^\s+(['"`])(?<title>.*?)\1:\s+async \(\s*fixture/gm),
  ]
  return [...new Set(titles.flatMap(({ groups }) => groups.title.match(ID) ?? []))]
}

/** For every id that a test title of the project names, the files that do, in order. */
export async function proofs() {
  const found = new Map()
  for (const folder of ['src', 'test', 'model']) {
    const paths = await readdir(new URL(folder, ROOT), { recursive: true })
    const files = paths.map((path) => `${folder}/${path.replaceAll('\\', '/')}`)
    for (const file of files.filter((path) => /\.test\.ts$|-cases\.ts$/.test(path)).toSorted())
      for (const id of idsIn(await readFile(new URL(file, ROOT), 'utf8')))
        found.set(id, [...(found.get(id) ?? []), file])
  }
  return found
}

/** The page with its last column as the tests are now. */
export function written(page, proved) {
  return page.replaceAll(ROW, (row, id, must, code) =>
    id.match(ID)?.[0] === id
      ? `| ${id} | ${must} | ${code} | ${proved.get(id)?.join(', ') ?? PENDING} |`
      : row,
  )
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await writeFile(PAGE, written(await readFile(PAGE, 'utf8'), await proofs()))
}
