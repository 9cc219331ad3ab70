import { readFile } from 'node:fs/promises'

/** Reads a file of the project. */
export async function projectFile(path: string): Promise<string> {
  return readFile(new URL(`../../${path}`, import.meta.url), 'utf8')
}

/** The code blocks of one language in a Markdown page. */
export async function snippets(page: string, language: string): Promise<string[]> {
  const blocks = (await projectFile(page)).matchAll(/^```(\w+)\n(.*?)^```$/gms)
  return [...blocks].filter(([, of]) => of === language).map(([, , code = '']) => code.trim())
}

/** The parts of an example between `// begin` and `// end`, without their indentation. */
export async function marked(example: string): Promise<string[]> {
  const regions = (await projectFile(example)).matchAll(/^( *)\/\/ begin\n(.*?)^\1\/\/ end$/gms)
  return [...regions].map(([, indent = '', code = '']) =>
    code.replaceAll(new RegExp(`^${indent}`, 'gm'), '').trim(),
  )
}

export interface ComposeService {
  readonly command?: readonly string[]
  readonly image?: string
  readonly working_dir?: string
  readonly restart?: string
  readonly profiles?: readonly string[]
  readonly environment?: Readonly<Record<string, string>>
  readonly depends_on?: Readonly<Record<string, { readonly condition: string }>>
  readonly healthcheck?: { readonly test?: readonly string[]; readonly disable?: string }
  readonly deploy?: { readonly replicas: string }
}

/** The services of compose.yaml, with anchors resolved. */
export async function composeServices(): Promise<Record<string, ComposeService>> {
  const lines = linesOf(await projectFile('compose.yaml'))
  const file = mapping(lines, 0, new Map())
  if (lines.length > 0) throw new Error(`unexpected line ${JSON.stringify(lines[0])}`)
  // The file is our own, and the tests check the fields that they read.
  return file['services'] as Record<string, ComposeService>
}

interface Line {
  readonly indent: number
  readonly text: string
}

function linesOf(yaml: string): Line[] {
  return yaml
    .split('\n')
    .filter((line) => !/^\s*(?:#.*)?$/.test(line))
    .map((line) => ({ indent: line.search(/\S/), text: line.trim() }))
}

type Node = string | readonly string[] | Mapping
interface Mapping {
  [key: string]: Node
}

/** Parses the part of YAML that the file uses: nested mappings, lists of words, anchors and merges. */
function mapping(lines: Line[], indent: number, anchors: Map<string, Mapping>): Mapping {
  const found: Mapping = {}
  const written = new Set<string>()
  while (lines[0]?.indent === indent) {
    const { text } = lines.shift() ?? { text: '' }
    const [, key = '', rest = ''] = /^([\w<-]+):(?: (.*))?$/.exec(text) ?? []
    if (key === '') throw new Error(`not understood: ${text}`)
    if (key === '<<') {
      const merged = anchors.get(rest.slice(1))
      if (merged === undefined) throw new Error(`there is no anchor ${rest}`)
      for (const [name, value] of Object.entries(merged)) found[name] ??= value
      continue
    }
    // A key that came from a merge may be overridden.
    if (written.has(key)) throw new Error(`${key} occurs twice`)
    written.add(key)
    found[key] = valueOf(lines, indent, rest, anchors)
  }
  return found
}

function valueOf(lines: Line[], indent: number, rest: string, anchors: Map<string, Mapping>): Node {
  if (rest.startsWith('[')) return [...rest.matchAll(/'([^']*)'/g)].map(([, word = '']) => word)
  if (rest !== '' && !rest.startsWith('&')) return rest.replaceAll(/^'|'$/g, '')
  const [next] = lines
  if (next === undefined || next.indent <= indent) return ''
  if (next.text.startsWith('- ')) return items(lines, next.indent)
  const nested: Mapping = {}
  // Registered before its contents are read, because later lines may refer to it.
  if (rest.startsWith('&')) anchors.set(rest.slice(1), nested)
  return Object.assign(nested, mapping(lines, next.indent, anchors))
}

function items(lines: Line[], indent: number): string[] {
  const found: string[] = []
  while (lines[0]?.indent === indent && lines[0].text.startsWith('- ')) {
    found.push((lines.shift()?.text ?? '').slice(2).replaceAll(/^'|'$/g, ''))
  }
  return found
}
