// Writes docs/api.txt: the names and signatures that each entry point of the package exports, taken from the built
// declaration files. Run `npm run build` first. test/api.test.ts compares what is checked in.
import { readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const FILE = join(ROOT, 'docs/api.txt')

/** The report as text: one section for each entry point in package.json, names in alphabetical order. */
export async function apiReport() {
  const { name, exports } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'))
  const sections = []
  for (const [path, target] of Object.entries(exports)) {
    if (typeof target !== 'object' || target.types === undefined) continue
    const declarations = await exportsOf(join(ROOT, target.types))
    const names = [...declarations.keys()].toSorted((a, b) => (a < b ? -1 : 1))
    const title = `# ${name}${path.slice(1)} (${names.length} names)`
    sections.push([title, ...names.map((each) => declarations.get(each))].join('\n\n'))
  }
  return `${HEADER}\n\n${sections.join('\n\n')}\n`
}

const HEADER = `What the package exports, by entry point. Written by \`npm run api\`, compared by test/api.test.ts:
a change here is a change of the public surface.`

/** Exported name → its declaration, followed through re-exports. */
async function exportsOf(file) {
  const found = new Map()
  const statements = await statementsOf(file)
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
    const source = from === undefined ? undefined : await exportsOf(sourceFile(file, from))
    if (names === undefined) {
      for (const [name, declaration] of source) found.set(name, declaration)
      continue
    }
    for (const part of namesIn(names)) {
      const [original, name = original] = part.split(' as ')
      const declaration = source?.get(original) ?? (await declarationIn(file, statements, original))
      if (declaration === undefined) throw new Error(`${file}: no declaration of ${original} was found`)
      found.set(name, declaration)
    }
  }
  return found
}

/** A name that is exported by `export { … }` is declared in the file itself or imported by it. */
async function declarationIn(file, statements, name) {
  const own = statements.filter((statement) => declaredName(statement) === name)
  if (own.length > 0) return own.join('\n')
  for (const statement of statements) {
    const imported = /^import (?:type )?\{(?<names>[^}]*)\} from '(?<from>\.[^']+)';$/s.exec(statement)
    if (imported !== null && namesIn(imported.groups.names).includes(name))
      return (await exportsOf(sourceFile(file, imported.groups.from))).get(name)
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

/** The top-level statements of a declaration file, without comments and private members. Each starts in column 1. */
async function statementsOf(file) {
  const text = (await readFile(file, 'utf8'))
    .replaceAll(/\/\*\*?[\s\S]*?\*\//g, '')
    .replaceAll(/^\/\/.*$/gm, '')
    .replaceAll(/^ +(#private|private \w+);\n/gm, '')
  const statements = []
  for (const line of text.split('\n')) {
    if (line.trim() === '') continue
    if (/^[a-z]/.test(line)) statements.push(line.trimEnd())
    else statements.push(`${statements.pop() ?? ''}\n${line.trimEnd()}`)
  }
  return statements
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await writeFile(FILE, await apiReport())
  process.stdout.write('docs/api.txt is written.\n')
}
