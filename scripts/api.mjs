// Writes docs/api.txt: the names and signatures that each entry point of the package exports, taken from the built
// declaration files. Run `npm run build` first. test/api.test.ts compares what is checked in.
import { readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const FILE = join(ROOT, 'docs/api.txt')

/** The report as text: one section for each entry point in package.json, names in alphabetical order. */
export async function apiReport() {
  const sections = (await entryPoints()).map(({ name, declarations }) => {
    const title = `# ${name} (${declarations.length} names)`
    return [title, ...declarations.map(({ text }) => text)].join('\n\n')
  })
  return `${HEADER}\n\n${sections.join('\n\n')}\n`
}

/**
 * Every entry point with its declarations by name. `documented`: with the comments of members, the comment of each
 * declaration, and that at the top of the entry point.
 */
export async function entryPoints({ documented = false } = {}) {
  const { name: packageName, exports } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'))
  const found = []
  for (const [path, target] of Object.entries(exports)) {
    if (typeof target !== 'object' || target.types === undefined) continue
    const file = join(ROOT, target.types)
    const declared = await exportsOf(file, documented)
    const names = [...declared.keys()].toSorted((a, b) => (a < b ? -1 : 1))
    const declarations = names.map((name) => {
      const parts = declared.get(name).split(COMMENT)
      const texts = parts.map((part, i) => (i % 2 === 0 ? part : '')).join('')
      return { name, text: texts.trim(), comment: parts[1] ?? '' }
    })
    const comment = documented ? (/^\/\*\*[\s\S]*?\*\//.exec(await readFile(file, 'utf8'))?.[0] ?? '') : ''
    found.push({ name: `${packageName}${path.slice(1)}`, comment, declarations })
  }
  return found
}

/** Encloses the comment of a statement, at its end. */
const COMMENT = '\u0000'

const HEADER = `What the package exports, by entry point. Written by \`npm run api\`, compared by test/api.test.ts:
a change here is a change of the public surface.`

/** Exported name → its declaration, followed through re-exports. */
async function exportsOf(file, documented = false) {
  const found = new Map()
  const statements = await statementsOf(file, documented)
  for (const statement of statements) {
    const reexport = /^export (?:type )?(?:\{(?<names>[^}]*)\}|\*)(?: from '(?<from>[^']+)')?;$/s.exec(
      statement,
    )
    if (reexport === null) {
      const declared = declaredName(statement)
      // The overloads of a function follow each other.
      if (declared !== undefined && statement.startsWith('export '))
        found.set(declared, [found.get(declared), statement].filter(Boolean).join('\n'))
      continue
    }
    const { names, from } = reexport.groups
    // What another package declares is named only.
    if (from !== undefined && !from.startsWith('.')) {
      for (const name of namesIn(names)) found.set(name, `export { ${name} } from '${from}';`)
      continue
    }
    const source = from === undefined ? undefined : await exportsOf(sourceFile(file, from), documented)
    if (names === undefined) {
      for (const [name, declaration] of source) found.set(name, declaration)
      continue
    }
    for (const part of namesIn(names)) {
      const [original, name = original] = part.split(' as ')
      const declaration =
        source?.get(original) ?? (await declarationIn(file, statements, original, documented))
      if (declaration === undefined) throw new Error(`${file}: no declaration of ${original} was found`)
      found.set(name, declaration)
    }
  }
  return found
}

/** A name that is exported by `export { … }` is declared in the file itself or imported by it. */
async function declarationIn(file, statements, name, documented) {
  const own = statements.filter((statement) => declaredName(statement) === name)
  if (own.length > 0) return own.join('\n')
  for (const statement of statements) {
    const imported = /^import (?:type )?\{(?<names>[^}]*)\} from '(?<from>\.[^']+)';$/s.exec(statement)
    if (imported !== null && namesIn(imported.groups.names).includes(name))
      return (await exportsOf(sourceFile(file, imported.groups.from), documented)).get(name)
  }
  return undefined
}

function namesIn(list) {
  return list
    .split(',')
    .map((each) => each.trim().replace(/^type /, ''))
    .filter((each) => each !== '')
}

function sourceFile(file, specifier) {
  return join(dirname(file), specifier.replace(/\.(ts|js)$/, '.d.ts'))
}

function declaredName(statement) {
  return /^(?:export )?(?:declare )?(?:abstract )?(?:function|class|interface|type|const)\s+(\w+)/.exec(
    statement,
  )?.[1]
}

/**
 * The top-level statements of a declaration file, without private members, and without comments unless `documented`. Each
 * starts in column 1.
 */
async function statementsOf(file, documented) {
  const source = await readFile(file, 'utf8')
  const text = (documented ? source : source.replaceAll(/\/\*\*?[\s\S]*?\*\//g, ''))
    .replaceAll(/^\/\/.*$/gm, '')
    .replaceAll(/^ +(#private|private \w+);\n/gm, '')
  const statements = []
  let comment
  // A comment at the start of a line belongs to the statement that follows it, unless that has begun: a union.
  for (const part of text.split(/^(\/\*\*(?:(?!\*\/)[\s\S])*\*\/)\n(?=[a-z])/m)) {
    if (part.startsWith('/**')) {
      comment = part
      continue
    }
    const own = []
    for (const line of part.split('\n')) {
      if (line.trim() === '') continue
      if (/^[a-z]/.test(line)) own.push(line.trimEnd())
      else own.push(`${own.pop() ?? ''}\n${line.trimEnd()}`)
    }
    if (comment !== undefined && declaredName(own[0] ?? '') !== undefined)
      own[0] = `${own[0]}${COMMENT}${comment}${COMMENT}`
    comment = undefined
    statements.push(...own)
  }
  return statements
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await writeFile(FILE, await apiReport())
  process.stdout.write('docs/api.txt is written.\n')
}
